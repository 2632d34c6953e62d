"""`register_lookup`: an enricher as a table function of SQL.

    register_lookup(spark, "with_plane", planes, on="tailnum")
    spark.sql("SELECT * FROM with_plane(TABLE(flights), how => 'inner')")

Law: the function returns and refuses what `enrich` returns and refuses, with the same messages. Spark analyses the
columns of a call in a separate Python process. Only what the driver has learnt about the enricher is known there, and
the source is not asked. The enricher itself stays pickled until a worker needs it.

Spark has table functions over Arrow batches since 4.1. PySpark's decorators do not let such a function decide its
columns; its `UserDefinedTableFunction` does.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from asyncio_operator.checks import must_be
from asyncio_operator.engine.options import KINDS
from asyncio_operator.enricher import Enricher, Found
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.hints import refuse_unknown
from asyncio_operator.spark.driver.build_task import OPTIONS, EnrichOptions, enrich_task, refuse_journal
from asyncio_operator.spark.driver.columns import key_field, session_zone
from asyncio_operator.spark.metrics import reported
from asyncio_operator.spark.worker.table_function import Analyzed, Call, table_function
from asyncio_operator.spark.worker.versions import ARROW_TABLE_FUNCTION, AnalyzeResult, too_old

if TYPE_CHECKING:
    from pyspark.sql.udtf import AnalyzeArgument

NOT_IN_SQL = (*KINDS, "cache", "metrics", "trace", "tasks_at_once")
"""Options whose values cannot be written in SQL, and that of the limits, which begin with the registration."""

OF_THE_TABLE = {"as_of": None, "event_time": None, "watermark_delay": None}
"""Options besides `on` that can be checked only with a table."""


def register_lookup(spark: SparkSession, name: str, enricher: Enricher, **options: Any) -> None:
    """Make `enricher` a table function: ``SELECT * FROM name(TABLE(orders), on => 'customer')``.

    The function returns the rows of ``enrich(orders, enricher, on="customer")``, in the same order. The table may be
    ``PARTITION BY x ORDER BY y``, which decides where rows go before they are looked up. The enricher is asked for its
    columns now, and never again: register it again if they have changed. `as_of` compares in the time zone that the
    session has now.

    Args:
        spark: the session whose SQL gets the function, classic or Spark Connect.
        name: the name in SQL. A table function that was registered under that name is replaced.
        options: those of `enrich`, except `journal`. A call in SQL may pass other values by name, except for `retry`,
            `batching`, `rate_limit`, `circuit_breaker`, `budget`, `hedge`, `cache`, `metrics`, `trace` and
            `tasks_at_once`. All queries that call the function keep to one `rate_limit`.

    Raises:
        ConfigurationError: an option is wrong, the enricher's source is not as declared, or PySpark is older than 4.1.
            Errors that depend on the table come when SQL is analysed, as an `AnalysisException` with the same message.
    """
    kind = ARROW_TABLE_FUNCTION
    if kind is None:
        raise too_old("register_lookup", "enrich(...).createOrReplaceTempView(...) gives SQL the same rows here")
    registry: Any = getattr(spark, "udtf", None)
    if not hasattr(registry, "register"):
        raise must_be("spark", spark, "a SparkSession")
    refuse_unknown("enrich", options, OPTIONS)
    refuse_journal("register_lookup", options.pop("journal", None))
    # Spark would report such a name only in SQL, or not at all.
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)):
        raise must_be("name", name, "ASCII letters, digits and _, and must not begin with a digit")
    if spark.catalog.functionExists(name) and "UDTFRegistration" not in spark.catalog.getFunction(name).className:
        raise ConfigurationError(f"name is {name!r}, which is already a function of another kind: choose another name")
    trace, metrics, budget = options.pop("trace", None), options.pop("metrics", None), options.get("budget")
    limited = EnrichOptions(**options | {"on": ()}).limited(spark, enricher)
    options |= {"budget": limited.budget, "rate_limit": None, "tasks_at_once": None}
    # As far as possible it is checked without a table: with one whose only columns are a key of the right types, under
    # names that no table has.
    key = enricher.key_schema() if isinstance(enricher, Enricher) else None
    columns = [StructField("\0", StringType())]
    if isinstance(key, pa.Schema):
        columns = [
            StructField(f"\0{i}", StringType()) if pa.types.is_null(part.type) else key_field(f"\0{i}", part)
            for i, part in enumerate(key)
        ]
    checked = EnrichOptions(**options | OF_THE_TABLE | {"on": [column.name for column in columns]})
    _check_inline(checked)
    task, _ = enrich_task(StructType(columns), enricher, checked)
    task = reported(task, spark, enricher, budget, metrics, trace)
    known = _Known(describe(enricher), task.answers, key, enricher)
    analyze = partial(_analyzed, name, known, options, session_zone(spark))
    # Each worker needs it, with all that depends only on the enricher.
    pickled: bytes = cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
    # The class to register is in the same module as the registry, for classic Spark and for Spark Connect.
    of_session = importlib.import_module(type(registry).__module__).UserDefinedTableFunction
    registry.register(name, of_session(table_function(analyze, pickled), None, name=name, evalType=kind))


def _check_inline(options: EnrichOptions) -> None:
    if options.strategy == "distinct":
        raise ConfigurationError('strategy="distinct" is for `enrich` on a DataFrame; here it is always "inline"')


def _analyzed(
    name: str,
    known: _Known,
    defaults: dict[str, Any],
    zone: str,
    arguments: Sequence[AnalyzeArgument],
    named: Mapping[str, AnalyzeArgument],
) -> AnalyzeResult:
    """The columns of a call, and what the workers need to run it. Of the enricher only what is known is asked."""
    if len(arguments) != 1 or not arguments[0].isTable:
        raise ConfigurationError(
            f"{name} takes one table, and options by name: write {name}(TABLE(t), on => 'a column')"
        )
    table = arguments[0].dataType
    assert isinstance(table, StructType)
    for column in table.names:
        if table.names.count(column) > 1:
            raise ConfigurationError(
                f"the table has two columns {column!r}, and Spark does not pass such a table to a table function: "
                "rename one of them, or use enrich on the DataFrame"
            )
    given = dict(defaults)
    for option_name, argument in named.items():
        option = option_name.lower()  # As all names in SQL.
        refuse_unknown("enrich", [option], OPTIONS)
        if option == "journal":
            refuse_journal("a table function", argument.value)
        if option in NOT_IN_SQL:
            raise ConfigurationError(f"{option} cannot be given in SQL; pass it to register_lookup")
        if not argument.isConstantExpression:
            raise ConfigurationError(f"{option} is an expression; it must be a constant")
        given[option] = float(argument.value) if isinstance(argument.value, Decimal) else argument.value
    if given.get("on") is None:
        raise ConfigurationError(
            f"on is not given; write {name}(TABLE(t), on => 'column'), or register_lookup(..., on='column')"
        )
    options = EnrichOptions(**given)
    _check_inline(options)
    task, schema = enrich_task(table, known, options, zone=zone)
    return Analyzed(schema, call=Call(task, schema))


class _Known(Enricher):
    """What the driver has learnt of an enricher. It replaces the enricher where the source must not be asked."""

    def __init__(self, name: str, schema: pa.Schema, key: pa.Schema | None, enricher: Enricher) -> None:
        self.max_batch = enricher.max_batch
        self.max_calls = enricher.max_calls
        self.optional_keys = enricher.optional_keys
        # Law X15: the buffer of a call depends on it.
        self.idempotent = enricher.idempotent
        self.default_retry = enricher.default_retry
        self._name = name
        self._schema = schema
        self._key = key

    def __repr__(self) -> str:
        return self._name

    def schema(self) -> pa.Schema:
        return self._schema

    def key_schema(self) -> pa.Schema | None:
        return self._key

    async def lookup(self, key: Any) -> Found:
        raise NotImplementedError
