"""Values into columns: what fits is kept as it is, what does not is refused and never cut down."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ResultError
from asyncio_operator.arrow import columns as columns_module
from asyncio_operator.arrow.columns import array_of, columns, row_reader
from asyncio_operator.arrow.type_names import shown_type

PLANE = pa.schema([("name", pa.string()), ("year", pa.int64())])

MOMENT = dt.datetime(2020, 1, 2, 3, 4, 5, 6)
BERLIN = dt.timezone(dt.timedelta(hours=1))
NEW_YORK = ZoneInfo("America/New_York")


class Zone(dt.tzinfo):
    """A zone of a library, some hours east; None: it does not say, and a datetime is as one without."""

    def __init__(self, hours: int | None) -> None:
        self.offset = None if hours is None else dt.timedelta(hours=hours)

    def utcoffset(self, _: dt.datetime | None) -> dt.timedelta | None:
        return self.offset

    def dst(self, _: dt.datetime | None) -> dt.timedelta | None:
        return None

    def tzname(self, _: dt.datetime | None) -> str | None:
        return None


class Level(enum.IntEnum):
    HIGH = 3


def build(value: Any, data_type: pa.DataType) -> Any:
    return array_of([value, None], data_type).to_pylist()[0]


IN_UTC, EASTERN = pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=NEW_YORK)
AB = pa.struct([("a", pa.int64()), ("b", pa.date32())])
ONE = pa.struct([("a", pa.int64())])
NAMED = pa.map_(pa.string(), pa.int64())
INTS = pa.list_(pa.int64())

KEPT: list[tuple[pa.DataType, list[tuple[Any, Any]]]] = [
    (pa.int8(), [(5, 5)]),
    (pa.int32(), [(Decimal("5.00"), 5), (Level.HIGH, 3)]),
    (pa.int64(), [(5.0, 5), (np.int32(5), 5), (np.float64(5), 5)]),
    (pa.float64(), [(5, 5.0)]),
    (pa.float32(), [(1.1, np.float32(1.1)), (float("inf"), float("inf"))]),
    (pa.decimal128(10, 2), [(Decimal("1.5"), Decimal("1.50")), (3, Decimal("3.00"))]),
    (pa.date32(), [(MOMENT.date(), MOMENT.date())]),
    (pa.timestamp("us"), [(MOMENT, MOMENT), (MOMENT.replace(tzinfo=Zone(None)), MOMENT)]),
    (pa.timestamp("ns"), [(MOMENT, MOMENT)]),
    (pa.timestamp("ms"), [(MOMENT.replace(microsecond=6000), MOMENT.replace(microsecond=6000))]),
    (IN_UTC, [(MOMENT.replace(tzinfo=zone), MOMENT.replace(tzinfo=BERLIN)) for zone in (BERLIN, Zone(1))]),
    (pa.timestamp("us", "Asia/Tokyo"), [(EASTERN, EASTERN)]),
    (pa.duration("us"), [(dt.timedelta(seconds=1), dt.timedelta(seconds=1))]),
    (pa.time64("ns"), [(dt.time(1, 2, 3), dt.time(1, 2, 3))]),
    (pa.string(), [("ß", "ß")]),
    (pa.binary(), [(bytearray(b"a"), b"a")]),
    (pa.bool_(), [(True, True)]),
    (INTS, [([1, None, 2.0], [1, None, 2]), ((1, 2), [1, 2]), (np.array([1, 2]), [1, 2]), (None, None)]),
    (AB, [({"a": 1}, {"a": 1, "b": None}), ((1, None), {"a": 1, "b": None})]),
    (NAMED, [({"a": 1}, [("a", 1)]), ([("a", 1)], [("a", 1)])]),
    (pa.list_(pa.struct([("a", pa.list_(pa.timestamp("us")))])), [([{"a": [MOMENT]}], [{"a": [MOMENT]}])]),
]


@pytest.mark.parametrize(("data_type", "values"), KEPT, ids=[str(data_type) for data_type, _ in KEPT])
def test_what_fits_is_kept(data_type: pa.DataType, values: list[tuple[Any, Any]]) -> None:
    for value, kept in values:
        assert build(value, data_type) == kept


REFUSED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1.5, float("nan"), np.float64(1.5), np.float32(1.5), "5", True, 2**70]),
    (pa.int64(), [Decimal("1.5"), Decimal("1E+1000000000"), Decimal("1E-1000000000")]),
    (pa.int64(), [np.True_, np.datetime64("2020-01-01T00:00:00", "ns"), np.timedelta64(5, "ns")]),
    (pa.int8(), [128]),
    (pa.float64(), ["5", 10**400, True, np.True_]),
    (pa.float32(), [1e300, -1e300, 10**400, False]),
    (pa.decimal128(10, 2), [1.5, Decimal("1.234"), Decimal(10**20), Decimal("NaN")]),
    (pa.date32(), [MOMENT, 5, 1.5, "2020-01-01"]),
    (pa.timestamp("us"), [5, dt.date(2020, 1, 1), "2020-01-01", MOMENT.replace(tzinfo=dt.UTC), EASTERN]),
    (pa.timestamp("ns"), [MOMENT.replace(tzinfo=Zone(1))]),
    (pa.timestamp("ms"), [MOMENT]),
    (IN_UTC, [1.5, MOMENT, MOMENT.replace(tzinfo=Zone(None))]),
    (pa.timestamp("ms", "UTC"), [MOMENT]),
    (pa.timestamp("s", "UTC"), [MOMENT.replace(tzinfo=dt.UTC)]),
    (pa.time32("ms"), [MOMENT.time()]),
    (pa.time64("ns"), [5]),
    (pa.duration("s"), [dt.timedelta(microseconds=1)]),
    (pa.duration("us"), [5, pandas.Timedelta(5, "ns")]),
    (pa.timestamp("us"), [pandas.Timestamp("2020-01-01 00:00:00.123456789"), pandas.NaT]),
    (IN_UTC, [pandas.Timestamp("2020-01-01 00:00:00.123456789", tz="UTC")]),
    (pa.string(), [5, "\udc80", b"\xff", b"x", bytearray(b"x"), object()]),
    (pa.large_string(), [b"x"]),
    (pa.binary(), [5, "x", ""]),
    (pa.large_binary(), ["x"]),
    (pa.bool_(), [1, "true"]),
    (INTS, [5, "ab", [1, 1.5]]),
    (INTS, [b"ab", bytearray(b"ab")]),
    (pa.list_(INTS), [[[1.5]], [b"ab"]]),
    (pa.list_(pa.string()), ["ab", ["a", b"b"]]),
    (pa.map_(pa.string(), pa.float64()), [{b"a": 1.5}, {"a": True}]),
    (pa.struct([("a", pa.binary())]), [{"a": "x"}]),
    (pa.list_(pa.date32()), [[MOMENT]]),
    (pa.list_(pa.float32()), [[1e300]]),
    (pa.list_(IN_UTC), [[MOMENT]]),
    (ONE, [{"a": 1.5}, (1.5,), 5]),
    (NAMED, [{"a": 1.5}, [("a", 1.5)], {None: 1}, 5]),
    (pa.map_(pa.int64(), pa.string()), [{1.5: "a"}]),
    (pa.map_(pa.string(), pa.timestamp("us")), [{"a": MOMENT.replace(tzinfo=dt.UTC)}]),
]


@pytest.mark.parametrize(("data_type", "value"), [(data_type, value) for data_type, some in REFUSED for value in some])
def test_L9_what_does_not_fit_is_a_result_error_naming_column_type_and_value(
    value: Any, data_type: pa.DataType
) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011
        build(value, data_type)
    with pytest.raises(ResultError) as caught:
        row_reader(pa.schema([("v", data_type)]))({"v": value})
    assert "column 'v' is " in str(caught.value)
    assert repr(value)[:100] in str(caught.value)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none() | st.floats(-1e15, 1e15).map(round).map(float)))
def test_whole_numbers_survive_whatever_their_type(values: list[Any]) -> None:
    built = array_of(values, pa.int64()).to_pylist()
    assert built == values


@given(st.lists(st.floats(width=32) | st.none() | st.integers(-(2**24), 2**24)))
def test_every_float32_survives(values: list[Any]) -> None:
    built = array_of(values, pa.float32()).to_pylist()
    assert repr(built) == repr([None if v is None else float(v) for v in values])


SHAPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, 2.0, Decimal(3), np.int8(4), Level.HIGH, None]),
    (pa.float64(), [1, 2.5, np.float32(3), None]),
    (pa.decimal128(10, 2), [1, Decimal("1.5"), None]),
    (pa.string(), ["a", None]),
    (pa.binary(), [b"a", bytearray(b"b"), None]),
    (pa.timestamp("us"), [MOMENT, dt.datetime.min, dt.datetime.max, None]),
    (pa.timestamp("us", "UTC"), [*(MOMENT.replace(tzinfo=zone) for zone in (dt.UTC, BERLIN, NEW_YORK)), None]),
    (pa.list_(pa.int64()), [[1], (2,), np.array([3]), [None], None]),
    (pa.struct([("x", pa.int64()), ("y", pa.int64())]), [{"x": 1}, (2, 3), [("x", 4), ("y", 5)], None]),
    (pa.list_(pa.struct([("x", pa.int64())])), [[{"x": 1}], [(2,)], [], None]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1}, [("b", 2)], {}, None]),
    (pa.struct([("m", pa.map_(pa.string(), pa.int64()))]), [{"m": {"a": 1}}, ([("b", 2)],), {}, None]),
]


@given(data=st.data(), shape=st.sampled_from(SHAPES))
def test_X5_values_that_fit_one_by_one_fit_together(data: st.DataObject, shape: tuple[pa.DataType, list[Any]]) -> None:
    data_type, choices = shape
    numbers = data.draw(st.lists(st.integers(0, len(choices) - 1), max_size=8))
    values = [choices[i] for i in numbers]
    together = array_of(values, data_type)
    assert together.type == data_type
    assert together.to_pylist() == [build(v, data_type) for v in values]


VALUES = [
    *(value for _, values in SHAPES for value in values),
    *(True, 2**31, -(2**31), 2**63, 300, 1e300, "\udc80", "ä", b"", MOMENT.date(), object(), float("nan")),
]
TYPES = [
    *(data_type for data_type, _ in SHAPES),
    *(pa.bool_(), pa.int8(), pa.int32(), pa.float32(), pa.date32(), pa.large_string(), pa.timestamp("us")),
]


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_L9_a_row_is_judged_as_its_columns_are(data_type: pa.DataType) -> None:
    read = row_reader(pa.schema([("v", data_type), ("w", pa.int64())]))
    for value in VALUES:
        try:
            build(value, data_type)
        except Exception:
            with pytest.raises(ResultError):
                read({"v": value, "w": 1})
        else:
            own = read({"v": value, "x": 1})
            assert list(own) == ["v"]
            assert own["v"] is value


def test_L11_a_row_with_fields_and_none_of_the_columns_is_an_error_and_an_empty_row_has_nulls() -> None:
    schema = pa.schema([("price", pa.float64()), ("stock", pa.int64())])
    read = row_reader(schema)
    assert read({}) == {}
    assert read({"stock": 1, "more": 2}) == {"stock": 1}
    rows: list[Any] = [{}, {"stock": 1, "more": 2}]
    assert [one.to_pylist() for one in columns(rows, schema)] == [[None, None], [None, 1]]
    with pytest.raises(ResultError, match=r"none of the columns \['price', 'stock'\]; its fields are \['prise'\]"):
        read({"prise": 2.5})
    with pytest.raises(ResultError, match="none of the columns"):
        columns([*rows, {"prise": 2.5}], schema)
    assert row_reader(pa.schema([]))({"more": 2}) == {}


@pytest.mark.parametrize(
    ("value", "data_type", "remedy"),
    [
        (MOMENT, pa.timestamp("us", "UTC"), "it has no time zone: add its zone"),
        (MOMENT.replace(tzinfo=BERLIN), pa.timestamp("us"), "it has a time zone, which the column cannot hold"),
    ],
    ids=["without", "with"],
)
def test_L9_a_zone_is_neither_invented_nor_lost_and_the_error_says_what_to_do(
    value: Any, data_type: pa.DataType, remedy: str
) -> None:
    for found, kind in ((value, data_type), ([value], pa.list_(data_type))):
        with pytest.raises(ResultError) as caught:
            row_reader(pa.schema([("seen", kind)]))({"seen": found})
        assert f"column 'seen' is {shown_type(kind)}, which the answer does not fit: {found!r}" in str(caught.value)
        assert remedy in str(caught.value)
        assert "timestamp_ntz" in str(caught.value)
        assert ".replace(tzinfo=" in str(caught.value)


def test_a_value_whose_repr_is_long_or_fails_is_described_all_the_same() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    schema = pa.schema([("v", pa.int64())])
    with pytest.raises(ResultError, match="Odd, whose repr raised RuntimeError"):
        row_reader(schema)({"v": Odd()})
    with pytest.raises(ResultError) as caught:
        row_reader(schema)({"v": "x" * 10_000})
    assert len(str(caught.value)) < 2500


class Detached(dict[str, Any]):
    """A row of an ORM whose session is gone."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        raise ConnectionError("row is detached")


