"""What the loggers of the parts tell at INFO and DEBUG, and that nothing secret is in it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from asyncio_operator import CircuitBreaker, FixedBackoff, Retry
from asyncio_operator.engine.lent import Lent
from asyncio_operator.lookup import Lookup
from asyncio_operator.policies.circuit_breaker import Breaker
from asyncio_operator.spark.worker.process import Client, this_process
from enrichers import FunctionEnricher, PostgresEnricher


def raising() -> Any:
    raise AssertionError("it is kept")


async def test_an_enricher_that_opens_and_closes_is_told_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    class Quiet(PostgresEnricher):
        async def open(self) -> None:
            """Nothing is connected."""

    caplog.set_level(logging.INFO, "asyncio_operator.clients")
    clients: Lent[str, Client] = Lent(end=Client.close)
    enricher = Quiet("postgresql://me:s3cr3t-word@db/shop", table="planes", key="id")
    async with replace(this_process, clients=clients).opened("f", enricher):
        pass
    clients.give_back("f", clients.borrow("f", raising), keep=False)
    ending = clients.ending("f")
    assert ending is not None
    await ending
    first, last = caplog.messages
    assert "is open, after 0.0" in first
    assert last.endswith("is closed")
    assert "s3cr3t" not in caplog.text


def test_a_circuit_breaker_tells_when_it_opens_and_closes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncio_operator.circuit_breaker")
    breaker = Breaker(CircuitBreaker(failure_ratio=0.5, window=30.0, minimum_calls=2, open_for=10.0))
    for _ in range(2):
        breaker.failed(1.0, 0.5)
    assert breaker.allow(20.0)
    breaker.succeeded(21.0, 20.0)
    assert caplog.messages == [
        "the circuit breaker opens for 10 s: 2 of 2 calls have failed",
        "the circuit breaker closes: a call has succeeded again",
    ]


async def test_an_attempt_that_is_repeated_is_told_at_debug_without_its_key(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[str] = []

    async def look_up(key: str) -> Any:
        tried.append(key)
        if len(tried) == 1:
            raise OSError("about secret-key")
        return {"x": 1}

    caplog.set_level(logging.DEBUG, "asyncio_operator.calls")
    async with Lookup(FunctionEnricher(look_up, "x long"), retry=Retry(2, FixedBackoff(0.0))) as lookup:
        assert await lookup.get("secret-key") == {"x": 1}
    assert "attempt 1 of an element failed with OSError" in caplog.messages
    assert "secret-key" not in caplog.text


async def test_the_first_call_of_a_run_is_told_without_its_key(caplog: pytest.LogCaptureFixture) -> None:
    async def look_up(key: str) -> Any:
        if key == "secret-key":
            raise OSError("about secret-key")
        return {"x": 1}

    caplog.set_level(logging.INFO, "asyncio_operator.calls")
    for keys in (["a", "b"], ["secret-key"]):
        caplog.clear()
        async with Lookup(FunctionEnricher(look_up, "x long")) as lookup:
            await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)
        starts, ended = caplog.messages
        assert starts.startswith("the first call of FunctionEnricher(")
        assert starts.endswith("look_up, x) starts")
        assert "look_up, x) has ended, after 0.0" in ended
        assert "secret-key" not in caplog.text
