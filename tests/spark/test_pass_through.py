"""Law X3: the input's columns come out as they went in, and added columns are what the enricher says."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from asyncio_operator import ConfigurationError
from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher
from tests.spark.helpers import BATCH_SIZE, setting

pytestmark = pytest.mark.spark

EVERY_TYPE = """
    cast(id AS tinyint); cast(id AS smallint); cast(id AS int); id; cast(id AS float); cast(id AS double); id > 1;
    cast(id AS decimal(38, 18)); cast(id AS decimal(5, 2)); cast(id AS string); cast(cast(id AS string) AS binary);
    date'0001-01-01'; date'9999-12-31'; timestamp'2020-06-01 12:00:00.000001'; timestamp_ntz'2020-06-01 12:00:00';
    array(id, null); array(null); array(array(id)); cast(array() AS array<int>);
    map('a', id); map(id, array(named_struct('a', id)));
    named_struct('a', id, 'b c.d', named_struct('c', 'x')); array(named_struct('a', id, 'A', 1)); struct();
    if(id = 1, null, named_struct('a', id)); if(id = 1, null, array(id)); if(id = 1, null, id); if(id = 1, null, 'b');
    null; interval '1 02:03:04' DAY TO SECOND; parse_json('{"a": 1}'); array(parse_json('1'));
    map('a', parse_json('1')); time'12:00:00'; 'x' COLLATE UTF8_LCASE; cast('a' AS char(3)); cast('a' AS varchar(3));
    st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')
