"""X16 without lookups: which row of a key held at a time, against a model, for every type of versions."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.arrow.as_of import AsOf
from asyncio_operator.arrow.column_answers import ColumnAnswers, in_order

DAY = dt.date(2024, 3, 30)
NOON = dt.datetime(2024, 3, 30, 12)

KINDS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "byte": (pa.int8(), [-128, -1, 0, 1, 127]),
    "long": (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    "float": (pa.float32(), [-math.inf, -1.5, -0.0, 0.0, math.inf, math.nan]),
    "double": (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 5e-324, math.inf, math.nan]),
    "decimal": (pa.decimal128(38, 18), [Decimal("-1e19"), Decimal("-1e-18"), Decimal(0), Decimal("1e19")]),
    "text": (pa.string(), ["", "A", "a", "a\0", "b", "ß", "\U0001f600"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\x7f", b"\xff"]),
    "boolean": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date.min, DAY, DAY + dt.timedelta(1), dt.date.max]),
    "timestamp_ntz": (pa.timestamp("us"), [dt.datetime.min, NOON, NOON + dt.timedelta(0, 0, 1), dt.datetime.max]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [NOON.replace(tzinfo=dt.UTC), NOON.replace(tzinfo=ZoneInfo("Asia/Tokyo"))],
    ),
}


def rank(value: Any) -> Any:
    """What orders values as Spark does: texts by their bytes, and NaN behind all numbers."""
    if isinstance(value, float):
        return math.isnan(value), 0.0 if math.isnan(value) else value
    return value.encode() if isinstance(value, str) else value


def model(versions: Sequence[Any], time: Any, rank: Callable[[Any], Any] = rank) -> int | None:
    """The number of the row that held, of those of one key."""
    best = None
    for number, version in enumerate(versions):
        if time is None or version is None or rank(version) > rank(time):
            continue
        if best is None or rank(version) >= rank(versions[best]):
            best = number
    return best


@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), in_table=st.booleans())
def test_X16_the_greatest_version_that_is_not_after_the_time_held(
    data: st.DataObject, kind: str, in_table: bool
) -> None:
    data_type, values = KINDS[kind]
    some = st.sampled_from(values) | st.none()
    of_keys = data.draw(st.lists(st.lists(some, max_size=9), max_size=4))
    rows = data.draw(st.lists(st.tuples(st.integers(-1, len(of_keys) - 1), some), max_size=12))
    versions = pa.array([version for one in of_keys for version in one], data_type)
    counts = np.array([len(one) for one in of_keys], np.int64)
    starts, numbers = np.cumsum(counts) - counts, None
    if in_table:
        # The rows of a table in any order, of which the found ones are numbered.
        order = np.array(data.draw(st.permutations(range(len(versions)))), np.int64)
        versions, numbers = versions.take(pa.array(order, pa.int64())), np.argsort(order)
    times = pa.array([time for _, time in rows], data_type)
    key_of = np.array([key for key, _ in rows], np.int64)
    answers = ColumnAnswers(pa.table({"since": versions}), starts, counts, numbers)
    held = AsOf(0, 0).held(versions, times, answers, key_of).tolist()
    expected = [None if key < 0 else model(of_keys[key], time) for key, time in rows]
    assert held == [-1 if one is None else starts[key] + one for one, (key, _) in zip(expected, rows, strict=True)]


def compared(version: pa.Scalar, time: pa.Scalar, zone: str) -> bool:
    """Whether the version is not after the time."""
    versions, times = (pa.array([one], one.type) for one in (version, time))
    answers = in_order(pa.table({"since": versions}))
    return bool(AsOf(0, 0, zone).held(versions, times, answers, np.zeros(1, np.int64))[0] == 0)


BERLIN = ZoneInfo("Europe/Berlin")
GAP, TWICE = dt.datetime(2024, 3, 31, 2, 30), dt.datetime(2024, 10, 27, 2, 30)


@pytest.mark.parametrize(
    ("shown", "zone", "moment"),
    [
        (dt.datetime(2024, 7, 1, 12), "Europe/Berlin", dt.datetime(2024, 7, 1, 10)),
        (dt.datetime(2024, 1, 1, 12), "Europe/Berlin", dt.datetime(2024, 1, 1, 11)),
        # Skipped by the clock: 3:30 of summer time. Shown twice: the first time.
        (GAP, "Europe/Berlin", dt.datetime(2024, 3, 31, 1, 30)),
        (TWICE, "Europe/Berlin", dt.datetime(2024, 10, 27, 0, 30)),
        (dt.datetime(1890, 1, 1), "Europe/Berlin", dt.datetime(1889, 12, 31, 23, 6, 32)),
        (dt.date(2024, 7, 1), "Europe/Berlin", dt.datetime(2024, 6, 30, 22)),
        # The clock skipped midnight: the day began at one.
        (dt.date(2018, 11, 4), "America/Sao_Paulo", dt.datetime(2018, 11, 4, 3)),
        (dt.date(1919, 3, 31), "America/Toronto", dt.datetime(1919, 3, 31, 4, 30)),
        (dt.date(2024, 7, 1), "UTC", dt.datetime(2024, 7, 1)),
        (dt.datetime(2024, 7, 1), "UTC", dt.datetime(2024, 7, 1)),
    ],
)
def test_X16_dates_and_times_without_a_zone_are_compared_in_that_of_the_session(
    shown: Any, zone: str, moment: dt.datetime
) -> None:
    local = pa.scalar(shown, pa.timestamp("us") if isinstance(shown, dt.datetime) else pa.date32())
    at, before = (pa.scalar(moment - dt.timedelta(0, 0, early), pa.timestamp("us", "UTC")) for early in (0, 1))
    assert compared(local, at, zone)
    assert not compared(local, before, zone)
    assert compared(at, local, zone)
    assert compared(before, local, zone)
    assert not compared(pa.scalar(moment + dt.timedelta(0, 0, 1), pa.timestamp("us", "UTC")), local, zone)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_X16_dates_that_no_timestamp_reaches_are_before_or_after_all_timestamps(zone: str) -> None:
    last = pa.scalar(dt.datetime(9999, 12, 31), pa.timestamp("us", "UTC"))
    first, far = (pa.array([days], pa.int32()).cast(pa.date32())[0] for days in (-(2**31), 2**31 - 1))
    assert compared(first, last, zone)
    assert not compared(far, last, zone)
    assert compared(last, far, zone)
    assert not compared(last, first, zone)
