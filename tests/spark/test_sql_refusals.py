"""Law X4 for table functions: what is wrong is reported before a job runs, as by `enrich`, with the argument."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.spark import enrich, register_lookup
from enrichers import FunctionEnricher

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("no_job_starts")]


def source() -> FunctionEnricher:
    async def look_up(key: Any) -> Any:
        return {"x": 1}

    return FunctionEnricher(look_up, "x long, y string")


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register_lookup(spark, "look", source())
    spark.range(3).selectExpr("id", "array(id) AS list", "id AS `a.b`", "'' AS text").createOrReplaceTempView("things")


def refused(spark: SparkSession, arguments: str, function: str = "look") -> str:
    """What a query is refused with."""
    with pytest.raises(AnalysisException) as caught:
        spark.sql(f"SELECT * FROM {function}({arguments})")
    told = re.search(r"asyncio_operator\.errors\.ConfigurationError: (.*?) SQLSTATE", str(caught.value), re.DOTALL)
    assert told is not None, caught.value
    assert str(caught.value).count('  File "') == 1, "a long traceback hides it"
    return told.group(1)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ("on => 'txet'", {"on": "txet"}),
        ("on => 'list'", {"on": "list"}),
        ("on => 'id', timeout => -1.5", {"timeout": -1.5}),
        ("on => 'id', columns => array('x', 'y'), prefix => 5", {"columns": ["x", "y"], "prefix": 5}),
        ("on => 'id', status_column => 'Text'", {"status_column": "Text"}),
        ("on => 'id', event_time => 'text', mode => 'unordered'", {"event_time": "text", "mode": "unordered"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_X4_a_call_is_refused_in_the_words_of_enrich(spark: SparkSession, arguments: str, options: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        enrich(spark.table("things"), source(), **{"on": "id"} | options)
    assert refused(spark, f"TABLE(things), {arguments}") == str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "look takes one table, and options by name: write look(TABLE(t), on => 'a column')"),
        ("5", "look takes one table"),
        ("on => TABLE(things)", "look takes one table"),
        (
            "TABLE(things)",
            "on is not given; write look(TABLE(t), on => 'column'), or register_lookup(..., on='column')",
        ),
        ("TABLE(things), on => 'id', timout => 5", "'timout' is not an option of enrich; did you mean 'timeout'?"),
        ("TABLE(things), self => 'id'", "'self' is not an option of enrich; there are on, how"),
        ("TABLE(things), on => 'id', cache => true", "cache cannot be given in SQL; pass it to register_lookup"),
        ("TABLE(things), on => 'id', Metrics => NULL", "metrics cannot be given in SQL; pass it to register_lookup"),
        ("TABLE(things), on => 'id', tasks_at_once => 2", "tasks_at_once cannot be given in SQL; pass it to register"),
        ("TABLE(things), on => 'id', timeout => rand()", "timeout is an expression; it must be a constant"),
        (
            "TABLE(SELECT id, id FROM things), on => 'id'",
            "the table has two columns 'id', and Spark does not pass such a table to a table function: rename one of "
            "them, or use enrich on the DataFrame",
        ),
    ],
)
def test_X4_what_only_sql_can_get_wrong_is_told(spark: SparkSession, arguments: str, message: str) -> None:
    assert message in refused(spark, arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": -1},
        {"metrics": {}},
        {"tasks_at_once": 0, "rate_limit": 5},
        {"budget": 7},
    ],
    ids=str,
)
def test_X4_a_registration_is_refused_in_the_words_of_enrich(spark: SparkSession, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as expected:
        enrich(spark.table("things"), source(), on="id", **options)
    with pytest.raises(ConfigurationError) as caught:
        register_lookup(spark, "refused", source(), **options)
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("look", {"timout": 5}, "'timout' is not an option of enrich; did you mean 'timeout'?"),
        ("look", {"strategy": "distinct"}, 'strategy="distinct" is for `enrich` on a DataFrame'),
        ("with plane", {}, "name is 'with plane'; it must be ASCII letters, digits and _"),
        (None, {}, "name is None"),
        ("upper", {}, "name is 'upper', which is already a function of another kind: choose another name"),
        ("range", {}, "name is 'range'"),
    ],
)
def test_X4_a_wrong_registration_is_told(spark: SparkSession, name: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        register_lookup(spark, name, source(), **options)


def test_X4_what_is_no_session_is_told() -> None:
    with pytest.raises(ConfigurationError, match="spark is 'local'; it must be a SparkSession"):
        register_lookup("local", "look", source())  # type: ignore[arg-type]


class Asked(Enricher):
    """Writes down who asks for its schema, and cannot be unpacked where nothing is looked up."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def schema(self) -> pa.Schema:
        with self.log.open("a") as log:
            log.write("asked\n")
        return pa.schema([("x", pa.int64())])

    def key_schema(self) -> pa.Schema:
        return pa.schema([("a", pa.int64()), ("b", pa.null())])

    async def lookup(self, key: Any) -> Any:
        return {"x": 1}

    def __setstate__(self, state: dict[str, Any]) -> None:
        with state["log"].open("a") as log:
            log.write("unpacked\n")
        self.__dict__.update(state)


def test_X8_the_source_is_asked_once_at_registration_and_no_query_unpacks_the_enricher(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    register_lookup(spark, "asked", Asked(log))
    for _ in range(2):
        assert spark.sql("SELECT * FROM asked(TABLE(things), on => map('id', 'a', 'text', 'b'))").columns[-1] == "x"
    assert "which never matches key column 'a' of Asked" in refused(
        spark, "TABLE(things), on => array('text', 'id')", "asked"
    )
    assert log.read_text() == "asked\n"
