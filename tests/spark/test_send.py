"""`send`, on a real Spark and against a real HTTP service: laws W1 to W3."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator import (
    Budget,
    ConfigurationError,
    EnricherError,
    FixedBackoff,
    FunctionError,
    Journal,
    Limit,
    Retry,
)
from asyncio_operator.spark import EnrichmentMetrics, SendReport, enrich, send
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import FunctionEnricher, HttpEnricher
from tests.spark.helpers import FROM_4_0, in_background, in_partitions, kill_workers, setting, wait_until

RETRY = Retry(3, FixedBackoff(0.0), on="retryable")


class Orders:
    """A service that takes orders: `answers` has what it says to an id; 204 to all others.

    Attributes:
        done: how often it has done what it was asked for, by id. It remembers idempotency keys, and does none twice.
    """

    def __init__(self) -> None:
        self.answers: dict[int | None, Any] = {}
        self.done: Counter[int] = Counter()
        self.service = FakeService(handler=self._answer)
        self._known: set[str] = set()

    def _answer(self, request: FakeRequest) -> Any:
        order = json.loads(request.body or b"{}").get("id")
        answer = self.answers.get(order, FakeAnswer("", 204))
        if callable(answer):
            answer = answer()
        key = request.headers.get("idempotency-key", "")
        if answer.status < 300 and not answer.reset and key not in self._known:
            self.done[order] += 1
            self._known.add(key)
        return answer

    def new(self) -> list[tuple[Any, str]]:
        """The ids and idempotency keys of the requests since the last time, in order."""
        requests = list(self.service.requests)
        self.service.requests.clear()
        return [(json.loads(one.body)["id"], one.headers.get("idempotency-key", "")) for one in requests]

    def ids(self) -> list[Any]:
        """The ids alone."""
        return [order for order, _ in self.new()]


@pytest.fixture
def orders() -> Iterator[Orders]:
    made = Orders()
    with made.service:
        yield made


def post(orders: Orders, path: str = "/orders", **options: Any) -> HttpEnricher:
    given = {"key": "id", "method": "POST", "schema": "x string", "json_body": {"id": "{id}"}} | options
    return HttpEnricher(orders.service.url + path, **given)


def table(spark: SparkSession, keys: list[Any], partitions: int = 1, kind: str = "int") -> DataFrame:
    return in_partitions(spark, [(key, number) for number, key in enumerate(keys)], f"id {kind}, n int", partitions)


def numbers(report: SendReport) -> tuple[int, int, int, int]:
    return report.sent, report.refused, report.failed, report.skipped


def test_W1_each_row_is_sent_refused_or_failed_and_the_report_says_which(spark: SparkSession, orders: Orders) -> None:
    good = [FakeAnswer({"x": 1}), FakeAnswer("", 201), FakeAnswer("", 204), FakeAnswer("<html>", 202)]
    refusals = [400, 401, 403, 404, 405, 409, 410, 422, 451]
    failures = [408, 425, 429, 500, 501, 502, 503, 504, 599]
    answers = [*good, *(FakeAnswer({"error": f"no {status}"}, status) for status in [*refusals, *failures])]
    # The answer ends in the middle: the service has done it all the same.
    answers += [FakeAnswer({"x": "long" * 100}, truncated=True), FakeAnswer(reset=True)]
    orders.answers = dict(enumerate(answers))
    df = table(spark, [*range(len(answers)), None], partitions=2)
    metrics = EnrichmentMetrics(spark)
    report = send(df, post(orders), on="id", on_error="keep", retry=None, metrics=metrics)
    assert sorted(orders.ids()) == list(range(len(answers)))
    assert numbers(report) == (5, 9, 9 + 2, 0)
    assert report.rows == df.count()
    figures = metrics.statistics()
    assert (figures.rows, figures.found, figures.missing, figures.failures) == (25, 5, 0, 9 + 11)
    assert figures.calls == len(answers)
    assert report.failures.columns == ["id", "n", "status", "http_status", "message"]
    rows = {row.n: row for row in report.failures.collect()}
    assert len(rows) == 20
    for number, status in enumerate([*refusals, *failures], len(good)):
        row = rows[number]
        assert (row.id, row.status) == (number, "refused" if status in refusals else "failed")
        assert row.http_status == status
        assert f"key {number}: " in row.message
        assert f"no {status}" in row.message
    assert (rows[23].status, rows[23].http_status) == ("failed", None)
    assert "the connection was lost" in rows[23].message
    assert (rows[24].id, rows[24].status, rows[24].http_status) == (None, "failed", None)
    assert "null" in rows[24].message


def test_W1_errors_that_may_pass_are_retried_and_deadlines_are_failures(spark: SparkSession, orders: Orders) -> None:
    tries = itertools.count()
    orders.answers = {
        1: lambda: FakeAnswer("", 429 if next(tries) < 2 else 200),
        2: FakeAnswer("", 503),
        3: FakeAnswer("", 400),
        4: FakeAnswer("", 200, delay=60.0),
    }
    report = send(table(spark, [1, 2, 3, 4]), post(orders), on="id", on_error="keep", retry=RETRY, timeout=2.0)
    assert numbers(report) == (1, 1, 2, 0)
    asked = orders.new()
    assert Counter(order for order, _ in asked) == {1: 3, 2: 3, 3: 1, 4: 1}
    # W2: a row keeps its key through attempts.
    assert len(set(asked)) == 4
    assert {row.id: row.status for row in report.failures.collect()} == {2: "failed", 3: "refused", 4: "failed"}


@pytest.mark.parametrize("broadcast", [True, False])
def test_W1_rows_are_sent_in_the_order_of_their_partition(
    spark: SparkSession, orders: Orders, broadcast: bool, tmp_path: Path
) -> None:
    keys = [7, 3, 3, 9, 1, 7, 3, 8, 2, 2, 6, 5]
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", "10MB" if broadcast else -1):
        send(table(spark, [3, 8]), post(orders), on="id", capacity=1, journal=str(tmp_path))
        assert orders.ids() == [3, 8]
        # One row with 3, the first, and 8 are known.
        report = send(table(spark, keys), post(orders), on="id", capacity=1, journal=str(tmp_path))
        assert orders.ids() == [7, 3, 9, 1, 7, 3, 2, 2, 6, 5]
    assert numbers(report) == (10, 0, 0, 2)


def test_W1_equal_rows_have_calls_and_keys_of_their_own_unless_distinct(spark: SparkSession, orders: Orders) -> None:
    df = table(spark, [1, 1, 2, 1, 2, 3], partitions=2)
    report = send(df, post(orders), on="id")
    assert numbers(report) == (6, 0, 0, 0)
    first = orders.new()
    assert Counter(order for order, _ in first) == {1: 3, 2: 2, 3: 1}
    assert len({key for _, key in first}) == 6
    assert orders.done == {1: 3, 2: 2, 3: 1}
    # W2: in another run, with other partitions, in another order.
    send(df.orderBy(df.n.desc()).repartition(3), post(orders), on="id")
    assert sorted(orders.new()) == sorted(first)
    orders.answers = {2: FakeAnswer("", 422)}
    report = send(df, post(orders), on="id", distinct=True, on_error="keep")
    assert numbers(report) == (2, 1, 0, 0)
    again = orders.new()
    assert sorted(order for order, _ in again) == [1, 2, 3]
    assert set(again) < set(first)
    assert [(row.id, row.n, row.status) for row in report.failures.collect()] == [(2, 2, "refused")]


def test_W1_the_first_row_that_is_not_sent_ends_its_task_and_is_named(spark: SparkSession, orders: Orders) -> None:
    orders.answers = {5: FakeAnswer({"error": "no five"}, 422), 6: FakeAnswer("", 500)}
    for key, words in ((5, "422.*no five"), (6, "500"), (None, "null")):
        df = table(spark, [key, *range(10, 20_000)])
        with pytest.raises(FunctionError, match=rf'(?s)key {key}: .*{words}.*; on_error="keep" sends') as caught:
            send(df, post(orders), on="id", retry=None, capacity=3)
        text = str(caught.value)
        assert (text.count("HttpEnricher("), text.count(f"key {key}")) == (1, 1)
        # W3, X15: nothing is sent ahead of the row.
        assert len(orders.ids()) <= 3


def test_W1_a_null_in_an_optional_part_of_the_key_is_sent(spark: SparkSession, orders: Orders) -> None:
    enricher = post(orders, key=["id", "note"], optional="note", json_body={"id": "{id}", "note": "{note}"})
    df = in_partitions(spark, [(1, "a"), (1, None), (1, None), (None, "b")], "id int, note string", 1)
    report = send(df, enricher, on=["id", "note"], on_error="keep", capacity=1)
    bodies = [json.loads(request.body) for request in orders.service.requests]
    assert bodies == [{"id": 1, "note": "a"}, {"id": 1, "note": None}, {"id": 1, "note": None}]
    assert len({request.headers["idempotency-key"] for request in orders.service.requests}) == 3
    assert numbers(report) == (3, 0, 1, 0)
    assert [row.note for row in report.failures.collect()] == ["b"]


def test_W1_any_enricher_sends_with_its_lookup_and_any_names_of_columns_will_do(spark: SparkSession) -> None:
    async def look_up(key: tuple[int, str]) -> Any:
        if key[0] == 1:
            raise EnricherError("never", retryable=False)
        if key[0] == 2:
            raise ValueError("not now")
        return None

    df = in_partitions(spark, [(i, "t", i, i) for i in range(4)], "`a.b` int, `a b` string, status int, _0 int", 1)
    for distinct in (False, True):
        enricher = FunctionEnricher(look_up, "x int")
        report = send(df, enricher, on=["a.b", "a b"], on_error="keep", distinct=distinct)
        assert numbers(report) == (2, 1, 1, 0)
        assert report.failures.columns == ["a.b", "a b", "status", "_0", "status_", "http_status", "message"]
        found = [(*tuple(row)[2:5], row.message) for row in report.failures.collect()]
        assert found == [(1, 1, "refused", "never"), (2, 2, "failed", "not now")]


def test_W1_a_redirect_that_makes_a_post_a_get_sends_nothing(spark: SparkSession) -> None:
    statuses = [301, 302, 303, 307, 308]

    class Moved(Orders):
        def _answer(self, request: FakeRequest) -> Any:
            return {"x": 1} if request.path == "/elsewhere" else super()._answer(request)

    other = Moved()
    with other.service:
        other.answers = {
            status: FakeAnswer("", status, {"Location": f"{other.service.url}/elsewhere"}) for status in statuses
        }
        report = send(table(spark, statuses), post(other), on="id", on_error="keep", retry=None)
        assert numbers(report) == (2, 3, 0, 0)
        assert {request.method for request in other.service.requests} == {"POST"}
        assert {row.id for row in report.failures.collect()} == {301, 302, 303}


def test_W1_wrong_arguments_are_found_before_anything_is_sent(spark: SparkSession, orders: Orders) -> None:
    df = table(spark, [1])
    stream = spark.readStream.format("rate").load()
    optional = post(orders, key=["id", "n"], optional="n", json_body=["{id}", "{n}"])
    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: send(stream, post(orders, key="value", json_body=["{value}"]), on="value"), "foreachBatch"),
        (lambda: send(df, post(orders), on="di"), "there are id, n"),
        (lambda: send(df, post(orders), on="id", on_error="drop"), "on_error"),  # type: ignore[arg-type]
        (lambda: send(df, post(orders), on="id", capacity=0), "capacity"),
        (lambda: send(df, post(orders), on="id", distinct=1), "distinct"),  # type: ignore[arg-type]
        (lambda: send(df, post(orders), on="id", status_column="s"), "not an option of send"),  # type: ignore[call-arg]
        (lambda: send(df, optional, on=["id", "n"], journal="/tmp/j"), "optional parts"),
        (lambda: send(post(orders), df, on="id"), "swapped"),  # type: ignore[arg-type]
    ]
    for call, words in wrong:
        with pytest.raises(ConfigurationError, match=words):
            call()
    assert orders.ids() == []


def test_W2_what_the_journal_knows_as_sent_or_refused_is_not_sent_again(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "journal")
    orders.answers = {2: FakeAnswer("", 422), 3: FakeAnswer("", 503)}
    df = table(spark, [1, 1, 2, 3, 4], partitions=2)
    enricher = post(orders)
    options: dict[str, Any] = {"on": "id", "journal": journal, "on_error": "keep", "retry": None}
    assert numbers(send(df, enricher, **options)) == (3, 1, 1, 0)
    first = dict.fromkeys(orders.new())
    assert len(first) == 5
    # Only what failed, with its key; other partitions, and a row more of those with 1.
    more = df.union(table(spark, [1])).repartition(3)
    report = send(more, enricher, **options)
    assert numbers(report) == (1, 0, 1, 4)
    assert [row.status for row in report.failures.collect()] == ["failed"]
    second = orders.new()
    assert sorted(order for order, _ in second) == [1, 3]
    assert [one for one in second if one[0] == 3] == [one for one in first if one[0] == 3]
    assert orders.done == {1: 3, 4: 1}
    # Refused ones again, and they are refused again, which the journal knows after that.
    assert numbers(send(more, enricher, resend_refused=True, **options)) == (0, 1, 1, 4)
    third = orders.new()
    assert set(third) < set(first)
    assert sorted(order for order, _ in third) == [2, 3]
    orders.answers = {}
    assert numbers(send(more, enricher, **options)) == (1, 0, 0, 5)
    assert numbers(send(more, enricher, resend_refused=True, **options)) == (1, 0, 0, 5)
    assert orders.ids() == [3, 2]
    assert numbers(send(more, enricher, resend_refused=True, **options)) == (0, 0, 0, 6)
    assert orders.ids() == []
    # J6: a journal of other requests, or of lookups, is refused.
    for call in (
        lambda: send(df, post(orders, "/other"), on="id", journal=journal),
        lambda: enrich(df, enricher, on="id", journal=journal),
    ):
        with pytest.raises(ConfigurationError, match="does not fit"):
            call()


def test_W2_a_key_is_of_its_row_alone_and_a_header_of_the_user_stays(spark: SparkSession, orders: Orders) -> None:
    df = in_partitions(spark, [(1, "a"), (1, "b")], "id int, note string", 1)
    # The second part of the key is in a header only.
    in_header = post(orders, key=["id", "note"], headers={"X-Note": "{note}"})
    send(df, in_header, on=["id", "note"])
    assert len({key for _, key in orders.new()}) == 2
    send(df, post(orders, headers={"idempotency-key": "{id}-mine"}), on="id")
    assert [key for _, key in orders.new()] == ["1-mine"] * 2
    send(df, post(orders, idempotency_header="X-Key"), on="id")
    assert len({request.headers["x-key"] for request in orders.service.requests}) == 2
    assert [key for _, key in orders.new()] == ["", ""]


@FROM_4_0  # Before, Spark gives later tasks the workers that were killed.
def test_W2_a_worker_that_is_killed_costs_only_what_was_in_flight(
    spark: SparkSession, orders: Orders, tmp_path: Path
) -> None:
    rows, capacity = 120, 4
    journal = Journal(tmp_path / "journal", flush_every=0.1)
    orders.answers = {key: FakeAnswer("", 200, delay=0.05) for key in range(rows)}
    df = spark.range(0, rows, numPartitions=1)

    def written() -> set[int]:
        files = (tmp_path / "journal").glob("answers-*.parquet")
        return {key for file in files for key in pq.read_table(file, columns=["id"])["id"].to_pylist()}

    job, outcome = in_background(lambda: send(df, post(orders), on="id", journal=journal, capacity=capacity))
    wait_until(lambda: len(written()) > 20, 60, "rows are in files")
    kept = written()
    kill_workers()
    job.join(60)
    assert isinstance(outcome[0], Exception)
    orders.answers = {}
    report = send(df, post(orders), on="id", journal=journal, capacity=capacity)
    assert report.sent + report.skipped == rows
    assert report.skipped >= len(kept)
    asked = orders.new()
    again = {order: keys for order, keys in _by_order(asked).items() if len(keys) > 1}
    assert kept.isdisjoint(again)
    assert all(len(set(keys)) == 1 for keys in again.values())
    assert orders.done == dict.fromkeys(range(rows), 1)


def _by_order(asked: list[tuple[Any, str]]) -> dict[Any, list[str]]:
    keys: dict[Any, list[str]] = {}
    for order, key in asked:
        keys.setdefault(order, []).append(key)
    return keys


def test_W3_send_runs_once_and_reads_its_input_once(spark: SparkSession, orders: Orders) -> None:
    with FakeService({"0": {"x": 0}, "1": {"x": 1}}) as other:
        looked_up = enrich(
            spark.range(0, 2, numPartitions=2), HttpEnricher(other.url + "/rows/{key}", schema="x int"), on="id"
        )
        orders.answers = {1: FakeAnswer("", 400)}
        report = send(looked_up, post(orders), on="id", on_error="keep")
        assert numbers(report) == (1, 1, 0, 0)
        assert len(other.requests) == 2
        assert sorted(orders.ids()) == [0, 1]
        report.failures.explain()
        for _ in range(2):
            assert [tuple(row)[:3] for row in report.failures.collect()] == [(1, 1, "refused")]
        assert report.failures.repartition(2).count() == 1
        assert orders.ids() == []
        assert "DataFrame" not in repr(report)


def test_W3_no_row_at_all_is_no_call(spark: SparkSession, orders: Orders, tmp_path: Path) -> None:
    report = send(table(spark, []), post(orders), on="id", journal=str(tmp_path))
    assert numbers(report) == (0, 0, 0, 0)
    assert report.failures.collect() == []
    assert orders.ids() == []


def test_W1_rows_over_a_budget_are_failures(spark: SparkSession, orders: Orders) -> None:
    budget = Budget("sent", Limit(1_000), spend={"usd": 2.0}, on_spent="null")
    enricher = post(orders, weigh=lambda keys: {"usd": float(len(keys))})
    report = send(table(spark, [1, 2, 3]), enricher, on="id", on_error="keep", budget=budget, capacity=1)
    assert numbers(report) == (2, 0, 1, 0)
    assert orders.ids() == [1, 2]
