"""The examples with Spark: what they find is right, they show it, and they leave nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Cache
from asyncio_operator.testing import FakeService
from examples import async_column
from examples.enrich_flights import flights_of, read_data
from examples.enrich_from_http import AIRPORT, SMALL_BATCHES, enriched, rows_of, service
from examples.partitions import MEASURED, airport_of, airports_of, joined, one_by_one, planned
from examples.send_orders import Shop, orders_of, sent
from tests.examples.programs import frames, run_example, start_example, temporary_directory
from tests.spark.helpers import setting

pytestmark = pytest.mark.spark


def test_every_order_gets_its_own_offer(spark: SparkSession) -> None:
    with async_column.service() as prices:
        rows = (
            async_column.orders_of(spark, 500)
            .withColumn("offer", async_column.offer(prices.url)("product", "country", "pieces"))
            .collect()
        )
        assert len(prices.requests) > 500, "of the answers 5 % are failures, from a seed"
        assert prices.most_at_once <= 40
    assert [row.id for row in rows] == list(range(500))
    for row in rows:
        price = async_column.PRICES.get((row.product, row.country))
        rebate = 0.1 if row.pieces >= 10 else 0.0
        assert row.offer == (None if price is None else (price, rebate, row.pieces * price * (1 - rebate)))


def test_it_shows_the_offers(play: Callable[..., str]) -> None:
    printed = play("async_column", "--orders", "300")
    assert re.search(r"^\|  0\|\s*ink\|\s*FR\|\s*\d+\|\s*4\.75\|\s*0\.[01]\|", printed, re.MULTILINE), printed
    assert re.search(r"^The service got \d+ requests, at most \d+ at once\.$", printed, re.MULTILINE)


def test_X16_it_finds_the_tiers_that_sparks_join_finds(play: Callable[..., str]) -> None:
    printed = play("orders_as_of", "--orders", "2000")
    assert "The join found the same tiers. The service got 4 requests." in printed
    assert "no tier yet: " in printed
    assert "silver, 2 %: " in printed


def test_it_finds_the_totals_of_customers_and_refuses_a_wrong_argument(play: Callable[..., str]) -> None:
    printed = play("sql_lookup", "--orders", "3000")
    counts = [int(count) for count in re.findall(r"^\|customer \d*[13579]\s*\|(\d+)\s*\|\d+", printed, re.MULTILINE)]
    assert len(counts) == 3
    assert counts == sorted(counts, reverse=True)
    assert re.findall(r"^\|(..)\s*\|\d+\s*\|\d+\s*\|(?:found|missing)", printed, re.MULTILINE) == ["DE", "FR", "NL"]
    assert """ConfigurationError: how is 'outer'; it must be "left" | "inner\"""" in printed


def test_W2_every_order_is_taken_once_although_a_worker_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    orders = orders_of(spark, 400)
    shop = Shop(200)
    with shop.service:
        with pytest.raises(Exception, match=r"(?i)python worker"):
            sent(orders, shop.service.url, tmp_path)
        report = sent(orders, shop.service.url, tmp_path)
        while report.failed:
            report = sent(orders, shop.service.url, tmp_path)
    assert shop.killed
    wanted = Counter((row["product"], row["pieces"]) for row in orders.collect())
    assert {order: count for order, count in shop.taken.items() if count} == {
        order: count for order, count in wanted.items() if order[1] != 7
    }


def test_it_shows_what_was_sent_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("send_orders", "--orders", "300")
    assert "The job failed: a worker was killed after " in printed
    [numbers] = re.findall(r"SendReport\(sent=(\d+), refused=(\d+), failed=(\d+), skipped=(\d+)\)", printed)
    assert sum(map(int, numbers)) == 300
    assert int(numbers[3]) > 0
    assert re.search(r"^The service got \d+ requests and took \d+ orders\.$", printed, re.MULTILINE)


ROWS = 8_000
JOINED = 1_000


def test_the_plan_is_right_and_each_flight_gets_its_airport(spark: SparkSession) -> None:
    data = read_data()
    known = rows_of(data["airports"])
    codes = sorted(set(data["flights"]["dest"][:ROWS].to_pylist()))
    flights = flights_of(spark, data["flights"], ROWS)
    with FakeService(known, latency=0.001) as service:
        told = planned(flights, service.url)
        assert (told.rows, told.null_keys, told.distinct_keys) == (ROWS, 0, len(codes))
        assert len(codes) <= told.cached_calls <= told.calls == told.lookups < ROWS / 10
        assert told.latency is not None
        assert told.cached_seconds is not None
        assert told.latency >= 0.001
        assert 0 < len(service.requests) <= MEASURED
        service.requests.clear()
        pairs = joined(flights.limit(JOINED).repartition(3).cache().rdd, service.url).collect()
        asked = Counter(request.path for request in service.requests)
    assert asked.keys() == {f"/rows/{flight.dest}" for flight, _ in pairs}
    assert max(asked.values()) <= 3  # once in each task
    assert len(pairs) == JOINED
    for flight, airport in pairs:
        row = known.get(flight.dest)
        assert airport == (None if row is None else airport_of(row))


