"""Which columns of a DataFrame are the key, which types a key may have, which types the added columns get, and which
columns ``as_of=(time, version)`` compares.

The columns that `on` names are brought into the order of the key's parts. An enricher's key schema decides the order
and the types; without one the order of `on` is used. Names are resolved as in Spark: the case of letters is ignored if
that is not ambiguous.

Spark compares the Arrow types that come back with the announced schema, including units and nullability. So the Arrow
type of an added column is always made from its Spark type, however the enricher writes it: text with 64-bit offsets, a
dictionary, or milliseconds become the type that Spark takes. All added columns are nullable, because an absent field is
null.

The columns of `as_of` have one type, or both are times. Spark would cast a date and a timestamp without a zone to a
timestamp in the time zone of the session, and so does the worker (law X16).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from asyncio_operator.arrow.as_of import AsOf
from asyncio_operator.checks import must_be
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.hints import did_you_mean
from asyncio_operator.journal.format import stored_key_type
from asyncio_operator.spark.worker.versions import arrow_type, is_dataframe, spark_data_type

logger = logging.getLogger("asyncio_operator.driver")

KEY_FAMILIES: tuple[tuple[type[DataType], str], ...] = (
    (NumericType, "a number"),
    (StringType, "text"),
    (BooleanType, "a boolean"),
    (DateType, "a date"),
    (TimestampType, "a timestamp"),
    (TimestampNTZType, "a timestamp without time zone"),
    (BinaryType, "bytes"),
)
"""The types that keys may have. A key can match only a key of the same family."""

ALLOWED = ", ".join(name for _, name in KEY_FAMILIES)


def key_family(data_type: DataType) -> str | None:
    """The family of a type, or None if it cannot be a key."""
    return next((name for family, name in KEY_FAMILIES if isinstance(data_type, family)), None)


def cast_program(field: StructField, to: DataType) -> str:
    """The program that casts a column to the type of another one, with which it is compared."""
    name = field.name
    text = f"df.withColumn({name!r}, F.col({name!r}).cast({to.simpleString()!r}))"
    if {type(field.dataType), type(to)} == {TimestampType, TimestampNTZType}:
        text += " (in the time zone of the session, spark.sql.session.timeZone)"
    return text


def check_passes_through(schema: StructType) -> None:
    """Check that Spark can pass all columns to Python in Arrow."""
    for field in schema.fields:
        try:
            arrow_type(field.dataType)
        except Exception:
            raise ConfigurationError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Spark cannot pass to Python in "
                "Arrow: drop it, or cast it first"
            ) from None


def spark_field(name: str, field: pa.Field) -> StructField:
    """The Spark field of an Arrow field: nullable, with another name."""
    try:
        data_type = _nullable(spark_data_type(field.type))
        arrow_type(data_type)
    except Exception:
        raise ConfigurationError(
            f"the enricher's column {field.name!r} is of Arrow type {field.type}, which Spark does not have"
        ) from None
    return StructField(name, data_type, nullable=True)


def key_field(name: str, field: pa.Field) -> StructField:
    """The same for a key column, whose keys are compared and never come to Spark: a decimal may have more digits than
    those of Spark."""
    return spark_field(name, field.with_type(stored_key_type(field.type)) if pa.types.is_decimal(field.type) else field)


def spark_schema(*schemas: pa.Schema) -> StructType:
    """The Spark columns of the Arrow columns of all schemas."""
    return StructType([spark_field(field.name, field) for schema in schemas for field in schema])


def _nullable(data_type: DataType) -> DataType:
    if isinstance(data_type, ArrayType):
        return ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, MapType):
        return MapType(_nullable(data_type.keyType), _nullable(data_type.valueType))
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType)) for f in data_type.fields])
    return data_type


def plain_text(column: Column, kind: DataType) -> Column:
    """A column of this type without a collation: Spark then compares texts character by character, as enrichers do."""
    if isinstance(kind, StringType) and getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY":
        return functions.collate(column, "UTF8_BINARY")
    return column


def key_columns(df: DataFrame, positions: Sequence[int]) -> DataFrame:
    """The columns of a DataFrame at these positions, as `k0`, `k1`, ..., texts without a collation."""
    numbered = df.toDF(*(f"_{i}" for i in range(len(df.columns))))
    kinds = [df.schema.fields[position].dataType for position in positions]
    return numbered.select(
        *(
            plain_text(functions.col(f"_{position}"), kind).alias(f"k{i}")
            for i, (position, kind) in enumerate(zip(positions, kinds, strict=True))
        )
    )


def require_dataframe(df: object, enricher: object) -> None:
    """Check that the first argument of `enrich` or `plan` is a Spark DataFrame, and not the second one."""
    if is_dataframe(df):
        return
    if is_dataframe(enricher):
        raise ConfigurationError(
            f"df and enricher are swapped: df is {describe(df)}, and enricher a DataFrame; write the DataFrame first"
        )
    library = type(df).__module__.partition(".")[0]
    if library in ("pandas", "pyarrow", "polars"):
        given = "df.to_pandas()" if library == "polars" else "df"
        raise ConfigurationError(
            f"df is a {library} {type(df).__name__}; use createDataFrame: spark.createDataFrame({given}) is a "
            "Spark DataFrame"
        )
    remedy = ": use df.to_spark()" if type(df).__module__.startswith("pyspark.pandas") else ""
    raise ConfigurationError(f"df is of type {type(df).__name__}; it must be a Spark DataFrame{remedy}")


On = str | Sequence[str] | Mapping[str, str]
"""A column, a list of columns, or a mapping of columns to the enricher's key columns."""


