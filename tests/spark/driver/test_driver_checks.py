"""Law X4: what can be wrong on the driver is reported there, before any job, by name, with what to do."""

from __future__ import annotations

import inspect
import logging
import re
import threading
import traceback
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator import AsyncWaitOperator, ConfigurationError, Enricher, Journal
from asyncio_operator.engine.options import CALL_OPTIONS, CallOptions
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark import EnrichmentMetrics, async_udf, enrich, enrich_with, plan, register_lookup, send
from asyncio_operator.spark.driver.build_task import EnrichOptions
from asyncio_operator.trace import Trace
from enrichers import FunctionEnricher, HttpEnricher, PostgresEnricher, RedisEnricher, TableEnricher
from tests.spark.helpers import FROM_4_0

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_job_starts")]


class Keyed(Enricher):
    """An enricher that says what its key is."""

    def __init__(self, **key: pa.DataType) -> None:
        self._key = pa.schema(list(key.items()))

    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    def key_schema(self) -> pa.Schema:
        return self._key

    async def lookup(self, key: Any) -> Any:
        return {"x": 1}


def test_the_options_and_their_defaults_are_those_of_the_bundle() -> None:
    given = defaults(enrich)
    bundle = {field.name: field.default for field in fields(EnrichOptions)} | {"on": inspect.Parameter.empty}
    for apart in ("df", "enricher", "metrics", "trace"):
        del given[apart]
    assert given == bundle


def defaults(face: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(face).parameters.items()}


@pytest.mark.parametrize("face", [AsyncWaitOperator, Lookup, enrich, async_udf])
def test_every_face_takes_the_options_of_calls(face: Any) -> None:
    # A job that hangs costs more than one that fails: `enrich` has a deadline. An enricher may know what to retry.
    same = {name: getattr(CallOptions(), name) for name in CALL_OPTIONS if name not in ("timeout", "retry")}
    assert {name: defaults(face)[name] for name in same} == same
    assert "timeout" in defaults(face)
    assert defaults(face)["retry"] == ("default" if face in (Lookup, enrich) else None)


def test_a_plan_takes_options_of_enrich_with_their_defaults() -> None:
    both = defaults(plan).keys() & defaults(enrich).keys()
    assert {name: defaults(plan)[name] for name in both} == {name: defaults(enrich)[name] for name in both}
    # `others` are the options of `enrich` that change no plan.
    assert defaults(plan).keys() - both == {"latency", "sample", "others"}


def source(schema: Any = "x long, y string") -> FunctionEnricher:
    async def look_up(key: Any) -> Any:
        return {"x": 1}

    return FunctionEnricher(look_up, schema)


JSON = [] if pyspark.__version__ < "4.0" else ["parse_json('1') AS json"]


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr(
        "id",
        "cast(id AS string) AS text",
        "id AS `a.b`",
        "array(id) AS list",
        "map(id, id) AS map",
        "named_struct('a', id) AS struct",
        "interval '1' DAY AS days",
        *JSON,
        "null AS nothing",
        "current_date() AS today",
        "current_timestamp() AS now",
        "localtimestamp() AS here",
        "true AS yes",
        "X'00' AS bytes",
        "1.5BD AS price",
    )


