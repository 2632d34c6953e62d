"""What `HttpEnricher` makes of answers: typed columns, `extract`, misses, and the entries of batches."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Cache, EnricherError
from asyncio_operator.enricher import as_schema
from asyncio_operator.lookup import Lookup
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from enrichers.http.answers import Answers, UnreadableError
from tests.enrichers.helpers import asked, asked_in_batches, refused


def read(ddl: str, text: str) -> Any:
    """The value of the column ``c`` for a JSON value."""
    answers = Answers(as_schema(f"c {ddl}"), None, None)
    row: Any = answers.found(answers.parse(f'{{"c": {text}}}'.encode(), ""))
    return row["c"]


@pytest.mark.parametrize(
    ("ddl", "text", "told"),
    [
        ("int", "1.5", "the column 'c' holds 1.5 (a number), which does not fit int: it is no whole number"),
        ("double", "1e999", "the column 'c' holds Decimal('1E+999') (a number), which does not fit double: it is too"),
        ("struct<a:array<int>>", '{"a": [7, "x"]}', "the column 'c.a[1]' holds 'x' (a text), which does not fit int:"),
        ("int NOT NULL", "null", "the column 'c' holds null, which does not fit int: null is not allowed"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_column_value_and_type(ddl: str, text: str, told: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        read(ddl, text)
    assert told in str(caught.value)
    assert "change its type in schema=" in str(caught.value)


@pytest.mark.parametrize(
    ("extract", "answer"),
    [
        (None, {"error": "no quota", "code": 7}),
        (None, [{"a": 1}, {"error": "no quota", "code": 7}]),
        ("data", {"data": {"error": "no quota", "code": 7}, "a": 1}),
        (lambda _: {"error": "no quota", "code": 7}, {"a": 1}),
    ],
)
def test_an_object_with_none_of_the_columns_is_no_row_and_is_told_with_its_fields(extract: Any, answer: Any) -> None:
    with pytest.raises(UnreadableError) as caught:
        Answers(as_schema("a int, b string"), extract, None).found(answer)
    for told in ("['a', 'b']", "['error', 'code']", "'no quota'", "extract=", "raise EnricherError"):
        assert told in str(caught.value)


def test_an_empty_object_is_a_row_of_nulls() -> None:
    answers = Answers(as_schema("a int"), None, None)
    assert answers.found({}) == {"a": None}
    assert answers.found([{}, {"a": 1}]) == [{"a": None}, {"a": 1}]
    assert Answers(as_schema("a int"), lambda answer: answer or None, None).found({}) is None, "as docs/http.md has it"


def test_a_schema_without_columns_takes_every_object() -> None:
    assert Answers(pa.schema([]), None, None).found({"x": 1}) == {}


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
        ("data.items.0.a", "the answer is 1, which is not a row"),
        (lambda answer: answer["nope"], "extract: <lambda> raised KeyError: 'nope'"),
        (lambda answer: answer[7], "extract: <lambda> raised KeyError: 7"),
        (
            lambda _: int("one"),
            "extract: <lambda> raised ValueError: \"invalid literal for int() with base 10: 'one'\"",
        ),
        (lambda _: {}.popitem(), "extract: <lambda> raised KeyError: 'popitem(): dictionary is empty'"),
        (lambda _: [1], "a row of the answer is 1"),
        (lambda _: "x", "the answer is 'x', which is not a row"),
    ],
)
def test_extract_that_leads_elsewhere_is_told(extract: Any, told: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        Answers(as_schema("a int"), extract, None).found(NESTED)
    assert told in str(caught.value)


@pytest.mark.parametrize("length", range(150, 215))
def test_X5_no_half_of_a_secret_is_left_where_the_words_of_extract_are_cut(length: int) -> None:
    def tell(_: Any) -> Any:
        raise ValueError("x" * length + "hunter2hunter2")

    with pytest.raises(UnreadableError) as caught:
        Answers(as_schema("a int"), tell, None, Secrets(["hunter2hunter2"]).show).found({})
    assert "hunter" not in str(caught.value)


# -- over HTTP


async def test_missing_statuses_are_misses_and_others_are_not() -> None:
    async with FakeService() as service:
        async with asked_in_batches(service) as enricher:
            assert await enricher.lookup("x") is None
            service.answer_next(FakeAnswer(status=204))
            assert "is empty" in str(await refused(enricher, ["x"]))
        async with asked_in_batches(service, missing_statuses=[204, 410]) as enricher:
            for status in (204, 410):
                service.answer_next(FakeAnswer(status=status))
                assert await enricher.lookup("x") is None
            assert "404 Not Found" in str(await refused(enricher, ["x"]))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<html>login</html>", "of type 'application/json' is not JSON"),
        ('{"a": 1', "is not JSON"),
        (b'{"a": "\xff"}', "not in UTF-8"),
        ("[" * 100_000, "RecursionError"),
        ("1" * 10_000, "is not JSON"),
        ("5", "the answer is 5, which is not a row"),
        ('["x"]', "a row of the answer is 'x'"),
        ('{"a": "x"}', "the column 'a' holds 'x' (a text), which does not fit int:"),
    ],
    ids=lambda value: str(value[:20]),
)
async def test_an_answer_that_will_not_do_is_an_error_of_that_key_alone(body: Any, told: str) -> None:
    async with FakeService({"ok": {"a": 1}}) as service, asked_in_batches(service) as enricher:
        service.answer_next(FakeAnswer(body))
        error = await refused(enricher, ["k"])
        assert told in str(error)
        assert "key 'k': " in str(error)
        assert len(str(error)) < 600
        assert await enricher.lookup("ok") == {"a": 1}
        assert service.connections == 1


async def test_an_error_that_comes_with_200_is_not_kept_as_a_row() -> None:
    async with FakeService({"k": {"a": 1}}) as service:
        enricher = HttpEnricher(service.url + "/rows/{key}", schema="a int")
        async with Lookup(enricher, cache=Cache()) as lookup:
            service.answer_next(FakeAnswer({"error": "try later"}))
            with pytest.raises(EnricherError, match="key 'k': the row has none of the columns"):
                await lookup.get("k")
            assert await lookup.get("k") == {"a": 1}


async def test_X5_what_an_answer_without_columns_says_shows_no_secret() -> None:
    async with FakeService() as service, asked_in_batches(service, params={"token": "hunter2hunter2"}) as enricher:
        service.answer_next(FakeAnswer({"error": "bad token hunter2hunter2", "hunter2hunter2": 1}))
        assert "hunter2" not in str(await refused(enricher, ["x"]))


async def test_a_page_for_people_is_told_by_its_beginning() -> None:
    page = "<!doctype html>\n<title>Sign in</title>\n<script>" + "x" * 100_000 + "</script>"
    async with FakeService() as service, asked_in_batches(service, params={"token": "hunter2hunter2"}) as enricher:
        service.answer_next(
            FakeAnswer(page, headers={"Content-Type": "text/html"}),
            FakeAnswer("<p>token: hunter2hunter2"),
            FakeAnswer("OK"),
        )
        error = str(await refused(enricher, ["k"]))
        assert "of type 'text/html' is not JSON" in error
        assert "it begins with '<!doctype html> <title>Sign in</title>" in error
        assert "check the URL and the credentials" in error
        assert len(error) < 600
        assert "begins with '<p>token: ***'" in str(await refused(enricher, ["k"]))
        assert str(await refused(enricher, ["k"])).endswith("it begins with 'OK'")


async def test_the_size_of_an_answer_is_bounded_also_when_it_is_compressed() -> None:
    large = json.dumps({"a": 1, "pad": "x" * 200_000}).encode()
    bomb = gzip.compress(b" " * 50_000_000)
    async with FakeService() as service, asked_in_batches(service, max_response_bytes=100_000) as enricher:
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


JFK = b'{"zip": 12345, "rate": 1.10, "open": true}'
LGA = b'{"zip": "01234", "rate": 2e3}'
NUMBERS: dict[str, Any] = {"schema": "zip string, rate string", "url": "/airports/{key}"}


def airports(sent: FakeRequest) -> FakeAnswer:
    """Rows of a service that writes some of its texts as numbers."""
    match sent.path:
        case "/airports/JFK":
            return FakeAnswer(JFK)
        case "/airports/LGA":
            return FakeAnswer(LGA)
    return FakeAnswer(b'{"JFK": %b, "LGA": %b}' % (JFK, LGA))


async def test_a_number_for_a_string_is_an_error_that_names_coerce() -> None:
    async with FakeService(handler=airports) as service:
        async with asked(service, **NUMBERS) as enricher:
            error = str(await refused(enricher, ["JFK"]))
        assert (
            "the column 'zip' holds 12345 (a number), which does not fit string: a text is needed; pass coerce" in error
        )
        async with asked(service, **NUMBERS | {"schema": "open string"}) as enricher:
            assert "coerce" not in str(await refused(enricher, ["JFK"])), "a boolean is no number"


@pytest.mark.parametrize("store", [None, "heap", "rocksdb"])
async def test_with_coerce_numbers_are_text_as_the_answer_writes_them(store: str | None, tmp_path: Path) -> None:
    cache = None if store is None else Cache(store=store, directory=str(tmp_path) if store == "rocksdb" else None)
    async with FakeService(handler=airports) as service:
        enricher = HttpEnricher(service.url + "/airports/{key}", schema=NUMBERS["schema"], coerce=True)
        async with Lookup(enricher, cache=cache) as lookup:
            for _ in range(2):
                assert await lookup.get("JFK") == {"zip": "12345", "rate": "1.10"}
                assert await lookup.get("LGA") == {"zip": "01234", "rate": "2e3"}
        assert len(service.requests) == (4 if cache is None else 2)
