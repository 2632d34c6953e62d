"""Law X4 for `async_udf`: what can be wrong is found on the driver, with the operator's words. No Spark runs here."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types

from asyncio_operator import AsyncFunction, AsyncWaitOperator, Batching, ConfigurationError, RateLimit
from asyncio_operator.spark import async_udf


async def price(product: str, country: str = "NL") -> float:
    """What a product costs."""
    return 1.0


TYPES: list[tuple[Any, str]] = [
    ("double", "double"),
    (" decimal(10, 2) ", "decimal(10,2)"),
    ("array<string>", "array<string>"),
    ("map<string, int>", "map<string,int>"),
    ("temperature double, wind float", "struct<temperature:double,wind:float>"),
    ("temperature double", "struct<temperature:double>"),
    ("struct<a: timestamp, b: struct<c: binary>>", "struct<a:timestamp,b:struct<c:binary>>"),
    (spark_types.DoubleType(), "double"),
    (spark_types.ArrayType(spark_types.DateType(), containsNull=False), "array<date>"),
    (spark_types.StructType().add("a", "integer", nullable=False), "struct<a:int>"),
    (pa.large_string(), "string"),
    (pa.timestamp("ms"), "timestamp_ntz"),
    (pa.schema([("a", pa.int8())]), "struct<a:tinyint>"),
]


@pytest.mark.parametrize(("given", "meant"), TYPES, ids=[str(given) for given, _ in TYPES])
def test_the_type_is_ddl_a_spark_type_an_arrow_type_or_a_schema(given: Any, meant: str) -> None:
    assert repr(async_udf(given)(price)) == f"async_udf('{meant}')(price)"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("dubble", "'dubble': unknown type; did you mean 'double'?"),
        ("a double,", "at its end: a column name was expected"),
        ("a int, a int", "the column 'a' occurs twice"),
        (price, "schema_or_type is <function price"),
        (spark_types.DoubleType, "schema_or_type is <class .*it must be Spark DDL"),
        (spark_types.CalendarIntervalType(), "that Spark can exchange in Arrow"),
        (pa.float16(), "that Spark can exchange in Arrow"),
        (pa.schema([("a", pa.float16())]), "that Spark can exchange in Arrow"),
        (pa.schema([]), "schema is without a column; give it at least one"),
        (pa.struct([]), "that Spark can exchange in Arrow"),
    ],
)
def test_X4_a_type_that_is_none_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        async_udf(given)(price)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("capacity", 0),
        ("retry", 2.5),
        ("batching", Batching()),
        ("rate_limit", 0),
    ],
)
def test_X4_what_the_operator_refuses_is_refused_with_its_words(option: str, value: Any) -> None:
    async def one(value: Any) -> Any: ...

    with pytest.raises(ConfigurationError) as theirs:
        AsyncWaitOperator(one, **{option: value})
    with pytest.raises(ConfigurationError) as ours:
        async_udf("double", **{option: value})(one)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("function", [lambda product: 1.0, price("tea"), AsyncFunction, AsyncFunction(), 3])
def test_X4_functions_that_the_operator_refuses_are_refused_with_its_words(function: Any) -> None:
    with pytest.raises(ConfigurationError) as theirs:
        AsyncWaitOperator(function)
    with pytest.raises(ConfigurationError) as ours:
        async_udf("double")(function)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_error": "drop"}, 'on_error is \'drop\'; it must be "fail" | "null"'),
        ({"on_error": lambda value, error: 0}, 'it must be "fail" | "null"'),
        ({"deterministic": 1}, "deterministic is 1; it must be True or False"),
        ({"tiemout": 1}, "'tiemout' is not an option of async_udf; did you mean 'timeout'?"),
        ({"mode": "unordered"}, "'mode' is not an option of async_udf; a column's rows stay in their order"),
        ({"cache": None}, "'cache' is not an option of async_udf; enrich keeps answers"),
        ({"journal": None}, "'journal' is not an option of async_udf; enrich keeps answers"),
        ({"zzz": 1}, "'zzz' is not an option of async_udf; there are capacity, buffer, timeout, "),
    ],
)
def test_X4_other_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        async_udf("double", **options)
    assert says in str(raised.value)


def test_X4_an_asynchronous_generator_is_told_what_to_do_instead() -> None:
    async def prices(product: str) -> Any:
        yield 1.0

    with pytest.raises(ConfigurationError, match=r"an asynchronous generator; a row has one result: let the type be"):
        async_udf("double")(prices)


def test_X4_a_decorator_without_its_type_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match=r"the type comes first: write @async_udf\('double'\)"):
        async_udf(price)


def test_X4_columns_are_counted() -> None:
    function = async_udf("double")(price)
    with pytest.raises(ConfigurationError, match="price is called with 0 columns: pass at least one"):
        function()
    with pytest.raises(ConfigurationError, match="price is called with 3 columns: too many positional arguments"):
        function("a", "b", "c")
    partly = async_udf("double")(functools.partial(price, "tea"))
    assert "tea" not in repr(partly)
    with pytest.raises(ConfigurationError, match="price is called with 2 columns: too many positional arguments"):
        partly("a", "b")


def test_X4_a_function_that_cannot_travel_is_refused_where_it_is_used() -> None:
    lock = threading.Lock()

    async def locked(product: str) -> float:
        with lock:
            return 1.0

    function = async_udf("double")(locked)
    with pytest.raises(ConfigurationError, match=r"locked cannot be pickled.*in its open\(\)"):
        function("product")
    with pytest.raises(ConfigurationError, match="locked cannot be pickled"):
        function.func  # noqa: B018


def test_X8_it_is_a_decorator_that_needs_no_session() -> None:
    @async_udf("double", rate_limit=RateLimit(10))
    async def stars(product: str) -> float:
        """How good a product is."""
        return 4.5

    assert stars.__name__ == "stars"
    assert stars.__doc__ == "How good a product is."
    assert stars.deterministic is False
    assert async_udf("double", deterministic=True)(price).deterministic is True
    with pytest.raises(AttributeError, match="ColumnFunction has no attribute 'tiems'"):
        stars.tiems  # noqa: B018


def test_a_function_may_refer_to_another_column_function() -> None:
    cheap = async_udf("double")(price)
    assert callable(cheap.func)

    async def dear(product: str) -> float:
        return 2.0 if cheap.__name__ == "price" else 0.0

    assert callable(async_udf("double")(dear).func)