def refused(df: Any, enricher: Any = None, **options: Any) -> str:
    """What `enrich` says, and `plan` in the same words."""
    told = []
    for face in (enrich, plan):
        with pytest.raises(ConfigurationError) as caught:
            face(df, source() if enricher is None else enricher, **{"on": "id"} | options)
        told.append(re.sub("0x[0-9a-f]+", "", str(caught.value)))
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity is 0; it must be an int of at least 1"),
        ({"buffer": 0}, "buffer is 0; it must be an int of at least 1"),
        ({"timeout": -1}, "timeout is -1; it must be a number of seconds or a timedelta, finite and not negative"),
        ({"mode": "sorted"}, """mode is 'sorted'; it must be "ordered" | "unordered\""""),
        ({"how": "outer"}, """how is 'outer'; it must be "left" | "inner" | "required\""""),
        ({"on_error": "ignore"}, """on_error is 'ignore'; it must be "fail" | "null" | "drop\""""),
        ({"prefix": None}, "prefix is None; it must be text"),
        ({"prefix": "\ud800"}, r"prefix is '\ud800'; it must be text"),
        ({"status_column": ""}, "status_column is ''; it must be a name or None"),
        ({"status_column": "\ud800"}, r"status_column is '\ud800'; it must be a name or None"),
        ({"columns": {"x"}}, "columns is {'x'}; it must be a list"),
        (
            {"columns": ["z"]},
            "columns names 'z', which is not a column of FunctionEnricher(source.<locals>.look_up, x, y); there",
        ),
        ({"columns": ["X"]}, "look_up, x, y); did you mean 'x'?"),
        ({"columns": ["x", "x"]}, "the column 'x' of FunctionEnricher"),
        ({"on": "nope"}, "on names 'nope', which is not a column of the DataFrame; there are id, text, a.b"),
        ({"on": "txet"}, "on names 'txet', which is not a column of the DataFrame; did you mean 'text'?"),
        ({"on": "struct.a"}, "on names 'struct.a', which is not a column"),
        ({"on": []}, "on is []; it must be the name of a column, a list of names, or a mapping"),
        ({"on": ["id", 5]}, "on is ['id', 5]"),
        ({"on": {"id": 5}}, "on is {'id': 5}"),
        ({"on": {"id": "id"}}, "does not name its key columns; give a list of columns"),
        ({"on": {"id"}}, "on is {'id'}"),
        ({"join_hint": "merge"}, "join_hint is 'merge', but only strategy=\"distinct\" joins"),
        ({"join_hint": "nested"}, "join_hint is 'nested'; it must be"),
        ({"strategy": "both"}, 'strategy is \'both\'; it must be "inline" | "distinct"'),
        ({"strategy": "distinct", "event_time": "at"}, 'strategy="distinct" keeps no order of rows; use "inline"'),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_X4_a_wrong_option_is_told(df: DataFrame, options: dict[str, Any], message: str) -> None:
    assert message in refused(df, **options)


def test_X4_no_hint_for_the_join_is_an_option_of_both_strategies(df: DataFrame) -> None:
    assert enrich(df, source(), on="id", join_hint=None).columns[-2:] == ["x", "y"]


def test_X4_what_is_refused_leaves_metrics_and_a_trace_as_they_were(
    spark: SparkSession, df: DataFrame, tmp_path: Path
) -> None:
    metrics, trace = EnrichmentMetrics(spark), Trace()
    trace.started(0.0)
    enrich(df, source(), on="id", journal=Journal(tmp_path, identity="another"))
    stream = spark.readStream.format("rate").load().select(F.col("value").alias("id"))
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        *((df, {name: "nope"}, name) for name in ("on", "how", "metrics")),
        (df, {"journal": Journal(tmp_path, identity="mine")}, "identity"),
        (stream, {"strategy": "distinct"}, 'strategy="distinct" reads the DataFrame twice'),
    ]
    options: dict[str, Any] = {"on": "id", "metrics": metrics, "trace": trace}
    for frame, wrong, says in cases:
        with pytest.raises(ConfigurationError, match=says):
            enrich(frame, source(), **options | wrong)
    with pytest.raises(ConfigurationError):
        register_lookup(spark, "look", source(), columns=["nope"], metrics=metrics, trace=trace)
    with pytest.raises(ConfigurationError, match="identity"):
        send(
            df,
            HttpEnricher("http://h/{key}", method="POST", schema="x long"),
            on="id",
            metrics=metrics,
            journal=Journal(tmp_path, identity="mine"),
        )
    assert len(trace.events()) == 1, "it was not cleared"
    assert not metrics._ledger.lookups(), "no page shows a lookup that never began"


@pytest.mark.parametrize("column", ["list", "map", "struct", "days", pytest.param("json", marks=FROM_4_0), "nothing"])
def test_X4_a_column_whose_type_can_be_no_key_is_told(df: DataFrame, column: str) -> None:
    message = refused(df, on=["id", column])
    assert (
        f"key column {column!r} is {df.schema[column].dataType.simpleString()}; a key must be a number, text,"
        in message
    )
    assert "cast it first" in message


FAMILIES = {
    "id": pa.int32(),
    "price": pa.float64(),
    "text": pa.large_string(),
    "today": pa.date32(),
    "now": pa.timestamp("us", "UTC"),
    "here": pa.timestamp("us"),
    "yes": pa.bool_(),
    "bytes": pa.binary(),
}


@pytest.mark.parametrize("column", FAMILIES)
def test_X4_a_key_that_can_never_match_is_told_and_one_that_can_is_taken(df: DataFrame, column: str) -> None:
    for other, data_type in FAMILIES.items():
        enricher = Keyed(k=data_type)
        if other == column or {other, column} == {"id", "price"}:
            assert enrich(df, enricher, on=column).columns[-1] == "x"
        else:
            message = refused(df, enricher, on=column)
            assert re.search(rf"key column '{column}' is .*, which never matches key column 'k' of .*Keyed", message)