def key_positions(schema: StructType, enricher: Enricher, on: On) -> tuple[int, ...]:
    """The positions of the key columns in the DataFrame, in the order of the key's parts."""
    known = enricher.key_schema()
    if known is not None and not isinstance(known, pa.Schema):
        raise ConfigurationError(
            f"{describe(enricher)}.key_schema() returned {describe(known)}; it must return a pyarrow.Schema or None"
        )
    names = _key_columns(schema, on, known, enricher)
    if known is not None and len(names) != len(known):
        raise ConfigurationError(
            f"on has {len(names)} columns, {names}; the enricher's key has {len(known)}: {known.names}"
        )
    positions = tuple(position_of(schema, name) for name in names)
    for i, name in enumerate(names):
        if positions[i] in positions[:i]:
            raise ConfigurationError(f"on has the column {name!r} twice; each part of a key is a column of its own")
    fields = [schema.fields[i] for i in positions]
    for i, field in enumerate(fields):
        family = key_family(field.dataType)
        if family is None:
            raise ConfigurationError(
                f"key column {field.name!r} is {field.dataType.simpleString()}; a key must be {ALLOWED}: cast it first"
            )
        part = None if known is None else known.field(i)
        if part is not None and not pa.types.is_null(part.type):
            theirs = key_field(part.name, part)
            if key_family(theirs.dataType) != family:
                raise ConfigurationError(
                    f"key column {field.name!r} is {field.dataType.simpleString()}, which never matches key column "
                    f"{theirs.name!r} of {describe(enricher)}, which is {theirs.dataType.simpleString()}: cast it "
                    f"first, with {cast_program(field, theirs.dataType)}"
                )
        elif part is not None and (part.metadata or {}).get(b"sent_as") == b"text":
            # It has a name but no type.
            kind = field.dataType
            if isinstance(kind, FractionalType) and not (isinstance(kind, DecimalType) and kind.scale <= 0):
                zeros = "0" * (kind.scale if isinstance(kind, DecimalType) else 1)
                logger.warning(
                    "key column %r is %s, and %s sends it as text: 7 is sent as 7.%s, and a source that knows 7 has no "
                    "row for it; if the keys are whole numbers, cast the column to long",
                    field.name,
                    kind.simpleString(),
                    describe(enricher),
                    zeros,
                )
    enricher.check_keys(pa.schema([(field.name, arrow_type(field.dataType)) for field in fields]))
    return positions


def key_types(schema: StructType, enricher: Enricher, keys: Sequence[int]) -> pa.Schema:
    """The names and types of keys, such as those that are asked in columns: the DataFrame's, where the enricher names
    none."""
    known = enricher.key_schema()
    own = [pa.field(schema.fields[place].name, arrow_type(schema.fields[place].dataType)) for place in keys]
    if known is None:
        return pa.schema(own)
    pairs = zip(known, own, strict=True)
    return pa.schema(
        [theirs.with_type(mine.type) if pa.types.is_null(theirs.type) else theirs for theirs, mine in pairs]
    )


