"""The ledger of figures: what is kept of which part and which micro-batch, and how much."""

from __future__ import annotations

import threading

from asyncio_operator.spark.driver.ledger import RECENT, Ledger
from asyncio_operator.spark.worker.figures import EnrichmentFigures, MicroBatch, TaskReport


def report(rows: int, part: str = "", batch: MicroBatch | None = None, latency: float = 0.001) -> TaskReport:
    figures = EnrichmentFigures(rows=rows, found=rows)
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


def test_percentiles_of_several_reports_are_those_of_all_samples() -> None:
    ledger = Ledger()
    # 90 tasks of 1 ms and 10 of 1 s: an average of their percentiles would be none of these.
    ledger.extend([report(1, latency=0.001 if i < 90 else 1.0) for i in range(100)])
    latency = ledger.sum().latency.percentiles()
    assert 0.00096 < latency.p50 < 0.00104
    assert 0.96 < latency.p95 <= 1.0
    assert latency.max == 1.0


def test_a_sum_is_a_copy() -> None:
    ledger = Ledger()
    ledger.extend([report(1, "a", ("run", 0))])
    for batch in (None, ("run", 0)):
        ledger.sum("a", batch).add(EnrichmentFigures(rows=10))
        assert ledger.sum("a", batch).rows == 1


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