def test_L9_a_row_that_cannot_be_read_is_a_result_error() -> None:
    with pytest.raises(ResultError, match="column 'v' of the answer cannot be read: ConnectionError: row is detached"):
        row_reader(pa.schema([("v", pa.int64())]))(Detached())


def test_a_misspelt_column_beside_right_ones_is_told_once_whatever_other_fields_rows_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = [
        {"name": "a", "year": 1},
        {"name": "b", "yaer": 2},
        *({"name": "c", "yaer": 3, f"{i}": i} for i in range(9)),
    ]
    for _ in range(2):
        assert [part.to_pylist()[:3] for part in columns(rows, PLANE)] == [["a", "b", "c"], [1, None, None]]
        assert [row_reader(PLANE)(row) for row in rows][:3] == [rows[0], {"name": "b"}, {"name": "c"}]
    assert [record.getMessage() for record in caplog.records] == [
        "an answer has the field 'yaer', which is not a column, and no 'year', which is one: its column is null. "
        "If one of them is misspelt, correct the schema or the answer. This is logged once"
    ]


@pytest.mark.parametrize(
    "row", [{"name": "a"}, {"name": "a", "seats": 5}, {"name": "a", "year": None, "yaer": 5}, {"year": 1, 5: 6}]
)
def test_other_absent_columns_and_other_fields_are_no_news(
    row: dict[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    columns([row], PLANE)
    row_reader(PLANE)(row)
    assert caplog.records == []


def test_a_row_with_very_many_fields_is_not_searched_for_misspelt_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object) -> None:
        raise AssertionError("each comparison takes microseconds")

    monkeypatch.setattr(columns_module, "misspelt", slow)
    columns_module.tell_misspelt(dict.fromkeys(map(str, range(columns_module.MOST_FIELDS + 1)), 1), ["price"])
