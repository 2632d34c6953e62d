"""`as_schema`: Spark's DDL without Spark. Spark's own parser is the judge."""

from __future__ import annotations

import importlib.metadata
import inspect
import string
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from asyncio_operator.arrow.schema import as_schema
from asyncio_operator.arrow.type_names import shown_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOINED_TEXTS = pytest.mark.skipif(
    importlib.metadata.version("pyspark") < "4.1", reason="Spark 4.0 refuses a comment of several texts in quotes"
)

SIMPLE = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double"),
    *("string", "binary", "date", "timestamp", "timestamp_ltz", "timestamp_ntz", "decimal", "dec", "numeric"),
    *("decimal(1)", "decimal(38,38)", "dec(5,0)", "NUMERIC(7,2)"),
)

SAME_AS_SPARK = [
    "a int",
    "temperature double, wind double",
    "a: int, b:string",
    "a INT NOT NULL, B String not null",
    "`a b` int, `c``d` string, `` date, `日本` int, `a.b` int",
    "a int COMMENT 'it', b int comment \"say \\\" it\", c string NOT NULL COMMENT 'x'",
    pytest.param("a int COMMENT 'it''s', b string NOT NULL COMMENT 'x' 'y'", marks=JOINED_TEXTS),
    "a array<int>, m map<string,array<double>>, s struct<x: int, `y z` string>",
    "s struct<x: int NOT NULL COMMENT 'q', y: struct<>, z map<date, struct<a:decimal(3,1)>>>",
    "a array<array<array<bigint>>>",
    "select int, from string, struct struct<array: int>, map int, comment int, not int",
    "1a int, _b int, a1 int, date date, decimal decimal( 5 , 2 )",
    " a   int -- a remark\n , /* another */ b\tint ",
    "struct<a:int, b: string>",
    "a\u00a0int",
    "s struct<`>`: int, `<` struct<>, `,` int>, `(` decimal(3,1), `not` int, `struct` int",
    ", ".join(f"c{i} {name}" for i, name in enumerate(SIMPLE)),
]

REFUSED_BY_BOTH = [
    "1 int",
    "1e5 int",
    "12L int",
    "é int",
    "a.b int",
    "a-b int",
    "a$ int",
    "a int,",
    "a int, , b int",
    "a int comment 'x' not null",
    "a int not",
    "a int null",
    "a int comment",
    "a map<int>",
    "a map<int,int,int>",
    "a array<int",
    "a array<>",
    "a struct<b int>>",
    "a varchar",
    "a char",
    "a decimal(39,1)",
    "a decimal(5,6)",
    "a decimal(5,-1)",
    "a decimal(5,2,1)",
    "a decimal()",
    "a nonsense",
    "a int b int",
    "a 'int'",
    "`a int",
    "a int comment 'x",
]