def test_X4_keys_are_matched_by_name_and_else_by_position(df: DataFrame) -> None:
    enricher = Keyed(text=pa.string(), id=pa.int64())
    for on in (["id", "text"], ["text", "id"], {"id": "id", "text": "text"}, ["text", "price"], ("text", "id")):
        assert enrich(df, enricher, on=on).columns[-1] == "x"
    assert enrich(df.withColumnsRenamed({"id": "i"}), enricher, on={"i": "id", "text": "text"}).columns[-1] == "x"
    assert "key column 'price' is decimal(2,1), which never matches key column 'text'" in refused(
        df, enricher, on=["price", "text"]
    )
    assert "on has 1 columns, ['id']; the enricher's key has 2: ['text', 'id']" in refused(df, enricher, on="id")
    assert "on has 3 columns" in refused(df, enricher, on=["id", "text", "id"])
    for on in ({"id": "id"}, {"id": "id", "text": "nope"}, {"id": "id", "text": "id"}, {}):
        message = refused(df, enricher, on=on)
        assert "it must map columns of the DataFrame to the enricher's key columns ['text', 'id'], each once" in message
        assert "wrong way round" not in message


def test_X4_a_mapping_that_is_reversed_is_told_so(df: DataFrame) -> None:
    message = refused(df, Keyed(k=pa.int64(), word=pa.string()), on={"k": "id", "word": "text"})
    assert "It is the wrong way round; write on={'id': 'k', 'text': 'word'}" in message


@pytest.mark.parametrize("what", ["lock", "spark", "df", "generator", "socket"])
def test_X4_a_function_that_cannot_be_pickled_is_told(spark: SparkSession, df: DataFrame, what: str) -> None:
    import socket

    with socket.socket() as open_socket:
        captured = {
            "lock": threading.Lock(),
            "spark": spark,
            "df": df,
            "generator": (i for i in range(3)),
            "socket": open_socket,
        }[what]

        async def look_up(key: Any) -> Any:
            return {"x": captured}

        message = refused(df, FunctionEnricher(look_up, "x long"))
    assert "look_up, x) cannot be pickled, so it cannot be sent to the workers" in message
    assert "Make clients, locks and sessions in its open()" in message


def test_X4_a_column_that_spark_cannot_hand_to_python_is_told(spark: SparkSession) -> None:
    expressions = ["interval '1' MONTH", "named_struct('a', 1, 'a', 2)"]
    if pyspark.__version__ >= "4.0":
        # Before, PySpark could not even read the schema.
        expressions.append("make_interval(1)")
    for expression in expressions:
        message = refused(spark.range(1).selectExpr("id", f"{expression} AS odd"))
        assert "column 'odd' is " in message
        assert "which Spark cannot pass to Python in Arrow: drop it, or cast it first" in message


def test_X4_an_error_of_enrich_comes_with_few_frames(df: DataFrame) -> None:
    lock = threading.Lock()

    async def look_up(key: Any) -> Any:
        return {"x": lock}

    wrong: list[dict[str, Any]] = [
        {"on": "nope"},
        {"enricher": FunctionEnricher(look_up, "x long")},
        {"enricher": FunctionEnricher(look_up, pa.schema([("x", pa.month_day_nano_interval())]))},
    ]
    for options in wrong:
        with pytest.raises(ConfigurationError) as caught:
            enrich(df, options.get("enricher", source()), on=options.get("on", "id"))
        told = "".join(traceback.format_exception(caught.value))
        assert told.count("Traceback") == 1
        assert told.count('  File "') <= 7


@pytest.mark.parametrize("thing", [None, 5, "df", [1, 2]])
def test_X4_what_is_no_dataframe_is_told(thing: Any) -> None:
    assert "it must be a Spark DataFrame" in refused(thing)


def test_X4_an_enricher_whose_schemas_are_none_is_told(df: DataFrame) -> None:
    class Odd(Keyed):
        def schema(self) -> Any:
            return "x long"

    class OddKey(Keyed):
        def key_schema(self) -> Any:
            return ["id"]

    assert ".schema() returned 'x long'; it must return a pyarrow.Schema" in refused(df, Odd())
    assert ".key_schema() returned ['id']; it must return a pyarrow.Schema or None" in refused(df, OddKey())
    twice = Keyed()
    twice.schema = lambda: pa.schema([("x", pa.int8()), ("x", pa.int8())])  # type: ignore[method-assign]
    assert "the column 'x' of " in refused(df, twice)


