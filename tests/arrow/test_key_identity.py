"""L10: when two keys are the same is decided in one way everywhere.

`same` below is the rule in words of its own. `canonical_key` and `identity` are held against it, and every other place
against these: rows of a batch, batches of a task, running calls, caches, a table in memory, `Lookup`. Spark's own joins
are in tests/spark/test_keys_in_spark.py.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Cache, Enricher, Retry
from asyncio_operator.arrow.key_arrays import canonical_array, key_values
from asyncio_operator.arrow.key_identity import canonical_key, canonical_optional, identity
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.testing import FakeEnricher, FakeService, VirtualTimeLoop
from enrichers import HttpEnricher, TableEnricher
from tests.keyed import key_batch
from tests.lookup.helpers import Recorded, look_up, outcomes_of

BERLIN = ZoneInfo("Europe/Berlin")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


class Part(NamedTuple):
    """A key of a user's own type."""

    origin: str
    hour: float


class NoOffset(tzinfo):
    """A zone that knows no offset."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and meaning(one) == meaning(other)


def meaning(key: Any) -> Any:
    """What a key says, in a form that Python compares as the rule does."""
    if isinstance(key, float | Decimal):
        is_nan = key.is_nan() if isinstance(key, Decimal) else key != key
        return "NaN" if is_nan else number(key)
    if isinstance(key, datetime):
        offset = key.utcoffset()
        shown = key.replace(tzinfo=None, fold=0) - datetime.min
        return ("clock", shown) if offset is None else ("instant", shown - offset)
    if isinstance(key, tuple):
        return [(type(part), meaning(part)) for part in key]
    return key


def number(key: Any) -> Any:
    return str(key) if abs(key) == float("inf") else Fraction(key)


# -- keys, each value of which comes in several spellings


def spellings(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


ZONES = [UTC, BERLIN, ZoneInfo("America/New_York"), timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))]


@st.composite
def instants(draw: st.DrawFn) -> datetime:
    """Around the hour that Berlin has twice, in any zone."""
    moment = datetime(2024, 10, 27, tzinfo=UTC) + timedelta(minutes=30 * draw(st.integers(-2, 3)))
    return moment.astimezone(draw(st.sampled_from(ZONES)))


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-2, 2)),
    "smallint": (pa.int16(), st.integers(-2, 2)),
    "double": (pa.float64(), spellings(0.0, -0.0, float("nan"), -float("nan"), OTHER_NAN, 1.5, float("inf"), -1e300)),
    "float": (pa.float32(), spellings(0.0, -0.0, float("nan"), OTHER_NAN, 1.5, -float("inf"))),
    "decimal": (pa.decimal128(10, 2), spellings(*map(Decimal, ("1.1", "1.10", "0", "-0.00", "100", "1E+2")))),
    "string": (pa.string(), spellings("", "a", "A", "a\0", "\u00e9", "e\u0301", "stra\u00dfe", "strasse")),
    "boolean": (pa.bool_(), st.booleans()),
    "binary": (pa.binary(), spellings(b"", b"a", b"a\0")),
    "date": (pa.date32(), spellings(date.min, date(2024, 2, 29), date(2024, 3, 1), date.max)),
    "timestamp": (pa.timestamp("us", "UTC"), instants()),
    "timestamp of a session elsewhere": (pa.timestamp("us", "America/New_York"), instants()),
    "timestamp_ntz": (pa.timestamp("us"), spellings(*(datetime(2024, 10, 27, 2, 30, fold=f) for f in (0, 1)))),
}
"""The types that a key column may have, and keys for them."""

SCALARS = st.one_of(
    *(values for _, values in COLUMNS.values()),
    spellings(*map(Decimal, ("NaN", "-NaN", "sNaN", "Infinity", "1.1", "1.100"))),
    spellings(1, True, 1.0, Decimal(1), "1", b"1", 0, False, 0.0, date(2024, 10, 27), datetime(2024, 10, 27)),
    spellings(uuid.UUID(int=1), uuid.UUID(int=2), np.float64("nan"), np.float64(-0.0)),
    spellings(
        datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=ZONES[4]), datetime.min.replace(tzinfo=ZONES[3])
    ),
)
"""Keys of all types together, as `Lookup` may be asked for them."""

KEYS = st.recursive(SCALARS, lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple), max_leaves=5)


def names_of(keys: Sequence[Any]) -> list[Any]:
    return [identity(canonical_key(key)) for key in keys]


def rows_of(data_type: pa.DataType, keys: Sequence[Any]) -> pa.RecordBatch:
    """A batch of one column; NaNs and zeros keep their bits."""
    if pa.types.is_floating(data_type):
        values = np.array([0.0 if key is None else key for key in keys], dtype=data_type.to_pandas_dtype())
        array = pa.array(values, data_type, mask=np.array([key is None for key in keys], dtype=bool))
    else:
        array = pa.array(keys, data_type)
    return pa.RecordBatch.from_arrays([array], ["k"])


def on_virtual_time(run: Coroutine[Any, Any, Any]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(run)


# -- the rule


@given(KEYS, KEYS)
@settings(max_examples=75)
def test_L10_two_keys_are_the_same_as_the_rule_says(one: Any, other: Any) -> None:
    # A numpy.float64 counts as the float that it is.
    one, other = (float(key) if isinstance(key, np.float64) else key for key in (one, other))
    names = names_of([one, other])
    assert (names[0] == names[1]) == same(one, other)
    assert names[0] != names[1] or hash(names[0]) == hash(names[1])
    assert names_of([canonical_key(one)]) == names[:1], "a canonical key is its own canonical key"


@pytest.mark.parametrize(
    ("key", "canonical"),
    [
        (-0.0, 0.0),
        (np.float64(-0.0), 0.0),
        (Decimal("-0.00"), Decimal("0.00")),
        (Decimal("1.10"), Decimal("1.10")),
        (datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN), datetime(2024, 10, 27, 0, 30, tzinfo=UTC)),
        (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN), datetime(2024, 10, 27, 1, 30, tzinfo=UTC)),
        (datetime(2024, 1, 1, fold=1), datetime(2024, 1, 1)),
        (datetime(2024, 1, 1, fold=1, tzinfo=NoOffset()), datetime(2024, 1, 1)),
        (("JFK", -0.0), ("JFK", 0.0)),
        (Part("JFK", -0.0), Part("JFK", 0.0)),
        (pandas.Timestamp("2024-01-01"), datetime(2024, 1, 1)),
        (pandas.Timestamp("2024-10-27 04:30", tz=BERLIN), datetime(2024, 10, 27, 3, 30, tzinfo=UTC)),
        (pandas.Timestamp("2024-01-01 00:00:00.000000001"), pandas.Timestamp("2024-01-01 00:00:00.000000001")),
        (pandas.NaT, None),
        (pandas.NA, None),
        (("JFK", pandas.NaT), None),
        (np.datetime64("NaT"), None),
        (("JFK", np.timedelta64("NaT")), None),
        (("JFK", None), None),
        (("JFK", (1, None)), None),
        (None, None),
    ],
)
def test_L10_the_canonical_form_is_what_an_enricher_is_asked_for(key: Any, canonical: Any) -> None:
    assert repr(canonical_key(key)) == repr(canonical)


@pytest.mark.parametrize("null", [None, pandas.NaT, pandas.NA, np.datetime64("NaT")], ids=repr)
def test_L1_every_null_may_be_in_an_optional_part_and_none_in_another(null: Any) -> None:
    assert canonical_optional(("JFK", null), (1,)) == ("JFK", None)
    assert canonical_optional((null, "JFK"), (1,)) is canonical_optional(("JFK", (1, null)), (1,)) is None


def test_L10_a_column_in_a_dictionary_has_the_same_keys() -> None:
    column = pa.array([-0.0, OTHER_NAN, None, 0.0]).dictionary_encode()
    assert canonical_array(column).to_pylist()[2:] == [None, 0.0]
    assert repr(key_values(pa.chunked_array([column, column]))) == "[0.0, nan, None, 0.0, 0.0, nan, None, 0.0]"


def test_L10_subclasses_are_types_of_their_own() -> None:
    names = names_of([("JFK", 0.0), Part("JFK", 0.0), Part("JFK", -0.0)])
    assert names[0] != names[1] == names[2]


@given(SCALARS, SCALARS)
@settings(max_examples=75)
def test_L10_the_bytes_of_keyed_state_follow_the_same_rule(one: Any, other: Any) -> None:
    names = names_of([one, other])
    keys = [canonical_key(one), canonical_key(other)]
    if any(isinstance(key, datetime) and key.utcoffset() for key in keys):
        return  # beyond the years that state holds
    assert (serialize_key(keys[0]) == serialize_key(keys[1])) == (names[0] == names[1])


# -- the places


@given(st.data(), st.sampled_from(sorted(COLUMNS)))
@settings(max_examples=75)
def test_L10_rows_of_a_batch_have_the_key_that_the_rule_gives_them(data: st.DataObject, name: str) -> None:
    data_type, values = COLUMNS[name]
    keys = data.draw(st.lists(st.none() | values, max_size=12))
    batch = rows_of(data_type, keys)
    found = key_batch(batch, [0])
    names = names_of(key_values(batch.column(0)))
    numbers = {name: number for number, name in enumerate(names_of(found.keys))}
    expected = [-1 if key is None else numbers[name] for key, name in zip(keys, names, strict=True)]
    assert found.payload.key_of.tolist() == expected
    assert len({*names_of(found.keys)}) == len(found.keys)
    assert repr([*found.keys]) == repr([canonical_key(key) for key in found.keys]), "keys are canonical"
    if data_type != pa.float32():
        given_keys = [key.quantize(Decimal("0.01")) if isinstance(key, Decimal) else key for key in keys]
        assert names == names_of(given_keys)
    other = data.draw(st.lists(st.none() | st.integers(0, 1), min_size=len(keys), max_size=len(keys)))
    both = pa.RecordBatch.from_arrays([batch.column(0), pa.array(other, pa.int8())], ["k", "n"])
    composite = key_batch(both, [0, 1])
    assert names_of(composite.keys) == [
        *dict.fromkeys(
            identity((canonical_key(key), n))
            for key, n in zip(key_values(batch.column(0)), other, strict=True)
            if key is not None and n is not None
        )
    ]
    nested = canonical_array(pa.StructArray.from_arrays(both.columns, ["k", "n"]))
    assert nested.field(0).to_string() == canonical_array(batch.column(0)).to_string()


@given(st.sampled_from(["timestamp", "timestamp_ntz", "date"]), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_L10_dates_and_times_are_those_that_Arrow_gives(name: str, numbers: list[int | None]) -> None:
    data_type = COLUMNS[name][0]
    if name == "date":
        array = pa.array([None if n is None else n >> 32 for n in numbers], pa.int32()).cast(data_type)
    else:
        array = pa.array(numbers, pa.int64()).cast(data_type)
    expected = []
    for value in array:
        try:
            expected.append(value.as_py())
        except (ValueError, OverflowError):
            expected.append(None)
    assert key_values(array) == expected


@pytest.mark.parametrize("retry", [None, Retry()], ids=["plain", "managed"])
@given(data=st.data(), name=st.sampled_from(sorted(COLUMNS)))
def test_L10_L2_batches_share_running_calls_by_the_same_rule(
    retry: Retry | None, data: st.DataObject, name: str
) -> None:
    data_type, values = COLUMNS[name]
    keys = data.draw(st.lists(values, min_size=1, max_size=8))
    batches = [key_batch(rows_of(data_type, [key]), [0]) for key in keys]

    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)
        return {"x": repr(key)}

    asked = Recorded(answer)
    check = AnswerCheck(pa.schema([("x", pa.string())]))
    on_virtual_time(look_up(asked, batches, retry=retry, buffer=1000, check=check))
    names = names_of([batch.keys[0] for batch in batches])
    assert len(asked.calls) == len({*names})
    assert names_of(asked.calls) == [*dict.fromkeys(names)]
    for batch in batches:
        assert outcomes_of(batch) == [{"x": repr(batch.keys[0])}], "every spelling asks the same question"


@given(st.lists(KEYS, min_size=10, max_size=40))
@settings(max_examples=5)
def test_L10_a_cache_finds_keys_by_the_same_rule_after_a_restart_too(keys: list[Any]) -> None:
    names = names_of(keys)
    canonical = [canonical_key(key) for key in keys]
    kept = [not beyond(key) for key in keys]
    first = {name: repr(key) for name, key in reversed([*zip(names, canonical, strict=True)])}
    with TemporaryDirectory() as directory:
        on_disk = Cache(store="rocksdb", directory=directory)
        for options in (Cache(), on_disk):
            cache = open_cache(options, "specification")
            for key in canonical:
                if cache.get(key) is ABSENT:
                    cache.put(key, {"x": repr(key)})
            for _ in range(2 if options is on_disk else 1):
                for key, name, is_kept in zip(canonical, names, kept, strict=True):
                    assert cache.get(key) == ({"x": first[name]} if is_kept else ABSENT)
                assert len(cache) == len({name for name, is_kept in zip(names, kept, strict=True) if is_kept})
                cache.close()
                if options is on_disk:
                    cache = open_cache(options, "specification")
            cache.close()


@given(st.data(), st.sampled_from(sorted(COLUMNS)))
@settings(max_examples=60)
def test_L10_a_table_in_memory_is_joined_by_the_same_rule(data: st.DataObject, name: str) -> None:
    data_type, values = COLUMNS[name]
    keys = data.draw(st.lists(values, min_size=1, max_size=8))
    rows = rows_of(data_type, keys)
    known = key_values(rows.column(0))
    table = TableEnricher(pa.Table.from_batches([rows]).append_column("n", pa.array(range(len(keys)))), "k")
    asked = key_values(rows_of(data_type, data.draw(st.lists(values, min_size=1, max_size=8))).column(0))

    async def found() -> Any:
        await table.open()
        return await table.lookup_many(asked), [await table.lookup(key) for key in asked]

    many, single = asyncio.run(found())
    expected = [
        [number for number, name in enumerate(names_of(known)) if name == identity(canonical_key(key))] for key in asked
    ]
    numbers = [[row["n"] for row in (rows if isinstance(rows, list) else [rows])] if rows else [] for rows in many]
    assert numbers == expected
    assert many == single


@given(st.lists(KEYS, min_size=1, max_size=8), st.booleans())
def test_L10_a_lookup_shares_and_keeps_by_the_same_rule(keys: list[Any], at_once: bool) -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(1)
        return {"x": 1}

    asked = Recorded(answer)

    async def run() -> None:
        async with Lookup(asked, cache=None if at_once else Cache()) as lookup:
            if at_once:
                await asyncio.gather(*map(lookup.get, keys))
            else:
                for key in keys:
                    await lookup.get(key)

    on_virtual_time(run())
    names = names_of(keys)
    if at_once or not any(map(beyond, keys)):
        assert len(asked.calls) == len({*names})
    assert {*names_of(asked.calls)} == {*names}
    assert all(repr(key) == repr(canonical_key(key)) for key in asked.calls)


def beyond(key: Any) -> bool:
    """Whether it holds an instant that a cache cannot keep: in UTC it lies before the year 1, or after 9999."""
    if isinstance(key, tuple):
        return any(map(beyond, key))
    key = canonical_key(key)
    return isinstance(key, datetime) and bool(key.utcoffset())


# -- values of other types, and other places


async def test_L10_a_fake_enricher_finds_its_rows_by_the_same_rule() -> None:
    moment = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)
    fake: Enricher = FakeEnricher({float("nan"): {"n": 1}, moment: {"n": 2}, (-0.0, "a"): {"n": 3}})
    async with Lookup(fake) as lookup:
        assert await lookup.get(OTHER_NAN) == {"n": 1}
        assert await lookup.get(moment.astimezone(UTC)) == {"n": 2}
        assert await lookup.get(moment.replace(fold=0)) is None
        assert await lookup.get((0.0, "a")) == {"n": 3}


async def test_L10_L9_a_key_of_pandas_is_that_of_its_instant_and_with_nanoseconds_no_row_has_it() -> None:
    table = pa.table({"seen": [datetime(2024, 1, 1)], "n": [1]})
    async with Lookup(TableEnricher(lambda: table, "seen", ["n"])) as lookup:
        assert await lookup.get(pandas.Timestamp("2024-01-01")) == {"n": 1}
        assert await lookup.get(pandas.Timestamp("2024-01-01 00:00:00.000000001")) is None
        assert await lookup.get(pandas.NaT) is None


async def test_L1_a_null_of_pandas_is_not_sent() -> None:
    with FakeService(handler=lambda request: {"n": 1}) as service:
        async with Lookup(HttpEnricher(service.url + "/{key}", schema="n int"), cache=Cache()) as lookup:
            assert await lookup.get(pandas.NaT) is await lookup.get(pandas.NA) is None
            for _ in range(2):
                assert await lookup.get(pandas.Timestamp("2024-01-01")) == {"n": 1}
    assert service.paths() == ["/2024-01-01T00%3A00%3A00"]
