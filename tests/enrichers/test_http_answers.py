"""What `HttpEnricher` makes of answers: typed columns, `extract`, misses, and the entries of batches."""

from __future__ import annotations

import datetime
import gzip
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import EnricherError
from asyncio_operator.enricher import as_schema
from asyncio_operator.testing.service import FakeAnswer, FakeService
from enrichers.http import HttpEnricher
from enrichers.http.answers import Answers, UnreadableError
from enrichers.http.columns import row_converter

UTC = datetime.UTC


def read(ddl: str, text: str) -> Any:
    """The value of the column ``c`` for a JSON value."""
    answers = Answers(as_schema(f"c {ddl}"), None, None)
    row: Any = answers.found(answers.parse(f'{{"c": {text}}}'.encode(), ""))
    pa.array([row["c"]], answers_type(ddl))
    return row["c"]


def answers_type(ddl: str) -> pa.DataType:
    return as_schema(f"c {ddl}").field(0).type


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("string", '"é\\u0000"', "é\0"),
        ("boolean", "true", True),
        ("tinyint", "-128", -128),
        ("int", "2147483647", 2**31 - 1),
        ("bigint", "-9223372036854775808", -(2**63)),
        ("double", "1", 1.0),
        ("double", "1e-7", 1e-7),
        ("double", "9007199254740993", 9007199254740992.0),
        ("float", "0.1", 0.1),
        (
            "decimal(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("decimal(10,2)", "0.10", Decimal("0.10")),
        ("decimal(10,2)", "1.5000", Decimal("1.50")),
        ("decimal(10,2)", "7", Decimal("7.00")),
        ("decimal(10,2)", '"-12.3"', Decimal("-12.30")),
        ("decimal(5,0)", "1.2e4", Decimal(12000)),
        ("date", '"2013-01-31"', datetime.date(2013, 1, 31)),
        ("timestamp", '"2013-01-31T05:06:07Z"', datetime.datetime(2013, 1, 31, 5, 6, 7, tzinfo=UTC)),
        ("timestamp", '"2013-01-31T05:06:07.123456+01:00"', datetime.datetime(2013, 1, 31, 4, 6, 7, 123456, UTC)),
        ("timestamp", '"2013-01-31 05:06:07.120000000Z"', datetime.datetime(2013, 1, 31, 5, 6, 7, 120000, UTC)),
        ("timestamp_ntz", '"2013-01-31T05:06"', datetime.datetime(2013, 1, 31, 5, 6)),
        ("binary", '"aGk="', b"hi"),
        ("array<int>", "[1, null, 2]", [1, None, 2]),
        ("array<decimal(3,1)>", "[1.5]", [Decimal("1.5")]),
        ("struct<a:int,b:array<string>>", '{"a": 1, "x": 2}', {"a": 1, "b": None}),
        ("map<string,double>", '{"x": 1}', [("x", 1.0)]),
        ("map<int,string>", '{"-5": "a", "0": "b"}', [(-5, "a"), (0, "b")]),
        ("string", "null", None),
        ("struct<a:int>", "null", None),
    ],
)
def test_json_becomes_the_exact_value_of_its_column(ddl: str, text: str, value: Any) -> None:
    assert read(ddl, text) == value
    assert type(read(ddl, text)) is type(value)