def test_X4_metrics_need_a_session(spark: SparkSession) -> None:
    for thing in (None, "spark", object()):
        with pytest.raises(ConfigurationError, match="EnrichmentMetrics needs a"):
            EnrichmentMetrics(thing)  # type: ignore[arg-type]


def test_a_long_list_of_columns_is_cut_in_the_message(spark: SparkSession) -> None:
    df = spark.range(1).selectExpr(*(f"id AS c{i}" for i in range(40)))
    assert "c29, and 10 more" in refused(df, on="nope")


def test_the_enricher_is_asked_for_its_schema_once(df: DataFrame) -> None:
    asked = []

    class Counted(Keyed):
        def schema(self) -> pa.Schema:
            asked.append(1)
            return super().schema()

    enrich(df, Counted(id=pa.int64()), on="id")
    assert asked == [1]


def test_X4_enrich_with_knows_the_options_before_a_dataframe_comes() -> None:
    with pytest.raises(ConfigurationError, match="'capcity' is not an option of enrich; did you mean 'capacity'"):
        enrich_with(source(), on="id", capcity=5)
    with pytest.raises(ConfigurationError, match="on is not given"):
        enrich_with(source(), capacity=5)


@pytest.mark.parametrize(
    ("cast", "written"),
    [("double", "7.0"), ("float", "7.0"), ("decimal(5,2)", "7.00"), ("decimal(5)", ""), ("int", "")],
)
def test_X4_a_fraction_that_would_go_into_a_url_is_a_warning(
    df: DataFrame, caplog: pytest.LogCaptureFixture, cast: str, written: str
) -> None:
    numbers = df.selectExpr(f"cast(id AS {cast}) AS number")
    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        enrich(numbers, HttpEnricher("http://localhost/{key}", schema="x long"), on="number")
    assert (f"7 is sent as {written}," in caplog.text) == bool(written)
    assert ("cast the column to long" in caplog.text) == bool(written)


