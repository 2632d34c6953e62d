"""What `HttpEnricher` makes of answers to several keys: whose entry is whose, and who is to blame for a failure."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asyncio_operator import EnricherError
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import asked_in_batches, refused


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
    async with FakeService({"k": {"a": 1}}) as service, asked_in_batches(service, batch_extract="rows") as enricher:
        error = await refused(enricher, ["k", "l"])
        assert error.any_key is True
        assert await enricher.lookup("k") == {"a": 1}


def by_code(answer: Any) -> Any:
    return {row["code"]: row for row in answer}


def by_number(answer: Any) -> Any:
    return {str(int(row["code"])): row for row in answer}


def by_first(answer: Any) -> Any:
    return {row["codes"][0]: row for row in answer}


@pytest.mark.parametrize(
    ("extract", "good", "bad"),
    [
        (by_code, lambda key: {"code": key, "a": 1}, {"id": "7", "a": 1}),
        (by_code, lambda key: {"code": key, "a": 1}, None),
        (by_code, lambda key: {"code": key, "a": 1}, {"code": ["7"], "a": 1}),
        (by_number, lambda key: {"code": key, "a": 1}, {"code": "7x", "a": 1}),
        (by_first, lambda key: {"codes": [key], "a": 1}, {"codes": [], "a": 1}),
    ],
)
async def test_X14_an_error_in_a_function_for_a_batch_costs_the_key_that_it_cannot_take(
    extract: Any, good: Any, bad: Any
) -> None:
    def many(request: Any) -> FakeAnswer | None:
        asked = request.query["keys"][0].split(",")
        return FakeAnswer([bad if key == "7" else good(key) for key in asked])

    rows = {str(key): {"a": 1} for key in range(200) if key != 7}
    async with FakeService(rows, handler=lambda request: many(request) if request.path == "/many" else None) as service:
        enricher = batched(service, "/many?keys={keys}", batch_extract=extract)
        async with Lookup(enricher) as lookup:
            found = await asyncio.gather(*(lookup.get(str(key)) for key in range(200)))
    assert found == [None if key == 7 else {"a": 1} for key in range(200)]


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
        for answer in (FakeAnswer(status=401), FakeAnswer(status=503), FakeAnswer({"k": 5})):
            service.answer_next(answer)
            with pytest.raises(EnricherError):
                await enricher.lookup_many(["k", "l"])
        with pytest.raises(EnricherError, match="cannot be sent"):
            await enricher.lookup_many(["k", "\ud800"])
    assert caplog.text == ""


async def test_a_missing_status_of_a_whole_batch_is_no_miss() -> None:
    """It is the same for a path that is not there."""
    async with (
        FakeService({"k": {"a": 1}}) as service,
        asked_in_batches(service, batch_url=service.url + "/nowhere/{keys}") as enricher,
    ):
        error = await refused(enricher, ["k", "l"])
        assert "404 Not Found" in str(error)
        assert "2 keys from 'k' to 'l'" in str(error)
        assert error.any_key is False
        assert await enricher.lookup("k") == {"a": 1}