@pytest.mark.parametrize(
    ("ddl", "text", "place"),
    [
        ("string", "5", "'c' holds 5, of type int"),
        ("string", '"\\ud800"', "surrogate"),
        ("string", '{"a": 1}', "'c' holds {'a': 1}"),
        ("boolean", "1", "no bool"),
        ("boolean", '"true"', "no bool"),
        ("int", "1.0", "'c' holds 1.0, of type float, which is no int32"),
        ("int", "1e2", "no int32"),
        ("int", "2147483648", "not within -2147483648 and 2147483647"),
        ("int", "true", "no int32"),
        ("int", '"5"', "no int32"),
        ("double", "true", "no double"),
        ("double", '"1.5"', "no double"),
        ("double", "1e999", "too large"),
        ("double", "1" + "0" * 400, "too large"),
        ("float", "1e39", "too large"),
        ("decimal(10,2)", "1.005", "more digits"),
        ("decimal(4,2)", "123.4", "more digits"),
        ("decimal(10,2)", "true", "no decimal"),
        ("decimal(10,2)", '"1,5"', "no decimal"),
        ("decimal(10,2)", '"NaN"', "no decimal"),
        ("decimal(10,2)", "1e999999999", "more digits"),
        ("date", '"2013-02-30"', "like 2013-01-31"),
        ("date", '"2013-01-31T00:00:00"', "like 2013-01-31"),
        ("date", "20130131", "like 2013-01-31"),
        ("timestamp", '"2013-01-31T05:06:07"', "with an offset"),
        ("timestamp", "1359608767", "like 2013-01-31T05:00:00Z"),
        ("timestamp", '"2013-01-31"', "like"),
        ("timestamp", '"2013-01-31T05:06:07.1234567Z"', "like"),
        ("timestamp", '"0001-01-01T00:00:00+14:00"', "years 1 and 9999"),
        ("timestamp_ntz", '"2013-01-31T05:06:07Z"', "without an offset"),
        ("binary", '"é"', "base64"),
        ("binary", '"abc"', "base64"),
        ("array<int>", '{"0": 1}', "'c' holds"),
        ("array<int>", "[1, 2.5]", "'c[1]' holds 2.5"),
        ("struct<a:struct<b:int>>", '{"a": {"b": "x"}}', "'c.a.b' holds 'x'"),
        ("struct<a:int>", "[1]", "'c' holds [1]"),
        ("struct<a:int NOT NULL>", "{}", "'c.a' holds null"),
        ("map<int,string>", '{"1.0": "x"}', "c['1.0']"),
        ("map<string,int>", '{"k": "x"}', "c['k']"),
        ("int NOT NULL", "null", "it may not be null"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_column_value_and_type(
    ddl: str, text: str, place: str
) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(ddl, text)
    assert place in str(caught.value)
    assert "change its type in schema=" in str(caught.value)


def test_columns_of_arrow_that_spark_has_not() -> None:
    schema = pa.schema([("s", pa.timestamp("s")), ("u", pa.uint8()), ("l", pa.large_string()), ("d", pa.date64())])
    convert = row_converter(schema)
    row = convert({"s": "2013-01-31T05:06:07", "u": 255, "l": "x", "d": "2013-01-31"})
    assert pa.Table.from_pylist([row], schema).num_rows == 1
    with pytest.raises(ValueError, match="finer than a s"):
        convert({"s": "2013-01-31T05:06:07.5"})


@given(st.decimals(allow_nan=False, allow_infinity=False, places=18, min_value=-(10**19), max_value=10**19))
def test_a_decimal_is_never_rounded(number: Decimal) -> None:
    assert read("decimal(38,18)", str(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_the_one_that_was_written_also_beside_decimals(number: float) -> None:
    assert read("double", json.dumps(number)) == number
    pair = read("struct<d:double,x:decimal(2,1)>", json.dumps({"d": number}))
    assert pair["d"] == number


def test_nan_is_taken_for_a_double_only() -> None:
    assert math.isnan(read("double", "NaN"))
    with pytest.raises(UnreadableError):
        read("double", "Infinity")
    with pytest.raises(UnreadableError):
        read("decimal(3,1)", "NaN")


def test_L9_absent_fields_are_null_and_extra_ones_ignored() -> None:
    answers = Answers(as_schema("a int, b string"), None, None)
    assert answers.found({"b": "x", "z": object()}) == {"a": None, "b": "x"}


# -- extract


NESTED = {"data": {"items": [{"a": 1}, {"a": 2}], "none": None, "0": {"a": 9}}}


@pytest.mark.parametrize(
    ("extract", "found"),
    [
        ("data.items", [{"a": 1}, {"a": 2}]),
        ("data.items.1", {"a": 2}),
        ("data.items.7", None),
        ("data.none", None),
        ("data.none.more", None),
        ("data.0", {"a": 9}),
        (lambda answer: answer["data"]["items"][0], {"a": 1}),
        (lambda answer: {"a": len(answer["data"]["items"])}, {"a": 2}),
        (lambda _: None, None),
        (lambda _: [], None),
        (lambda _: ({"a": 1},), [{"a": 1}]),
    ],
)
def test_extract_leads_to_a_row_several_or_none(extract: Any, found: Any) -> None:
    assert Answers(as_schema("a int"), extract, None).found(NESTED) == found


@pytest.mark.parametrize(
    ("extract", "told"),
    [
        (
            "data.itens",
            "the path 'data.itens' leads nowhere: after 'data' the answer has no 'itens': did you mean 'items'",
        ),
        ("dta", "at its top the answer has no 'dta'"),
        ("data.items.a", "after 'data.items' the answer is of type list"),
        ("data.items.0.a", "the answer is 1, which is no row"),
        (lambda answer: answer["nope"], "extract: <lambda> raised KeyError"),
        (lambda _: [1], "a row of the answer is 1"),
        (lambda _: "x", "the answer is 'x', which is no row"),
    ],
)
def test_extract_that_leads_elsewhere_is_told(extract: Any, told: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        Answers(as_schema("a int"), extract, None).found(NESTED)
    assert told in str(caught.value)


def test_a_path_that_leads_nowhere_is_no_miss() -> None:
    with pytest.raises(UnreadableError):
        Answers(as_schema("a int"), "data.row", None).found({"data": {}})


# -- over HTTP


@asynccontextmanager
async def asked(service: FakeService, **options: Any) -> AsyncIterator[HttpEnricher]:
    defaults = {"schema": "a int", "batch_url": service.url + "/rows?keys={keys}"}
    enricher = HttpEnricher(service.url + "/rows/{key}", **(defaults | options))
    await enricher.open()
    try:
        yield enricher
    finally:
        await enricher.close()


async def refused(enricher: HttpEnricher, keys: Sequence[Any]) -> EnricherError:
    with pytest.raises(EnricherError) as caught:
        await (enricher.lookup(keys[0]) if len(keys) == 1 else enricher.lookup_many(keys))
    assert caught.value.retryable is False
    return caught.value


async def test_missing_statuses_are_misses_and_others_are_not() -> None:
    async with FakeService() as service:
        async with asked(service) as enricher:
            assert await enricher.lookup("x") is None
            service.answer_next(FakeAnswer(status=204))
            assert "is empty" in str(await refused(enricher, ["x"]))
        async with asked(service, missing_statuses=[204, 410]) as enricher:
            for status in (204, 410):
                service.answer_next(FakeAnswer(status=status))
                assert await enricher.lookup("x") is None
            assert "404 Not Found" in str(await refused(enricher, ["x"]))


async def test_several_rows_null_and_an_empty_list() -> None:
    async with FakeService({"two": [{"a": 1}, {"a": 2}], "none": [], "bom": 0}) as service, asked(service) as enricher:
        assert await enricher.lookup("two") == [{"a": 1}, {"a": 2}]
        assert await enricher.lookup("none") is None
        service.answer_next(FakeAnswer(), FakeAnswer(b'\xef\xbb\xbf{"a": 5}'), FakeAnswer("null"))
        assert "is empty" in str(await refused(enricher, ["x"]))
        assert await enricher.lookup("x") == {"a": 5}
        assert await enricher.lookup("x") is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<html>login</html>", "of type 'application/json' is not JSON"),
        ('{"a": 1', "is not JSON"),
        (b'{"a": "\xff"}', "not in UTF-8"),
        ("[" * 100_000, "RecursionError"),
        ("1" * 10_000, "is not JSON"),
        ("5", "the answer is 5, which is no row"),
        ('["x"]', "a row of the answer is 'x'"),
        ('{"a": "x"}', "the column 'a' holds 'x'"),
    ],
    ids=lambda value: str(value[:20]),
)
async def test_an_answer_that_will_not_do_is_an_error_of_that_key_alone(body: Any, told: str) -> None:
    async with FakeService({"ok": {"a": 1}}) as service, asked(service) as enricher:
        service.answer_next(FakeAnswer(body))
        error = await refused(enricher, ["k"])
        assert told in str(error)
        assert "key 'k': " in str(error)
        assert len(str(error)) < 600
        assert await enricher.lookup("ok") == {"a": 1}
        assert service.connections == 1


async def test_the_size_of_an_answer_is_bounded_also_when_it_is_compressed() -> None:
    large = json.dumps({"a": 1, "pad": "x" * 200_000}).encode()
    bomb = gzip.compress(b" " * 50_000_000)
    async with FakeService() as service, asked(service, max_response_bytes=100_000) as enricher:
        for answer in (
            FakeAnswer(large),
            FakeAnswer(bomb, headers={"Content-Encoding": "gzip"}),
            FakeAnswer(large, headers={"Content-Encoding": "identity"}),
        ):
            service.answer_next(answer)
            assert "larger than max_response_bytes=100000" in str(await refused(enricher, ["x"]))
        small = gzip.compress(b'{"a": 1}' + b" " * 50_000)
        service.answer_next(FakeAnswer(small, headers={"Content-Encoding": "gzip"}))
        assert await enricher.lookup("x") == {"a": 1}
        service.answer_next(FakeAnswer(bomb, status=404, headers={"Content-Encoding": "gzip"}))
        assert await enricher.lookup("x") is None


# -- batches


async def test_extract_is_for_the_entries_of_a_batch_and_batch_extract_for_the_whole() -> None:
    async with FakeService() as service, asked(service, extract="row", batch_extract="data") as enricher:
        service.answer_next(FakeAnswer({"data": {"x": {"row": {"a": 1}}, "z": {"row": None}}, "more": 1}))
        assert await enricher.lookup_many(["x", "y", "z"]) == [{"a": 1}, None, None]
        service.answer_next(FakeAnswer({"row": {"a": 2}}))
        assert await enricher.lookup("x") == {"a": 2}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([{"a": 1}], "has 1 entries for 2 keys"),
        ([{"a": 1}] * 3, "has 3 entries for 2 keys"),
        ({"k": {"a": 1}, "other": {"a": 2}}, "an entry for 'other', which was not asked for"),
        ({"K": {"a": 1}}, "an entry for 'K'"),
        ("x", "the answer to a batch is 'x'"),
        (None, "the answer to a batch is None"),
        ({"k": 5}, "key 'k': the answer is 5"),
        ({"k": {"a": "x"}, "l": {"a": 1}}, "key 'k': the column 'a' holds 'x'"),
        ([{"a": 1}, {"a": 2.5}], "key 'l': the column 'a' holds 2.5"),
    ],
)
async def test_an_answer_to_a_batch_that_will_not_do_may_be_one_keys_fault(answer: Any, told: str) -> None:
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(FakeAnswer(json.dumps(answer)))
        error = await refused(enricher, ["k", "l"])
        assert told in str(error)
        assert error.any_key is False, "so the batch is split until the key stands alone"


async def test_a_missing_status_of_a_whole_batch_is_no_miss() -> None:
    """It is the same for a path that is not there."""
    async with (
        FakeService({"k": {"a": 1}}) as service,
        asked(service, batch_url=service.url + "/nowhere/{keys}") as enricher,
    ):
        error = await refused(enricher, ["k", "l"])
        assert "404 Not Found" in str(error)
        assert "2 keys from 'k' to 'l'" in str(error)
        assert error.any_key is False
        assert await enricher.lookup("k") == {"a": 1}
