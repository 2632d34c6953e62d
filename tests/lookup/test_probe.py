"""`Enricher.probe` and `try_lookup`: one lookup, opened and closed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncio_operator import Cache, Enricher, EnricherError
from asyncio_operator.enricher import as_schema
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeEnricher, FakeService
from enrichers import HttpEnricher


class Counted(Enricher):
    def __init__(self) -> None:
        self.history: list[str] = []

    def schema(self) -> Any:
        return as_schema("a int")

    async def open(self) -> None:
        self.history.append("open")

    async def lookup(self, key: Any) -> Any:
        self.history.append("lookup")
        if key == "bad":
            raise EnricherError("refused", retryable=False)
        return {"a": 1} if key == "x" else None

    async def close(self) -> None:
        self.history.append("close")


async def test_a_probe_is_one_lookup_between_open_and_close() -> None:
    one = Counted()
    assert await one.probe("x") == {"a": 1}
    assert one.history == ["open", "lookup", "close"]


class Connected(Counted):
    client: Any = None

    async def open(self) -> None:
        self.client = object()

    async def lookup(self, key: Any) -> Any:
        return {"a": 1} if self.client else {"a": "not open"}

    async def close(self) -> None:
        self.client = None


async def test_L8_a_probe_leaves_the_client_of_a_lookup_over_http_open() -> None:
    with FakeService({"x": {"a": 1}}) as service:
        one = HttpEnricher(service.url + "/rows/{key}", schema="a int")
        async with Lookup(one) as lookup:
            assert await lookup.get("x") == await one.probe("x") == one.try_lookup("x") == {"a": 1}
            assert await lookup.get("y") is None


async def test_L8_two_lookups_of_one_enricher_do_not_close_each_others_client() -> None:
    one = Connected()
    async with Lookup(one) as first, Lookup(one, cache=Cache()) as second:
        assert await first.get(1) == await second.get(1) == {"a": 1}
        await first.close()
        assert await second.get(2) == {"a": 1}
        await first.open()
        assert await first.get(2) == {"a": 1}
    assert one.client is None


async def test_L8_a_fake_sees_the_calls_of_its_probes() -> None:
    fake = FakeEnricher({"x": {"a": 1}})
    async with Lookup(fake) as lookup:
        for _ in range(2):
            assert await lookup.get("x") == await fake.probe("x") == {"a": 1}
    assert [call.keys for call in fake.calls] == [("x",)] * 4


def test_a_lookup_is_tried_without_a_loop() -> None:
    one = Counted()
    assert [one.try_lookup(key) for key in ("x", "y", None)] == [{"a": 1}, None, None]
    pickle.dumps(one)


async def test_a_lookup_is_tried_inside_a_running_loop() -> None:
    one = Counted()
    assert one.try_lookup("x") == {"a": 1}
    with pytest.raises(EnricherError, match="refused"):
        one.try_lookup("bad")
    assert one.history == ["open", "lookup", "close"] * 2
