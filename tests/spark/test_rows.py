"""Laws X1 and X2, and L1, L2: which rows come out, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from asyncio_operator.spark import async_udf, enrich, map_partitions
from enrichers import FunctionEnricher
from tests.spark.helpers import BATCH_SIZE, in_partitions, setting, through_sql

pytestmark = pytest.mark.spark


def outcome(key: int) -> list[int] | None:
    """The rows of a key, whatever the answer that gives them looks like; None: its lookup fails."""
    match key % 7:
        case 0 | 4:
            return [key]
        case 1:
            return [key + 2, key, key + 1]
        case 2 | 3:
            return []
        case 5:
            return None
        case _:
            return [key + i for i in range(25)]


def looking_up() -> Callable[[int], Awaitable[Any]]:
    """A function that gives the same, in every form that an answer may have."""

    async def look_up(key: int) -> Any:
        if key % 3:
            await asyncio.sleep(key % 5 / 1000)
        match key % 7:
            case 0 | 4:
                return {"x": key}
            case 1:
                return [{"x": key + 2}, {"x": key}, {"x": key + 1}]
            case 2:
                return None
            case 3:
                return []
            case 5:
                raise ValueError(key)
        return tuple({"x": key + i} for i in range(25))

    return look_up


def finding() -> Callable[[int | None], Awaitable[list[int]]]:
    """A function that gives the values of all rows of a key in one list."""
    look_up = looking_up()

    async def find(key: int | None) -> list[int]:
        answer = None if key is None else await look_up(key)
        return [row["x"] for row in ([answer] if isinstance(answer, dict) else answer or ())]

    return find


def enricher() -> FunctionEnricher:
    return FunctionEnricher(looking_up(), "x long")


Row = tuple[int, int | None, int | None]
Rows = list[Row]


def join(rows: list[tuple[int, int | None]], how: str, on_error: str) -> Rows:
    """The model."""
    joined: Rows = []
    for number, key in rows:
        found = [] if key is None else outcome(key)
        if found:
            joined += [(number, key, x) for x in found]
        elif (on_error == "null") if found is None else (how == "left"):
            joined.append((number, key, None))
    return joined


# The ways to the rows of a join. Where one has fewer options than `enrich`, it joins with those that it has.


def inline(df: DataFrame, options: dict[str, Any]) -> Rows:
    return [tuple(row) for row in enrich(df, enricher(), on="k", **options).collect()]


def distinct(df: DataFrame, options: dict[str, Any]) -> Rows:
    return inline(df, options | {"strategy": "distinct"})


def sql(df: DataFrame, options: dict[str, Any]) -> Rows:
    return [tuple(row) for row in through_sql(df, enricher(), on="k", **options).collect()]


def rdd(df: DataFrame, options: dict[str, Any]) -> Rows:
    """The elements are rows, and the function joins."""
    find, how, on_error = finding(), options.pop("how"), options.pop("on_error")

    async def rows_of(row: tuple[int, int | None]) -> Rows:
        missing: Rows = [(*row, None)] if how == "left" else []
        return [(*row, x) for x in await find(row[1])] or missing

    def without(row: tuple[int, int | None], error: Exception) -> Rows:
        return [(*row, None)]

    hidden = without if on_error == "null" else "skip"
    return map_partitions(df.rdd.map(tuple), rows_of, flatten=True, on_error=hidden, **options).collect()


def udf(df: DataFrame, options: dict[str, Any]) -> Rows:
    """The rows of a key are one array, which is taken apart behind the call."""
    find = async_udf("array<bigint>", on_error="null", capacity=options["capacity"])(finding())
    found = df.withColumn("found", find("k"))
    outer = "_outer" if options["how"] == "left" else ""
    return [tuple(row) for row in found.selectExpr("n", "k", f"explode{outer}(found) AS x").collect()]


@pytest.mark.parametrize(
    "face", [inline, distinct, sql, rdd, udf], ids=["inline", "distinct", "in_sql", "rdd", "async_udf"]
)
@settings(max_examples=settings().max_examples // 12)  # an example is a Spark job, or two
@given(
    keys=st.lists(st.sampled_from([*range(31), None]), min_size=20, max_size=120),
    partitions=st.integers(1, 5),
    batch=st.sampled_from([1, 7, 100]),
    how=st.sampled_from(["left", "inner"]),
    on_error=st.sampled_from(["null", "drop"]),
    mode=st.sampled_from(["ordered", "unordered"]),
    buffer=st.sampled_from([1, 5, None]),
)
def test_X1_X2_rows_out_are_those_of_the_join_in_their_order(
    spark: SparkSession,
    face: Callable[[DataFrame, dict[str, Any]], Rows],
    keys: list[int | None],
    partitions: int,
    batch: int,
    how: str,
    on_error: str,
    mode: str,
    buffer: int | None,
) -> None:
    rows = list(enumerate(keys))
    df = in_partitions(spark, rows, "n long, k long", partitions)
    if face is udf:
        on_error = "null" if how == "left" else "drop"
    options = {"how": how, "on_error": on_error, "mode": mode, "buffer": buffer, "capacity": 10}
    with setting(spark, BATCH_SIZE, batch):
        got = face(df, options)
    expected = join(rows, how, on_error)
    has_order = face is udf or (mode == "ordered" and face is not distinct)
    assert (got if has_order else sorted(got, key=repr)) == (expected if has_order else sorted(expected, key=repr))


def test_X1_no_rows_no_partitions_no_matter(spark: SparkSession) -> None:
    empty = [spark.range(0), spark.range(10).where("id < 0"), in_partitions(spark, [], "id long", 3)]
    for df in empty:
        assert enrich(df, enricher(), on="id").collect() == []
    assert enrich(in_partitions(spark, [(4,)], "id long", 4), enricher(), on="id").collect() == [(4, 4)]


def test_keys_of_every_family_reach_the_enricher_as_the_values_they_are(spark: SparkSession) -> None:
    async def look_up(key: Any) -> Any:
        return {"x": ", ".join(f"{type(part).__name__} {part}" for part in key)}

    parts = {
        "1Y": "int 1",
        "-7L": "int -7",
        "1.5D": "float 1.5",
        "double('nan')": "float nan",
        "1.50BD": "Decimal 1.50",
        "'ß'": "str ß",
        "true": "bool True",
        "date'2020-02-29'": "date 2020-02-29",
        "timestamp'2020-02-29 12:00:00.5 Europe/Berlin'": "datetime 2020-02-29 11:00:00.500000+00:00",
        "timestamp_ntz'2020-02-29 12:00:00'": "datetime 2020-02-29 12:00:00",
        "X'00FF'": "bytes b'\\x00\\xff'",
    }
    df = spark.range(2).selectExpr(*(f"{sql} AS k{i}" for i, sql in enumerate(parts)))
    with setting(spark, "spark.sql.session.timeZone", "America/New_York"):
        out = enrich(df, FunctionEnricher(look_up, "x string"), on=df.columns).collect()
    assert [row.x for row in out] == [", ".join(parts.values())] * 2