@pytest.fixture(scope="module")
def spark_schema(spark: SparkSession) -> Callable[[str], pa.Schema | None]:
    """What Spark makes of a text, None if it refuses it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    # PySpark 4.0 takes no zone: its timestamps are in UTC.
    zone: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}

    def ask(ddl: str) -> pa.Schema | None:
        try:
            parsed = StructType.fromDDL(ddl)
        except PySparkException:
            return None
        return to_arrow_schema(parsed, **zone) if isinstance(parsed, StructType) else None

    return ask


@pytest.mark.spark
@pytest.mark.parametrize("ddl", SAME_AS_SPARK)
def test_it_gives_what_spark_gives(spark_schema: Any, ddl: str) -> None:
    assert as_schema(ddl).equals(spark_schema(ddl), check_metadata=False)


@pytest.mark.spark
@pytest.mark.parametrize("ddl", REFUSED_BY_BOTH)
def test_it_refuses_what_spark_refuses(spark_schema: Any, ddl: str) -> None:
    assert spark_schema(ddl) is None
    with pytest.raises(ConfigurationError):
        as_schema(ddl)


def mixed_case(words: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda word, upper: word.upper() if upper else word, words, st.booleans())


plain_names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8).filter(
    lambda name: any(c not in string.digits + "eElLsSyYfFdDbB" for c in name)
)
quoted_names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="`"), max_size=6).map(
    lambda name: f"`{name}`"
)
names = plain_names | quoted_names
spaces = st.sampled_from(["", " ", "\n", " /* x */ ", "\t"])
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))


def nested(types: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.lists(
        st.tuples(names, st.sampled_from([": ", " ", " : "]), types), max_size=3, unique_by=lambda f: f[0]
    )
    return (
        st.builds("{1}array{0}<{0}{2}{0}>".format, spaces, st.just(""), types)
        | st.builds("map<{0}{1}{0},{2}>".format, spaces, types, types)
        | fields.map(lambda fs: f"struct<{','.join(map(''.join, fs))}>")
    )


types = st.recursive(mixed_case(st.sampled_from(SIMPLE)) | decimals, nested, max_leaves=6)
columns = st.lists(
    st.tuples(names, st.sampled_from([" ", ": "]), types, st.sampled_from(["", " NOT NULL", " comment 'a, b'"])),
    min_size=1,
    max_size=4,
    unique_by=lambda column: column[0].strip("`"),
).map(lambda cs: ", ".join(map("".join, cs)))


@pytest.mark.spark
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ddl=columns)
def test_it_gives_what_spark_gives_for_any_text(spark_schema: Any, ddl: str) -> None:
    assert as_schema(ddl).equals(spark_schema(ddl), check_metadata=False)


def test_char_and_varchar_are_strings() -> None:
    assert as_schema("a char(3), b VARCHAR( 10 ), c character(1)").types == [pa.string()] * 3


def test_a_schema_is_passed_through() -> None:
    schema = pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"})])
    assert as_schema(schema) is schema


@pytest.mark.parametrize(
    ("ddl", "place"),
    [
        ("a int, b intt", "at character 10, 'intt'"),
        ("a int,\nb ?", "at character 10, '?'"),
        ("a array<int", "at its end: '>' was expected"),
        ("a decimal(40)", "at character 3, 'decimal'"),
        ("a int not nul", "at character 11, 'nul': NULL was expected"),
        ("", "at its end: no column"),
    ],
)
def test_an_error_names_the_place(ddl: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        as_schema(ddl)
    assert place in str(caught.value)


NO_TYPE = ("interval day", "void", "variant", "time", "timestamp_tz")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        *((f"a {name}", "unknown type") for name in NO_TYPE),
        ("a int, a string", "'a' occurs twice"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "'a' occurs twice"),
        *((thing, r"pyarrow\.Schema") for thing in (None, 5, ["a int"], {"a": "int"})),
    ],
)
def test_what_no_enricher_can_give_is_refused(schema: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        as_schema(schema)


def test_it_needs_no_spark() -> None:
    program = (
        "import sys; from asyncio_operator.arrow.schema import as_schema; as_schema('a int'); "
        "print('pyspark' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize(
    "ddl",
    [
        "a int, b string NOT NULL, `c d` timestamp_ntz COMMENT 'x'",
        "a array<map<string, decimal(7,2)>> NOT NULL, s struct<x: int, `y.z`: array<struct<q: timestamp>>>",
        "a tinyint, b smallint, c bigint, d float, e double, f boolean, g binary, h date, i decimal(38,18)",
    ],
)
def test_a_struct_type_of_spark_is_a_schema(ddl: str, spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    assert as_schema(StructType.fromDDL(ddl)) == as_schema(ddl)


def test_a_struct_type_keeps_what_may_be_null_inside_of_it() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

    given = StructType(
        [
            StructField("a", ArrayType(IntegerType(), False)),
            StructField("m", MapType(StringType(), ArrayType(LongType()), False)),
            StructField("s", StructType([StructField("x", StringType(), False)]), False),
        ]
    )
    assert as_schema(given) == to_arrow_schema(given, timezone="UTC")


def test_a_type_of_spark_that_is_no_schema_is_refused_with_words() -> None:
    from pyspark.sql.types import CalendarIntervalType, IntegerType, StructField, StructType, VariantType

    for wrong, says in [
        (IntegerType(), "it must be a pyarrow.Schema, a Spark StructType, or"),
        (StructType, "it must be a pyarrow.Schema, a Spark StructType, or"),
        (StructType(), "without a column"),
        (pa.schema([]), "without a column"),
        (StructType([StructField("v", VariantType())]), "schema.v: .*unknown type"),
        (StructType([StructField("s", StructType([StructField("i", CalendarIntervalType())]))]), "schema.s.i: "),
        (StructType([StructField("a", IntegerType())] * 2), "'a' occurs twice"),
    ]:
        with pytest.raises(ConfigurationError, match=says):
            as_schema(wrong)


def test_X12_a_message_names_a_type_in_ddl_or_in_the_words_of_arrow() -> None:
    for ddl in ("int", "timestamp", "array<date>", "map<string,bigint>", "struct<x: smallint>", "decimal(5,2)"):
        assert shown_type(as_schema(f"c {ddl}").field("c").type) == ddl
    assert shown_type(pa.list_(pa.decimal128(38, 18))) == "array<decimal(38,18)>"
    assert shown_type(pa.decimal256(76, -2)) == "decimal(76,-2)"
    assert shown_type(pa.list_(pa.uint32())) == "list<item: uint32>"
