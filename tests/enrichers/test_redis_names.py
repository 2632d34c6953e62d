"""Names in Redis for many keys at once, and plain values: the same as key by key, and as the converter of rows."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import EnricherError
from enrichers.redis import RedisEnricher
from enrichers.redis.key_names import Names
from enrichers.scalars import TEXT
from enrichers.typed import row_converter

PARTS = (
    st.text(max_size=5)
    | st.sampled_from(["\ud800", "{0}", "%s"])
    | st.integers()
    | st.binary(max_size=5)
    | st.dates()
    | st.uuids()
    | st.none()
    | st.sampled_from([True, 1.5, datetime.datetime(2024, 2, 29)])
)
TEMPLATES = [("{key}", ("key",)), ("a{{:{key}%s}}:{key}", ("key",)), ("{b}:{{{a}}}:{b}", ("a", "b"))]


def outcome(names: Any, *arguments: Any) -> Any:
    try:
        return names(*arguments)
    except EnricherError as error:
        return str(error)


@pytest.mark.parametrize(("template", "parts"), TEMPLATES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_many_keys_have_the_names_that_they_have_one_by_one(
    template: str, parts: tuple[str, ...], data: st.DataObject
) -> None:
    names = Names(template, parts)
    part = data.draw(st.sampled_from([PARTS, st.text(max_size=5) | st.integers()]))
    one = part if len(parts) == 1 else st.tuples(*[part] * len(parts)) | part | st.tuples(part)
    keys = data.draw(st.lists(one, max_size=5))
    assert outcome(names.of_many, keys) == outcome(lambda: list(map(names.of, keys)))


VALUES = (
    st.binary(max_size=5)
    | st.text("0123456789+-.eE :TZ_", max_size=12).map(str.encode)
    | st.one_of(st.integers(), st.floats(), st.decimals(), st.booleans(), st.datetimes(), st.dates(), st.times()).map(
        lambda value: str(value).encode()
    )
    | st.sampled_from([b"", b" ", b" 7\n", b"\xff", b"[1]", b'{"a": 1}', b"1e400", b"9" * 5000, b"0" * 400 + b"7"])
)

TYPES = [
    pa.string(), pa.binary(), pa.binary(3), pa.bool_(), pa.int16(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(),
    pa.decimal128(10, 2), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us"),
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]),
]  # fmt: skip


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("data_type", TYPES, ids=str)
@settings(max_examples=50, deadline=None)
@given(value=VALUES)
def test_a_plain_value_is_converted_as_a_row_of_one_column(
    data_type: pa.DataType, nullable: bool, value: bytes
) -> None:
    schema = pa.schema([pa.field("n", data_type, nullable)])
    quick = RedisEnricher("redis://x", schema=schema, kind="string")._conversion()

    def converted(convert: Any, item: Any) -> str:
        try:
            return repr(convert(item))
        except (ValueError, ArithmeticError, RecursionError) as error:
            return f"{type(error).__name__}: {error}"

    assert converted(quick, value) == converted(row_converter(schema, TEXT), {"n": value})