def test_the_three_ways_give_the_same(spark: SparkSession) -> None:
    known = rows_of(read_data()["airports"])
    codes = spark.sparkContext.parallelize(["DEN", "LAX", "nowhere", "DEN"], 2)
    with FakeService(known, latency=0.001) as service:
        airports = one_by_one(codes, service.url).collect()
        assert airports_of(codes, service.url).collect() == airports
        assert airports_of(codes, service.url, Cache()).collect() == airports
    assert airports[0] == airports[3] == ("Denver Intl", 1655.4)
    assert airports[2] is None


def test_it_tells_the_plan_and_the_airports_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("partitions", "--rows", "3000")
    assert re.search(r"^3,000 rows in \d+ tasks, 2 at once: 0 without a key, \d+ distinct", printed, re.MULTILINE)
    assert re.search(r"^with plain mapPartitions +400 +400 ", printed, re.MULTILINE)
    assert re.search(r"^with map_partitions +400 +400 ", printed, re.MULTILINE)
    assert re.search(r"^with map_partitions and a cache +3,000 +\d{2,3} ", printed, re.MULTILINE)


def test_every_flight_comes_out_once_with_its_airport_and_the_truth_about_its_lookup(spark: SparkSession) -> None:
    from asyncio_operator.spark import EnrichmentMetrics

    data = read_data()
    flights = flights_of(spark, data["flights"], ROWS)
    metrics = EnrichmentMetrics(spark)
    [(name, size)] = SMALL_BATCHES.items()
    with service(data["airports"]) as airports, setting(spark, name, size):
        result = enriched(flights, airports.url, metrics).toArrow()
    told = result["lookup"].to_pylist()
    expected = flights_with_airports(frames(), ROWS)
    assert result.num_rows == ROWS
    assert result.drop_columns("lookup").cast(expected.schema).equals(expected)
    is_known = [name is not None for name in expected["dest_name"].to_pylist()]
    assert [each["status"] for each in told] == ["found" if known else "missing" for known in is_known]
    assert {each["source"] for each in told} >= {"call", "cache"}
    for each in told:
        assert (each["attempts"] == 0) == (each["latency_ms"] is None) == (each["source"] == "cache")
        assert each["error_type"] is None
    statistics = metrics.statistics()
    assert (statistics.rows, statistics.missing, statistics.failures) == (ROWS, is_known.count(False), 0)
    # Of the requests 10 % are answered by 503, from a seed, and there are at least as many as airports.
    assert statistics.retries > 0
    keys = len(set(expected["dest"].to_pylist()))
    assert keys < len(airports.requests) < ROWS / 10
    assert statistics.calls < ROWS / 10


def flights_with_airports(data: dict[str, pd.DataFrame], rows: int) -> pa.Table:
    """What a join in pandas gives."""
    airports = data["airports"][["faa", *AIRPORT]]
    airports.columns = ["dest", *(f"dest_{name}" for name in AIRPORT)]
    joined = data["flights"].head(rows).merge(airports, on="dest", how="left")
    return pa.Table.from_pandas(joined, preserve_index=False).replace_schema_metadata(None)


def test_it_tells_what_became_of_the_lookups_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("enrich_from_http", "--rows", "3000")
    assert re.search(r"^\|01-01 10:00\|UA 1545\| IAH\|George Bush", printed, re.MULTILINE)
    counts = re.findall(r"^\|\s*(found|missing)\|\s*(call|cache|shared)\|\s*(\d+)\|\s*(\d+)\|$", printed, re.MULTILINE)
    assert sum(int(count) for *_, count in counts) == 3000
    assert "3,000 rows, " in printed
    assert "The service got " in printed


REVIEWS = "600"


def test_each_text_is_asked_once_and_the_service_refuses_nothing(play: Callable[..., str]) -> None:
    printed = play("model_calls", "--rows", REVIEWS)
    [texts] = re.findall(r"^600 reviews with (\d+) different texts\.$", printed, re.MULTILINE)
    counts = re.findall(
        r"^\|\s*(found|failed)\|\s*(the answer does not fit|NULL).*\|\s*(\d+)\|$", printed, re.MULTILINE
    )
    assert {(status, reason) for status, reason, _ in counts} == {
        ("found", "NULL"),
        ("failed", "the answer does not fit"),
    }
    assert sum(int(count) for *_, count in counts) == 600
    [requests] = re.findall(r"^([\d,]+) requests with ", printed, re.MULTILINE)
    # One for the sentiment of each text, and one for up to 50 vectors; the texts are in up to 20 tasks.
    assert int(texts) < int(requests.replace(",", "")) <= int(texts) + 20
    assert "Refused with 429: none. Windows with too much: none." in printed
    [(spent, earned)] = re.findall(
        r"^Spent: ([\d.]+) of 1.0000 dollars; the service has earned ([\d.]+)\.$", printed, re.MULTILINE
    )
    assert spent == earned > "0.0"


