"""What the driver makes of ``as_of=(time, version)``: which columns are compared, and in which time zone.

Both have one type, or both are times. Spark would cast a date and a timestamp without a zone to a timestamp in the time
zone of the session, and so does the worker (law X16).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, DateType, StructField, StructType, TimestampNTZType, TimestampType

from asyncio_operator.arrow.as_of import AsOf, knows_zone
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.driver.columns import KEY_FAMILIES, cast_program, key_family, position_of

logger = logging.getLogger("asyncio_operator.driver")

TIMES = (DateType, TimestampType, TimestampNTZType)

UTC = ("UTC", "Etc/UTC", "GMT", "Z")


def session_zone(spark: SparkSession) -> str:
    """The time zone of a session."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    return "UTC" if zone in UTC else zone


def names_of(as_of: object) -> tuple[str, str]:
    """The column of times and that of versions.

    Raises:
        ConfigurationError: it is no pair of names.
    """
    match as_of:
        case [str(time), str(version)]:
            return time, version
    raise ConfigurationError(
        f"as_of is {describe(as_of)}; it must be a pair of names: the DataFrame's column of times, and the enricher's "
        "column that says from when a row holds, as in as_of=('ordered_at', 'valid_from')"
    )


def compared(schema: StructType, time: str, version: StructField, enricher: str, place: int, zone: str) -> AsOf:
    """How the times of rows with that schema are compared with the versions of an enricher.

    Args:
        place: that of the version among the columns of a found row.
        zone: the time zone of the session.

    Raises:
        ConfigurationError: there is no such column of times, or the two cannot be compared.
    """
    position = position_of(schema, time, "as_of")
    field = schema.fields[position]
    own, theirs = field.dataType, version.dataType
    of_both = f"{field.name!r}, which is {own.simpleString()}, with {version.name!r} of {enricher}"
    if own == theirs:
        if key_family(own) is None:
            allowed = ", ".join(name for _, name in KEY_FAMILIES)
            raise ConfigurationError(f"as_of compares {of_both}; it must be {allowed}: cast both first")
        return AsOf(position, place)
    if not (isinstance(own, TIMES) and isinstance(theirs, TIMES)):
        raise ConfigurationError(
            f"as_of compares {of_both}, which is {theirs.simpleString()}; both must have one type, or be dates or "
            f"timestamps: cast it first, with {cast_program(field, theirs)}"
        )
    return AsOf(position, place, _zone((own, theirs), of_both, zone))


def _zone(types: Sequence[DataType], of_both: str, zone: str) -> str:
    """The zone in which times of two types are compared."""
    if not any(isinstance(kind, TimestampType) for kind in types) or zone == "UTC":
        return "UTC"
    if not knows_zone(zone):
        raise ConfigurationError(
            f"as_of compares {of_both}, for which the time zone of the session is needed, and {zone!r} is not known to "
            "pyarrow: set spark.sql.session.timeZone to a region, such as Europe/Berlin, or to UTC"
        )
    if any(isinstance(kind, TimestampNTZType) for kind in types):
        logger.warning(
            "as_of compares %s, in the time zone of the session, %s: one of them has no time zone. If it comes from "
            "Parquet files that Spark wrote, its times are in UTC: write them with "
            "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS, or set spark.sql.session.timeZone to UTC",
            of_both,
            zone,
        )
    return zone