"""


async def by_remainder(key: int) -> Any:
    """One row, three, none."""
    return [{"x": key}, [{"x": key + i} for i in range(3)], None][key % 3]


def enricher() -> FunctionEnricher:
    return FunctionEnricher(by_remainder, "x long")


def known_columns(df: DataFrame) -> list[str]:
    """The columns above that this version of Spark has."""
    known = []
    for i, expression in enumerate(EVERY_TYPE.split(";")):
        try:
            df.selectExpr(expression.strip())
        except (AnalysisException, Py4JJavaError):
            continue
        known.append(f"{expression.strip()} AS c{i}")
    return known


@pytest.mark.parametrize(("batch", "large"), [(2, True), (1000, False)])
def test_X3_C1_every_type_passes_through_whole_repeated_and_filtered(
    spark: SparkSession, batch: int, large: bool
) -> None:
    df = spark.range(0, 6, numPartitions=1)
    columns = known_columns(df)
    assert len(columns) >= 30
    df = df.selectExpr("id", *columns)
    with setting(spark, BATCH_SIZE, batch), setting(spark, "spark.sql.execution.arrow.useLargeVarTypes", large):
        before = {row.id: repr(tuple(row)) for row in df.collect()}
        cases: list[tuple[Any, Any]] = [("left", [0, 1, 1, 1, 2, 3, 4, 4, 4, 5]), ("inner", [0, 1, 1, 1, 3, 4, 4, 4])]
        for how, ids in cases:
            out = enrich(df, enricher(), on="id", how=how)
            assert out.schema.fields[:-1] == df.schema.fields
            got = out.collect()
            assert [row.id for row in got] == ids
            assert [repr(tuple(row)[:-1]) for row in got] == [before[i] for i in ids]
            again = enrich(out, enricher(), on="id", prefix="second_", how="inner")
            assert again.schema.fields[:-2] == df.schema.fields
            repeated = [i for i in ids for _ in range((1, 3, 0)[i % 3])]
            assert [repr(tuple(row)[:-2]) for row in again.collect()] == [before[i] for i in repeated]


def test_X3_user_defined_types_pass_through(spark: SparkSession) -> None:
    df = spark.createDataFrame([(0, Vectors.dense([1.0, 2.0])), (1, Vectors.sparse(3, {1: 4.0}))], ["id", "v"])
    out = enrich(df, enricher_of_nothing(), on="id")
    assert out.select("id", "v").collect() == df.collect()


def enricher_of_nothing() -> FunctionEnricher:
    async def look_up(key: Any) -> Any:
        return {"x": 1}

    return FunctionEnricher(look_up, "x long")


def test_X3_metadata_and_nullability_of_the_schema_are_kept(spark: SparkSession) -> None:
    schema = StructType(
        [
            StructField("id", LongType(), nullable=False, metadata={"comment": "the id", "n": [1, 2]}),
            StructField("name", StringType(), nullable=True, metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}),
        ]
    )
    df = spark.createDataFrame([(0, "a")], schema)
    out = enrich(df, enricher_of_nothing(), on="id", status_column="how")
    assert out.schema.fields[:2] == df.schema.fields
    assert all(field.nullable for field in out.schema.fields[2:])
    assert out.select("id", "name", "x").collect() == [(0, "a", 1)]


@pytest.mark.parametrize(
    "names",
    [
        ["a.b", "c`d", "e f", "ü", "*", "_0", "a.b.c", "`", "1", "SELECT"],
        ["k", "k2", "k", "K2"],
        ["id", "_1", "_0", "id"],
    ],
)
def test_X3_names_of_all_kinds_work(spark: SparkSession, names: list[str]) -> None:
    async def look_up(key: Any) -> Any:
        return {"x": 2 * key}

    df = spark.createDataFrame([tuple(range(len(names)))], [f"_{i}" for i in range(len(names))]).toDF(*names)
    for i, name in enumerate(names):
        if names.count(name) == 1:
            out = enrich(df, FunctionEnricher(look_up, "x long"), on=name, prefix="the `x`.")
            assert out.columns == [*names, "the `x`.x"]
            assert tuple(out.collect()[0]) == (*range(len(names)), 2 * i)


def test_X3_an_exact_name_wins_over_one_in_another_case(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, 2)], ["id", "ID"])

    async def look_up(key: Any) -> Any:
        return {"x": key}

    assert [enrich(df, FunctionEnricher(look_up, "x long"), on=on).collect()[0].x for on in ("id", "ID")] == [1, 2]
    with pytest.raises(ConfigurationError, match=r"'Id'.* the name of more than one column"):
        enrich(df, enricher(), on="Id")
    assert enrich(spark.range(1), enricher(), on="ID").columns == ["id", "x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"column 'x' collides with column 'X' of the DataFrame; give a prefix="),
        ({"prefix": "I", "columns": ["d"]}, r"column 'Id' collides with column 'id' of the DataFrame; give a prefix="),
        ({"columns": ["d"], "status_column": "ID"}, r"status_column 'ID' collides with column 'id' of the DataFrame"),
        ({"columns": ["d"], "status_column": "D"}, r"status_column 'D' collides with column 'd' of the enricher"),
        ({"prefix": "p_", "status_column": "P_X"}, r"status_column 'P_X' collides with column 'p_x' of the enricher"),
    ],
)
def test_X3_a_name_that_is_taken_is_told_on_the_driver(
    spark: SparkSession, options: dict[str, Any], message: str
) -> None:
    df = spark.createDataFrame([(1, 2)], ["id", "X"])
    with pytest.raises(ConfigurationError, match=message):
        enrich(df, FunctionEnricher(by_remainder, "x long, d long"), on="id", **options)


def test_X3_columns_chooses_and_orders_and_prefix_names(spark: SparkSession) -> None:
    async def look_up(key: Any) -> Any:
        return {"a": 1, "b": "two", "c": 3.0}

    source = FunctionEnricher(look_up, "a int, b string, c double")
    df = spark.range(1)
    assert enrich(df, source, on="id", columns=["c", "a"], prefix="p.").collect()[0].asDict() == {
        "id": 0,
        "p.c": 3.0,
        "p.a": 1,
    }
    assert enrich(df, source, on="id", columns=[], how="inner").collect() == [(0,)]
    assert enrich(df, source, on="id", columns=[], status_column="s").select("s.status").collect() == [("found",)]


MOMENT = dt.datetime(2020, 6, 1, 12, 0, 0, 123456)

ADDED: list[tuple[pa.DataType, Any, str, Any]] = [
    (pa.int8(), 1, "tinyint", 1),
    (pa.int16(), 1, "smallint", 1),
    (pa.int32(), 1, "int", 1),
    (pa.int64(), 1, "bigint", 1),
    (pa.float32(), 1.5, "float", 1.5),
    (pa.float64(), 1.5, "double", 1.5),
    (pa.decimal128(20, 3), Decimal("1.5"), "decimal(20,3)", Decimal("1.500")),
    (pa.bool_(), True, "boolean", True),
    (pa.string(), "ß", "string", "ß"),
    (pa.large_string(), "ß", "string", "ß"),
    (pa.dictionary(pa.int32(), pa.string()), "ß", "string", "ß"),
    (pa.binary(), b"\0", "binary", b"\0"),
    (pa.large_binary(), b"\0", "binary", b"\0"),
    (pa.binary(2), b"\0\1", "binary", b"\0\1"),
    (pa.date32(), MOMENT.date(), "date", MOMENT.date()),
    (pa.timestamp("us"), MOMENT, "timestamp_ntz", MOMENT),
    (pa.timestamp("ms"), MOMENT, "timestamp_ntz", MOMENT),
    (pa.timestamp("us", "Europe/Berlin"), MOMENT.replace(tzinfo=dt.UTC), "timestamp", MOMENT.replace(tzinfo=dt.UTC)),
    (pa.timestamp("ns", "UTC"), MOMENT.replace(tzinfo=dt.UTC), "timestamp", MOMENT.replace(tzinfo=dt.UTC)),
    (pa.duration("s"), dt.timedelta(hours=1), "interval day to second", dt.timedelta(hours=1)),
    (pa.list_(pa.int64()), [1, None], "array<bigint>", [1, None]),
    (pa.large_list(pa.int64()), [1, None], "array<bigint>", [1, None]),
    (pa.list_(pa.int64(), 2), [1, 2], "array<bigint>", [1, 2]),
    (pa.list_(pa.field("element", pa.int64(), nullable=False)), [None], "array<bigint>", [None]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1}, "map<string,bigint>", {"a": 1}),
    (
        pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())]),
        {},
        "struct<a:bigint,b:string>",
        (None,) * 2,
    ),
]


def test_L9_added_columns_of_every_type_are_what_the_enricher_gives(spark: SparkSession) -> None:
    fields = [pa.field(f"c{i}", data_type, nullable=i % 2 == 0) for i, (data_type, *_) in enumerate(ADDED)]
    row = {f"c{i}": value for i, (_, value, *_) in enumerate(ADDED)}

    async def look_up(key: int) -> Any:
        return [row, {}, None, [row, row]][key]

    out = enrich(spark.range(0, 4, numPartitions=1), FunctionEnricher(look_up, pa.schema(fields)), on="id")
    assert [field.dataType.simpleString() for field in out.schema.fields[1:]] == [name for _, _, name, _ in ADDED]
    assert all(field.nullable for field in out.schema.fields[1:])
    with setting(spark, "spark.sql.session.timeZone", "UTC"):
        table = out.drop("id").collect()
    nulls = (None,) * len(ADDED)
    full = tuple(
        value.astimezone().replace(tzinfo=None) if isinstance(value, dt.datetime) and value.tzinfo else value
        for *_, value in ADDED
    )
    assert [tuple(r) for r in table] == [full, nulls, nulls, full, full]


@pytest.mark.parametrize(
    "data_type",
    [pa.uint8(), pa.float16(), pa.month_day_nano_interval(), pa.decimal256(60, 2), pa.struct([("a", pa.int8())] * 2)],
    ids=str,
)
def test_X4_a_type_that_spark_does_not_have_is_told_on_the_driver(spark: SparkSession, data_type: pa.DataType) -> None:
    source = FunctionEnricher(by_remainder, pa.schema([("odd", data_type)]))
    with pytest.raises(ConfigurationError, match=r"column 'odd' is of Arrow type .* which Spark does not have"):
        enrich(spark.range(1), source, on="id")
