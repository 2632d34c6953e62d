"""What `HttpEnricher` makes of answers: typed columns, `extract`, misses, and whose entry of a batch is whose."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from asyncio_operator import EnricherError, ResultError
from asyncio_operator.enricher import as_schema
from asyncio_operator.lookup import Lookup
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService, check_enricher
from enrichers.http import HttpEnricher
from enrichers.http.answers import Answers, UnreadableError
from tests.enrichers.helpers import asked, asked_in_batches, refused


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
    assert Answers(as_schema("a int"), None, None).found([{}, {"a": 1}]) == [{"a": None}, {"a": 1}]
    assert Answers(as_schema("a int"), lambda answer: answer or None, None).found({}) is None, "as docs/http.md has it"


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
        (
            '{"a": "x"}',
            "'a' holds 'x' (a text), which does not fit int: a number is needed; change its type in schema=",
        ),
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
    return FakeAnswer(JFK if sent.path == "/airports/JFK" else LGA)


async def test_a_number_for_a_string_is_an_error_that_names_coerce_which_takes_it_as_the_answer_writes_it() -> None:
    async with FakeService(handler=airports) as service:
        async with asked(service, **NUMBERS) as enricher:
            error = str(await refused(enricher, ["JFK"]))
        assert "'zip' holds 12345 (a number), which does not fit string: a text is needed; pass coerce" in error
        async with asked(service, **NUMBERS | {"schema": "open string"}) as enricher:
            assert "coerce" not in str(await refused(enricher, ["JFK"])), "a boolean is no number"
        async with asked(service, **NUMBERS, coerce=True) as enricher:
            assert await enricher.lookup("JFK") == {"zip": "12345", "rate": "1.10"}
            assert await enricher.lookup("LGA") == {"zip": "01234", "rate": "2e3"}


# -- batches


def batched(service: FakeService, path: str = "/rows?keys={keys}", **options: Any) -> HttpEnricher:
    return HttpEnricher(service.url + "/rows/{key}", schema="a int", batch_url=service.url + path, **options)


async def test_extract_is_for_the_entries_of_a_batch_and_batch_extract_for_the_whole() -> None:
    async with FakeService() as service, asked_in_batches(service, extract="row", batch_extract="data") as enricher:
        service.answer_next(FakeAnswer({"data": {"x": {"row": {"a": 1}}, "z": {"row": None}}, "more": 1}))
        assert await enricher.lookup_many(["x", "y", "z"]) == [{"a": 1}, None, None]
        service.answer_next(FakeAnswer({"row": {"a": 2}}))
        assert await enricher.lookup("x") == {"a": 2}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"k": {"a": 1}, "other": {"a": 2}}, "an entry for 'other', which was not asked for"),
        ({"k": 5}, "key 'k': the answer is 5"),
        ({"k": {"error": 5}}, "key 'k': the row has none of the columns"),
        ({"k": {"a": "x"}, "l": {"a": 1}}, "key 'k': the column 'a' holds 'x' (a text), which does not fit int:"),
        ([{"a": 1}, {"a": 2.5}], "key 'l': the column 'a' holds 2.5 (a number), which does not fit int:"),
    ],
)
async def test_an_answer_to_a_batch_that_will_not_do_may_be_one_keys_fault(answer: Any, told: str) -> None:
    async with FakeService() as service, asked_in_batches(service) as enricher:
        service.answer_next(FakeAnswer(json.dumps(answer)))
        error = await refused(enricher, ["k", "l"])
        assert told in str(error)
        assert isinstance(error, ResultError) is not told.startswith("an entry for"), "law L9"
        assert error.any_key is False, "so the batch is split until the key stands alone"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([{"a": 1}], "has 1 entries for 2 keys"),
        ([], "has 0 entries for 2 keys"),
        ([{"a": 1}] * 3, "has 3 entries for 2 keys"),
        ({"rows": [{"a": 1}, {"a": 2}], "next": None}, "has the fields ['rows', 'next'], and none of them is a key"),
        ({"K": {"a": 1}}, "has the fields ['K']"),
        ("x", "the answer to a batch is 'x'"),
        (None, "the answer to a batch is None"),
    ],
)
async def test_an_answer_that_has_not_the_form_of_one_to_a_batch_is_no_keys_fault(
    answer: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So the batch is not asked for in pieces, key by key, which would hide that it is set up wrongly."""
    async with FakeService({"k": {"a": 1}, "l": {"a": 2}}) as service:
        service.answer_next(FakeAnswer(json.dumps(answer)))
        async with Lookup(batched(service)) as lookup:
            for error in await asyncio.gather(lookup.get("k"), lookup.get("l"), return_exceptions=True):
                assert isinstance(error, EnricherError)
                assert told in str(error)
                assert "batch_extract=" in str(error)
                assert (error.any_key, error.retryable) == (True, False)
        assert len(service.requests) == 1
    assert caplog.text == ""


