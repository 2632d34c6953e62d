"""The ledger of figures: what is kept of which part and which micro-batch, and how much."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace

import pytest

from asyncio_operator.figures import Figures
from asyncio_operator.spark.driver import ledger as ledgers_module
from asyncio_operator.spark.driver.ledger import MOST_LOOKUPS, RECENT, SILENT, Ledger, Lookup, collections, take
from asyncio_operator.spark.worker.reporting import MicroBatch, Origin, TaskReport
from asyncio_operator.testing import ManualClock


def report(rows: int, part: str = "", batch: MicroBatch | None = None, latency: float = 0.001) -> TaskReport:
    figures = Figures(rows=rows, found=rows)
    figures.latency.add(latency)
    return TaskReport(part, batch, figures)


def test_reports_are_added_up_by_part_and_by_micro_batch() -> None:
    ledger = Ledger()
    ledger.extend([report(1, "a"), report(20, "b", ("run", 0))])
    ledger.extend([report(300, "a", ("run", 0)), report(4000, "a", ("run", 1)), report(50000, "a", ("other", 0))])
    assert [ledger.sum(part).rows for part in (None, "a", "b", "c")] == [54321, 54301, 20, 0]
    assert [ledger.sum(part, ("run", 0)).rows for part in (None, "a", "b", "c")] == [320, 300, 20, 0]
    assert [ledger.sum("a", batch).rows for batch in (("run", 1), ("other", 0), ("other", 1))] == [4000, 50000, 0]
    assert [ledger.has(part, ("run", 1)) for part in (None, "a", "b")] == [True, True, False]
    assert not ledger.has(None, ("run", 2))


def test_V1_after_a_reset_the_largest_sample_is_one_of_those_since_then() -> None:
    ledger = Ledger()
    name, figures = ledger.begin(Lookup("prices", "")), Figures()

    def reported(*latencies: float) -> None:
        for latency in latencies:
            figures.latency.add(latency)
        now = Figures.of_json(figures.as_json())
        ledger.extend([TaskReport("", None, now, Origin(name, 1, 0, 0, "r"), "running")])

    reported(0.02, 10.0)
    reported(0.01)
    assert ledger.sum().latency.percentiles().max == 10.0
    ledger.forget()
    reported()
    assert ledger.sum().latency.percentiles().max == 0.0
    reported(0.01, 0.02)
    assert 0.02 <= ledger.sum().latency.percentiles().max < 0.02 * 1.063
    reported(11.0)
    assert ledger.sum().latency.percentiles().max == 11.0


def test_the_latest_micro_batches_are_kept_and_no_others() -> None:
    ledger = Ledger()
    for number in range(RECENT + 5):
        ledger.extend([report(1, "a", ("run", number)), report(1, "b", ("run", number))])
    kept = [number for number in range(RECENT + 5) if ledger.has(None, ("run", number))]
    assert kept == list(range(5, RECENT + 5))
    assert ledger.sum().rows == 2 * (RECENT + 5)


def test_a_part_is_forgotten_alone_and_stays_expected() -> None:
    ledger = Ledger()
    ledger.expect("a")
    ledger.extend([report(1, "b", ("run", 0)), report(1, "a", ("run", 0))])
    ledger.forget("a")
    assert ledger.parts() == ["a", "b"]
    assert [ledger.sum(part).rows for part in ("a", "b")] == [0, 1]
    assert [ledger.has(part, ("run", 0)) for part in ("a", "b")] == [False, True]
    ledger.forget()
    assert ledger.parts() == ["a", "b"]
    assert (ledger.sum().rows, ledger.has(None, ("run", 0))) == (0, False)


def test_who_reads_while_reports_come_sees_whole_ones() -> None:
    ledger, over = Ledger(), threading.Event()

    def write() -> None:
        for i in range(3000):
            ledger.extend([report(1, latency=0.001 * (i + 1))])
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    while not over.is_set():
        figures = ledger.sum()
        assert figures.rows == figures.found
        figures.latency.percentiles()
        seen.append(figures.rows)
    writer.join()
    assert seen == sorted(seen)
    assert ledger.sum().rows == 3000


# -- reports of tasks that run


def live(
    rows: int,
    calls: int,
    state: str = "running",
    *,
    partition: int = 0,
    attempt: int = 0,
    run: str = "a",
    part: str = "",
    batch: MicroBatch | None = None,
    in_flight: int = 0,
) -> TaskReport:
    figures = Figures(rows=rows, found=rows, calls=calls)
    for _ in range(calls):
        figures.attempt_latency.add(0.001 * (attempt + 1))
    return TaskReport(part, batch, figures, Origin("e", 7, partition, attempt, run), state, in_flight)


def counted(ledger: Ledger, part: str | None = None, batch: MicroBatch | None = None) -> tuple[int, int]:
    figures = ledger.sum(part, batch)
    assert figures.rows == figures.found
    assert figures.attempt_latency.count == figures.calls
    return figures.rows, figures.calls


def test_V1_a_report_takes_the_place_of_the_one_before_it() -> None:
    ledger, batch = Ledger(), ("run", 0)
    for rows, calls in ((0, 3), (10, 12), (10, 12)):
        ledger.extend([live(rows, calls, batch=batch)])
        assert counted(ledger) == counted(ledger, batch=batch) == (rows, calls)
    ledger.extend([live(5, 6, partition=1, batch=batch)])
    assert counted(ledger) == (15, 18)
    ledger.extend([live(20, 22, "succeeded", batch=batch)])
    assert counted(ledger) == counted(ledger, batch=batch) == (25, 28)
    ledger.extend([live(18, 20, batch=batch)])
    assert counted(ledger) == (25, 28), "a report from before the success came late"


def test_V1_rows_of_a_failed_attempt_do_not_count_and_its_calls_do() -> None:
    ledger = Ledger()
    ledger.extend([live(10, 12), live(11, 14, "failed")])
    assert counted(ledger) == (0, 14)
    ledger.extend([live(4, 4, attempt=1)])
    assert counted(ledger) == (4, 18)
    ledger.extend([live(30, 30, "succeeded", attempt=1)])
    assert counted(ledger) == (30, 44)


def test_V1_of_two_attempts_that_run_the_one_ahead_counts_and_then_the_one_that_succeeds() -> None:
    ledger = Ledger()
    ledger.extend([live(10, 10), live(15, 15, attempt=1)])
    assert counted(ledger) == (15, 25)
    ledger.extend([live(30, 30, "succeeded")])
    assert counted(ledger) == (30, 45)
    ledger.extend([live(31, 31, "ended", attempt=1)])
    assert counted(ledger) == (30, 61)


def test_V1_a_partition_that_is_computed_again_counts_its_rows_once() -> None:
    ledger = Ledger()
    ledger.extend([live(30, 30, "succeeded"), live(10, 10, attempt=1), live(30, 31, "succeeded", attempt=1)])
    assert counted(ledger) == (30, 61)


def test_V1_the_runs_of_a_coalesced_task_are_added_up() -> None:
    ledger = Ledger()
    ledger.extend([live(10, 10, "ended", run="a"), live(5, 5, run="b")])
    assert counted(ledger) == (15, 15)
    ledger.extend([live(10, 10, "succeeded", run="a"), live(20, 20, "succeeded", run="b")])
    assert counted(ledger) == (30, 30)


def test_V1_what_spark_has_ended_early_keeps_its_figures() -> None:
    ledger = Ledger()
    ledger.extend([live(10, 15, "ended")])
    assert counted(ledger) == (10, 15)


def test_V1_after_a_reset_only_what_comes_then_counts() -> None:
    ledger = Ledger()
    ledger.extend([live(10, 12, part="a"), live(7, 7, "succeeded", part="b", partition=1)])
    ledger.forget("a")
    assert (counted(ledger, "a"), counted(ledger, "b")) == ((0, 0), (7, 7))
    ledger.extend([live(15, 20, part="a")])
    assert counted(ledger, "a") == (5, 8)
    ledger.extend([live(15, 20, "failed", part="a")])
    assert counted(ledger, "a") == (0, 8)


def test_V1_calls_in_flight_are_those_of_tasks_that_still_report() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)
    ledger.extend([live(0, 5, in_flight=5, part="a"), live(0, 3, in_flight=3, partition=1)])
    assert (ledger.in_flight(), ledger.in_flight("a")) == (8, 5)
    clock.advance(SILENT)
    ledger.extend([live(3, 3, "ended", partition=1)])
    assert ledger.in_flight() == 5
    clock.advance(1)
    assert ledger.in_flight() == 0


def test_V1_few_partitions_are_remembered_and_none_that_still_runs_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledgers_module, "MOST_PARTITIONS", 20)
    ledger = Ledger()
    ledger.extend([live(1, 1)])
    for number in range(1, 200):
        ledger.extend([live(1, 1, partition=number), live(2, 2, "succeeded", partition=number)])
    assert len(ledger._partitions) <= 21
    ledger.extend([live(2, 2, "succeeded")])
    assert counted(ledger) == (400, 400)


def test_V1_reports_travel_as_json_to_the_ledger_that_they_name() -> None:
    ledger, other = Ledger(), Ledger()
    report = live(10, 12, batch=("run", 3), part="a", in_flight=2)
    message = json.loads(json.dumps([[collections.register(ledger), report.as_json()], ["gone", report.as_json()]]))
    take(message)
    assert counted(ledger, "a", ("run", 3)) == (10, 12)
    assert ledger.sum().attempt_latency.percentiles() == report.figures.attempt_latency.percentiles()
    assert (ledger.in_flight(), counted(other)) == (2, (0, 0))


def test_V1_a_ledger_that_nobody_uses_is_forgotten() -> None:
    name = collections.register(Ledger())
    gc.collect()
    take([[name, live(1, 1).as_json()]])
    assert name not in collections


# -- what a page shows


def of(name: str, report: TaskReport) -> TaskReport:
    assert report.origin is not None
    return replace(report, origin=replace(report.origin, enrichment=name))


def test_V2_figures_of_each_lookup_are_kept_apart_and_equal_ones_belong_together() -> None:
    ledger = Ledger()
    first, second, again = (ledger.begin(Lookup(name, part)) for name, part in (("a", ""), ("a", "p"), ("a", "")))
    ledger.extend([of(first, live(1, 2)), of(second, live(10, 20, part="p")), of(again, live(100, 200))])
    assert [(one.label, all_of_it.rows, all_of_it.calls) for one, all_of_it in ledger.lookups()] == [
        ("a", 101, 202),
        ("p: a", 10, 20),
    ]
    ledger.forget("p")
    ledger.extend([of(second, live(15, 25, part="p"))])
    assert [(one.label, all_of_it.rows, all_of_it.calls) for one, all_of_it in ledger.lookups()] == [
        ("a", 101, 202),
        ("p: a", 5, 5),
    ]


def test_V2_the_latest_lookups_are_remembered() -> None:
    ledger = Ledger()
    names = [ledger.begin(Lookup(f"{number}", "")) for number in range(MOST_LOOKUPS + 5)]
    ledger.extend([of(names[0], live(1, 1))])
    assert [one.label for one, _ in ledger.lookups()] == [f"{number}" for number in range(5, MOST_LOOKUPS + 5)]
    assert ledger.sum().rows == 1


def test_V2_tasks_that_have_not_succeeded_are_shown_those_that_run_first_and_then_the_youngest() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)
    name = ledger.begin(Lookup("a", ""))
    reports = [live(1, 1), live(2, 2, "failed", partition=1), live(3, 3, "succeeded", partition=2)]
    ledger.extend([of(name, report) for report in reports])
    clock.advance(2)
    ledger.extend([of(name, live(4, 4, partition=3, in_flight=7))])
    shown = [(one.origin.partition, one.state, one.age, one.in_flight, one.figures.rows) for one in ledger.tasks()]
    assert shown == [(3, "running", 0, 7, 4), (0, "running", 2, 0, 1), (1, "failed", 2, 0, 2)]
    clock.advance(SILENT + 1)
    assert [(one.state, one.in_flight) for one in ledger.tasks()] == [("silent", 0), ("failed", 0), ("silent", 0)]
