"""`empty_key`: an empty key is an error where it has no place, or, by choice, a miss that is not asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import asked, asked_in_batches, failure


def found(sent: FakeRequest) -> dict[str, int]:
    """A row that holds the length of the key."""
    return {"a": len(sent.query["q"][0]) if sent.query else len(sent.path.rpartition("/")[2])}


@pytest.mark.parametrize("url", ["/find/{key}", "/find?q={key}"])
async def test_L1_an_empty_key_is_a_miss_by_choice_and_is_not_asked_for(url: str) -> None:
    async with FakeService(handler=found) as service, asked(service, url, empty_key="miss") as enricher:
        assert await enricher.lookup("") is None
        assert await enricher.lookup("x") == {"a": 1}
    assert len(service.requests) == 1


async def test_an_empty_key_is_an_error_where_it_has_no_place_and_the_error_names_the_choice() -> None:
    async with FakeService(handler=found) as service:
        async with asked(service, "/find/{key}") as enricher:
            assert 'empty_key="miss" makes an empty key a miss' in str(await failure(enricher, ""))
            assert "empty_key" not in str(await failure(enricher, ".."))
        assert service.requests == []
        async with asked(service, "/find?q={key}") as enricher:
            assert await enricher.lookup("") == {"a": 0}, "elsewhere it is sent"


async def test_L1_an_empty_part_of_a_key_is_a_miss_by_choice() -> None:
    async with FakeService({("x", "y"): {"a": 1}}) as service:
        async with asked(service, "/rows/{p}/{q}", key=["p", "q"], empty_key="miss") as enricher:
            assert await enricher.lookup(("x", "y")) == {"a": 1}
            for key in (("", "y"), ("x", ""), ("", ""), (None, "y")):
                assert await enricher.lookup(key) is None
        assert len(service.requests) == 1
        async with asked(service, "/rows/{p}/{q}", key=["p", "q"]) as enricher:
            assert 'empty_key="miss"' in str(await failure(enricher, ("x", "")))


async def test_L1_empty_keys_of_a_batch_are_misses_and_are_not_sent() -> None:
    rows = {"x": {"a": 1}, "y": {"a": 2}}
    async with FakeService(rows) as service, asked_in_batches(service, empty_key="miss") as enricher:
        assert await enricher.lookup_many(["", "x", "", "y", None]) == [None, {"a": 1}, None, {"a": 2}, None]
        assert await enricher.lookup_many(["", ""]) == [None, None]
    assert [request.query for request in service.requests] == [{"keys": ["x,y"]}]


def in_order(request: FakeRequest) -> Any:
    """What services that split a list at its commas answer: they leave empty parts out."""
    texts = request.query.get("keys") or [request.headers.get("x-keys", "")]
    if request.path != "/many":
        return found(request)
    return [{"a": len(text)} for text in texts[0].split(",") if text]


@pytest.mark.parametrize(
    "options", [{"batch_url": "/many?keys={keys}"}, {"batch_url": "/many", "headers": {"X-Keys": "{keys}"}}]
)
async def test_B4_an_empty_key_in_a_list_with_commas_is_the_error_of_that_key_alone(options: dict[str, Any]) -> None:
    async with FakeService(handler=in_order) as service:
        options["batch_url"] = service.url + options["batch_url"]
        enricher = HttpEnricher(service.url + "/find/{key}", schema="a int", **options)
        async with Lookup(enricher) as lookup:
            lookups = [lookup.get(key) for key in ("tea", "", "coffee")]
            tea, empty, coffee = await asyncio.gather(*lookups, return_exceptions=True)
    assert (tea, coffee) == ({"a": 3}, {"a": 6})
    assert "key ''" in str(empty)
    assert 'empty_key="miss"' in str(empty)


async def test_an_empty_key_has_its_place_in_a_json_list() -> None:
    def rows(request: FakeRequest) -> list[dict[str, int]]:
        return [{"a": len(key)} for key in request.json()]

    async with FakeService(handler=rows) as service:
        options = {"batch_url": service.url + "/many", "batch_json_body": "{keys}"}
        async with asked(service, "/find?q={key}", **options) as enricher:
            assert await enricher.lookup_many(["tea", ""]) == [{"a": 3}, {"a": 0}]