@pytest.mark.faults
def test_G6_the_job_ends_before_it_spends_more_than_it_may() -> None:
    with temporary_directory() as directory:
        done = start_example("model_calls", "--rows", REVIEWS, "--spend", "0.005", directory=directory)
    assert done.returncode == 1
    assert "BudgetExceeded: the budget 'model-calls': spend limit 0.005 usd" in done.stderr
    [earned] = re.findall(r"the service has earned ([\d.]+)\.$", done.stdout, re.MULTILINE)
    assert 0.004 < float(earned) <= 0.005


STREAMED = 25_000


def test_every_flight_is_written_once_with_its_plane(play: Callable[..., str], tmp_path: Path) -> None:
    write(play, tmp_path / "kept")


def write(run: Callable[..., str], kept: Path) -> pd.DataFrame:
    """Run the example; what it must write."""
    said = run("streaming_enrichment", "--rows", str(STREAMED), "--directory", str(kept)).splitlines()
    batches = [re.findall(r"[\d,.]+", line) for line in said if re.fullmatch(r" +\d+( +[\d,.]+){8}", line)]
    figures = [[int(number.replace(",", "")) for number in batch[:6]] for batch in batches]
    assert [batch[:2] for batch in figures] == [[0, 20_000], [1, 5_000]]
    data = frames()
    expected = flights_with_planes(data, STREAMED)
    found = int(expected["plane_seats"].notna().sum())
    assert sum(batch[2] for batch in figures) == found
    assert sum(batch[3] for batch in figures) == STREAMED - found
    assert [batch[5] > 0 for batch in figures] == [False, True], "only the second micro-batch finds planes in the cache"
    assert any(
        line.startswith(f"25,000 rows, {found:,} found, {STREAMED - found:,} missing, 0 failed") for line in said
    )
    assert said[-1] == f"25,000 flights are in the output, {kept / 'out'}"
    check_output(kept, expected)
    return expected


# That a query goes on from its checkpoint is in tests/spark/test_streaming.py; this takes two Sparks.
@pytest.mark.faults
@pytest.mark.timeout(240)
def test_a_second_start_adds_only_what_is_new(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    expected = write(run_example, kept)

    # One more file, as if it had come while the program was not there.
    more = pq.read_table(kept / "in" / "0002.parquet")
    more = more.set_column(0, "number", pa.array(range(STREAMED, STREAMED + more.num_rows)))
    pq.write_table(more, kept / "in" / "0003.parquet")
    said = run_example("streaming_enrichment", "--directory", str(kept)).splitlines()
    assert said[-1] == f"30,000 flights are in the output, {kept / 'out'}"
    assert any(line.startswith("5,000 rows: ") for line in said)
    again = expected[expected["number"] >= 20_000].assign(number=lambda rows: rows["number"] + 5_000)
    check_output(kept, pd.concat([expected, again]))


def check_output(kept: Path, expected: pd.DataFrame) -> None:
    written = pq.read_table(kept / "out").sort_by("number")
    table = pa.Table.from_pandas(expected, preserve_index=False)
    assert written.num_rows == table.num_rows
    assert written.select(table.schema.names).cast(table.schema).equals(table)


def flights_with_planes(data: dict[str, pd.DataFrame], rows: int) -> pd.DataFrame:
    planes = data["planes"][["tailnum", "year", "manufacturer", "model", "seats"]]
    planes.columns = ["tailnum", *(f"plane_{name}" for name in planes.columns[1:])]
    flights = data["flights"].head(rows).assign(number=range(rows))
    return flights.merge(planes, on="tailnum", how="left")


# The other tests of these examples call them in the Spark of the tests; that of enrich_flights starts programs.
@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("async_column", ["--orders", "300"], "The service got "),
        ("enrich_from_http", ["--rows", "3000"], "3,000 rows, "),
        ("model_calls", ["--rows", "600"], "Refused with 429: none."),
        ("orders_as_of", ["--orders", "3000"], "The join found the same tiers."),
        ("partitions", ["--rows", "3000"], "with map_partitions and a cache "),
        ("send_orders", ["--orders", "600"], "The job failed: a worker was killed after "),
        ("sql_lookup", ["--orders", "3000"], "ConfigurationError: how is 'outer'"),
    ],
)
def test_as_a_program_it_leaves_nothing(name: str, arguments: list[str], told: str) -> None:
    assert told in run_example(name, *arguments)