def test_X4_a_fraction_in_json_is_no_warning(df: DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    body = HttpEnricher("http://localhost/", method="POST", json_body={"id": "{key}"}, schema="x long")
    enrich(df, body, on="price")
    assert not caplog.text


@pytest.mark.parametrize("composite", [False, True])
def test_X4_keys_that_can_never_be_sent_are_refused(df: DataFrame, composite: bool) -> None:
    more = df.selectExpr("*", "cast(id AS double) AS ratio", "cast(id AS float) AS part", "cast(id AS byte) AS small")
    template, key = ("{a}:{b}", ["a", "b"]) if composite else ("{key}", "key")
    redis = RedisEnricher("redis://localhost", schema="x long", kind="string", key_template=template, key=key)
    url = "http://localhost/" + template.replace(":", "/")
    sent = HttpEnricher(url, schema="x long", key=tuple(key) if composite else "key")
    for column in ("now", "here", "yes", "price", "ratio", "part", "bytes", "text", "today", "id", "small"):
        on = ["id", column] if composite and column != "id" else ["id", "text"] if composite else column
        refusing: list[Enricher] = [redis] if column in ("now", "here", "yes", "price", "ratio", "part") else []
        refusing += [sent] if column == "bytes" else []
        for enricher in (redis, sent):
            if enricher in refusing:
                assert f"key column '{column}' is " in refused(more, enricher, on=on)
            else:
                enrich(more, enricher, on=on)


def test_X4_a_key_that_never_matches_is_refused_with_the_cast(df: DataFrame) -> None:
    told = refused(df, Keyed(k=pa.timestamp("us")), on="now")
    assert "F.col('now').cast('timestamp_ntz')" in told
    assert "time zone of the session" in told
    assert "F.col('here').cast('timestamp')" in refused(df, Keyed(k=pa.timestamp("us", "UTC")), on="here")
    assert "F.col('text').cast('int')" in refused(df, Keyed(k=pa.int32()), on="text")


async def title(key: Any) -> Any:
    return {"title": str(key)}


titled = FunctionEnricher(title, "title string")


@pytest.mark.parametrize(
    ("mistake", "answer"),
    [
        ({"df": pandas.DataFrame({"id": [1]})}, "df is a pandas DataFrame; use createDataFrame"),
        ({"df": pa.table({"id": [1]})}, "df is a pyarrow Table; use createDataFrame"),
        ({"swapped": True}, "df and enricher are swapped"),
        ({"cache": 60}, "cache is 60; it must be a Cache, True, or None, as in cache=Cache(...)"),
        (
            {"rate_limit": "50/s"},
            "rate_limit is '50/s'; it must be a RateLimit, a number of calls in a second, or None, "
            "as in rate_limit=RateLimit(...)",
        ),
        ({"journal": 5}, "journal is 5; it must be a Journal, a path, or None, as in journal=Journal(...)"),
        ({"budget": "usd"}, "budget is 'usd'; it must be a Budget, or None, as in budget=Budget(...)"),
        ({"trace": True}, "trace is True; it must be a Trace, or None, as in trace=Trace(...)"),
        ({"metrics": EnrichmentMetrics}, "it must be an EnrichmentMetrics, as in EnrichmentMetrics(spark)"),
        ({"on": "s.product"}, "make it a column first, as in df.withColumn('product', F.col('s.product'))"),
        ({"on": "orders.id"}, "write 'id', without the alias, or make it a column first, as in df.withColumn('key', "),
        ({"on": ["id", "id"]}, "on has the column 'id' twice"),
        ({"on": ["id", "ID"]}, "on has the column 'ID' twice"),
        ({"columns": "titel"}, "columns names 'titel', which is not a column of"),
    ],
)
def test_X4_a_mistake_is_answered_with_what_to_write(df: DataFrame, mistake: dict[str, Any], answer: str) -> None:
    given, options = mistake.pop("df", df.selectExpr("*", "struct(id AS product) AS s")), {"on": "id"} | mistake
    first, second = (titled, given) if options.pop("swapped", False) else (given, titled)
    assert answer in refused(first, second, **options)


def test_X4_a_column_as_key_is_answered_with_what_to_write(df: DataFrame) -> None:
    for on in (df.id, df.id + 1):
        assert "make it a column first, as in df.withColumn" in refused(df, on=on)


def test_X4_a_key_that_is_not_given_is_required() -> None:
    for make in (
        lambda: PostgresEnricher("postgresql://localhost/db", table="t"),
        lambda: TableEnricher(pa.table({"id": [1]}), key=None),  # type: ignore[arg-type]
        lambda: HttpEnricher("http://localhost/{key}", schema="x long", key=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError, match="key is required: a column name or a list of names"):
            make()


@pytest.mark.parametrize("short", [True, False])
def test_options_may_be_given_in_short(df: DataFrame, tmp_path: Path, short: bool) -> None:
    for name in ("hedge", "circuit_breaker", "cache"):
        option: Any = {name: short}
        assert enrich(df, titled, on="id", **option).columns[-1] == "title"
    assert enrich(df, titled, on="id", columns="title" if short else ["title"]).columns[-1] == "title"
    options = EnrichOptions(on="id", journal=str(tmp_path / "j") if short else tmp_path / "j")  # type: ignore[arg-type]
    assert options.journal == Journal(str(tmp_path / "j"))


# -- wrong enrichers


class Working(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int32())])

    async def lookup(self, key: Any) -> Any:
        return {"x": 1}


class PlainLookup(Working):
    def lookup(self, key: Any) -> Any:
        return {"x": 1}


class PlainOpen(Working):
    def open(self) -> None:  # type: ignore[override]
        pass


class NoLookup(Enricher):
    def schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int32())])


class NoBatch(Working):
    max_batch = 0


class RowsElsewhere(Working):
    async def lookup_rows(self, keys: Any) -> Any:
        return None


async def function(key: Any) -> Any:
    return None


@pytest.mark.parametrize(
    ("enricher", "problem"),
    [
        (Working, "the class Working; pass an object"),
        (function, '@enricher\\("column type'),
        (PlainLookup(), "PlainLookup.lookup is an ordinary function; it must be `async def lookup`"),
        (PlainOpen(), "PlainOpen.open is an ordinary function"),
        (NoLookup(), r"NoLookup has no lookup of its own; write `async def lookup\(self, key\)`, `lookup_columns`, or"),
        (NoBatch(), "NoBatch.max_batch is 0; it must be an int of at least 1"),
        (RowsElsewhere(), "RowsElsewhere has lookup_rows, .*: it needs in_memory = True and lookup_columns"),
    ],
)
def test_X4_a_wrong_enricher_is_told_on_the_driver(spark: SparkSession, enricher: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        enrich(spark.range(1), enricher, on="id")