def _key_columns(schema: StructType, on: On, known: pa.Schema | None, enricher: Enricher) -> list[str]:
    """The columns of the DataFrame that `on` names, in the order of the key's parts."""
    if isinstance(on, Mapping) and all(isinstance(name, str) for pair in on.items() for name in pair):
        if known is None:
            raise ConfigurationError(
                f"on maps to key columns, but {describe(enricher)} does not name its key columns; give a list of "
                "columns"
            )
        parts = {part: column for column, part in on.items()}
        if set(parts) != set(known.names) or len(parts) != len(on):
            is_reversed = set(on) == set(known.names) and set(parts) <= set(schema.names) and len(parts) == len(on)
            raise ConfigurationError(
                f"on maps to {list(on.values())}; it must map columns of the DataFrame to the enricher's key columns "
                f"{known.names}, each once"
                + (f". It is the wrong way round; write on={parts!r}" if is_reversed else "")
            )
        return [parts[name] for name in known.names]
    if isinstance(on, str):
        return [on]
    if isinstance(on, Column):
        remedy = "make it a column first, as in df.withColumn('key', ...), and write on='key'"
        raise must_be("on", on, f"the name of a column: {remedy}")
    if not (isinstance(on, Sequence) and on and all(isinstance(name, str) for name in on)):
        raise must_be(
            "on", on, "the name of a column, a list of names, or a mapping of names to the enricher's key columns"
        )
    return list(known.names if known is not None and sorted(on) == sorted(known.names) else on)


def position_of(schema: StructType, name: str, argument: str = "on") -> int:
    """The position of the column with this name. If no name is equal, the case of letters is ignored."""
    if not isinstance(name, str):
        raise must_be(argument, name, "the name of a column")
    positions = [i for i, field in enumerate(schema.fields) if field.name == name]
    if not positions:
        positions = [i for i, field in enumerate(schema.fields) if field.name.lower() == name.lower()]
    if len(positions) == 1:
        return positions[0]
    if positions:
        raise ConfigurationError(
            f"{argument} names {name!r}, which is the name of more than one column: rename one of them"
        )
    owner, _, last = name.rpartition(".")
    if owner and last:
        taken = {field.name.lower() for field in schema.fields}
        if last.lower() in taken and owner.split(".")[0].lower() not in taken:
            raise ConfigurationError(
                f"{argument} names {name!r}, which is not a column of the DataFrame: write {last!r}, without the "
                f"alias, or make it a column first, as in df.withColumn('key', F.col({name!r}))"
            )
        raise ConfigurationError(
            f"{argument} names {name!r}, which is not a column of the DataFrame; if it is a field of a column, make it "
            f"a column first, as in df.withColumn({last!r}, F.col({name!r})); {did_you_mean(name, schema.names)}"
        )
    raise ConfigurationError(
        f"{argument} names {name!r}, which is not a column of the DataFrame; {did_you_mean(name, schema.names)}"
    )


TIMES = (DateType, TimestampType, TimestampNTZType)

UTC = ("UTC", "Etc/UTC", "GMT", "Z")


def session_zone(spark: SparkSession) -> str:
    """The time zone of a session."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return "UTC" if zone in UTC else zone


def names_of(as_of: object) -> tuple[str, str]:
    """The column of times and that of versions."""
    match as_of:
        case [str(time), str(version)]:
            return time, version
    pair = "the DataFrame's column of times, and the enricher's column that says from when a row holds"
    raise must_be("as_of", as_of, f"a pair of names: {pair}, as in as_of=('ordered_at', 'valid_from')")


def compared(schema: StructType, time: str, version: StructField, enricher: str, place: int, zone: str) -> AsOf:
    """How the times of rows with that schema are compared with the versions of an enricher, whose place is among the
    columns of a found row. `zone` is the time zone of the session."""
    position = position_of(schema, time, "as_of")
    field = schema.fields[position]
    own, theirs = field.dataType, version.dataType
    of_both = f"{field.name!r}, which is {own.simpleString()}, with {version.name!r} of {enricher}"
    if own == theirs:
        if key_family(own) is None:
            raise ConfigurationError(f"as_of compares {of_both}; it must be {ALLOWED}: cast both first")
        return AsOf(position, place)
    if not (isinstance(own, TIMES) and isinstance(theirs, TIMES)):
        raise ConfigurationError(
            f"as_of compares {of_both}, which is {theirs.simpleString()}; both must have one type, or be dates or "
            f"timestamps: cast it first, with {cast_program(field, theirs)}"
        )
    if zone == "UTC" or (not isinstance(own, TimestampType) and not isinstance(theirs, TimestampType)):
        return AsOf(position, place, "UTC")
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("us")), zone)
    except pa.ArrowInvalid:
        raise ConfigurationError(
            f"as_of compares {of_both}, for which the time zone of the session is needed, and {zone!r} is not known to "
            "pyarrow: set spark.sql.session.timeZone to a region, such as Europe/Berlin, or to UTC"
        ) from None
    if isinstance(own, TimestampNTZType) or isinstance(theirs, TimestampNTZType):
        logger.warning(
            "as_of compares %s, in the time zone of the session, %s: one of them has no time zone. If it comes from "
            "Parquet files that Spark wrote, its times are in UTC: write them with "
            "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, or set spark.sql.session.timeZone to UTC",
            of_both,
            zone,
        )
    return AsOf(position, place, zone)