async def test_a_path_of_batch_extract_that_leads_nowhere_is_no_keys_fault() -> None:
    async with FakeService() as service, asked_in_batches(service, batch_extract="rows") as enricher:
        service.answer_next(FakeAnswer({}))
        assert (await refused(enricher, ["k", "l"])).any_key is True


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "404 Not Found"),
        (FakeAnswer({"error": "no token hunter2hunter2"}, 400), "400 Bad Request"),
        (FakeAnswer("<p>Welcome"), "is not JSON"),
        (FakeAnswer({str(i): {"a": i} for i in (0, 2, 4, 6, 8, 9)}), "an entry for '9', which was not asked for"),
        (FakeAnswer({"pad": "x" * 2000}), "larger than max_response_bytes"),
    ],
)
async def test_a_batch_that_one_key_may_have_spoilt_comes_key_by_key_and_this_is_logged_once(
    answer: FakeAnswer | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeService({str(i): {"a": i} for i in range(8)}, handler=lambda _: answer) as service:
        enricher = batched(service, "/many?keys={keys}", max_response_bytes=1000, headers={"X-Token": "hunter2hunter2"})
        async with Lookup(enricher) as lookup:
            found = await asyncio.gather(*(lookup.get(str(i)) for i in range(9)))
            assert found == [*({"a": i} for i in range(8)), None]
            assert [*await asyncio.gather(lookup.get("3"), lookup.get("4"))] == [{"a": 3}, {"a": 4}]
        assert len([sent for sent in service.requests if sent.path == "/many"]) > 2
    record, every = caplog.records
    assert "every call of lookup_many with several values has failed so far" in every.getMessage()
    assert "hunter2" not in every.getMessage()
    assert (record.levelname, record.name) == ("WARNING", "asyncio_operator.http")
    assert told in record.getMessage()
    assert "hunter2" not in record.getMessage()
    assert "9 keys from '0' to '8'" in record.getMessage()
    assert "correct batch_url, batch_json_body or batch_extract" in record.getMessage()


async def test_what_makes_no_smaller_batches_is_not_logged_as_if_it_did(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeService() as service, asked_in_batches(service) as enricher:
        service.answer_next(FakeAnswer(status=401), FakeAnswer(status=503), FakeAnswer({"k": 5}))
        for other in ("l", "l", "l", "\ud800"):
            with pytest.raises(EnricherError):
                await enricher.lookup_many(["k", other])
    assert caplog.text == ""


# -- the contract


ROWS = {"JFK": {"city": "New York", "rank": 6}, "a/b": {"city": "Ü", "rank": None}, "two": [{"rank": 1}, {"rank": 2}]}
SECRET = "hunter2hunter2"


@pytest.mark.parametrize("batch", [None, "map", "list"])
def test_it_keeps_the_contract_of_all_enrichers(batch: str | None) -> None:
    with FakeService(ROWS, batch=batch or "map") as service:
        options: dict[str, Any] = {
            "headers": lambda: {"Authorization": f"Bearer {SECRET}"},
            "params": {"token": SECRET},
            "extract": lambda answer: answer,
        }
        if batch is not None:
            options["batch_url"] = service.url + "/rows?keys={keys}"

        def make() -> HttpEnricher:
            return HttpEnricher(service.url + "/rows/{key}", schema="city string, rank int", **options)

        known = {
            "JFK": {"city": "New York", "rank": 6},
            "a/b": {"city": "Ü", "rank": None},
            "two": [{"city": None, "rank": 1}, {"city": None, "rank": 2}],
        }
        check_enricher(make, known=known, missing=["LAX", "é"], secrets=[SECRET])
