"""The rule that a lookup does not block the loop, on a clock that the enricher turns, and once in real time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncio_operator import Enricher
from asyncio_operator.enricher import Found
from asyncio_operator.testing import ManualClock
from asyncio_operator.testing.enricher_contract.check_enricher import HELD, rule_loop_is_free
from asyncio_operator.testing.enricher_contract.rules import Check
from enrichers import BlockingEnricher, FunctionEnricher
from tests.testing.broken_enrichers import MISSING, ROWS, Ordinary, RaisesForMissing, Sound


def check_blocking(make: Callable[[], Enricher]) -> None:
    rule_loop_is_free(Check(make, ROWS, MISSING, (), None, 10))


def sleeps(key: Any) -> Found:
    time.sleep(1.2 * HELD)
    found: Found = ROWS.get(key)
    return found


def test_a_lookup_that_sleeps_on_the_loop_is_caught_and_one_in_a_thread_is_not() -> None:
    async def lookup(key: Any) -> Found:
        await asyncio.sleep(0)
        return sleeps(key)

    schema = "name string, height int"
    with pytest.raises(AssertionError, match=r"0\.0\d+ s at a time.* BlockingEnricher") as raised:
        check_blocking(lambda: FunctionEnricher(lookup, schema))
    assert str(raised.value).startswith("lookup('JFK') held the event loop")
    check_blocking(lambda: BlockingEnricher(sleeps, schema, 4))


class BlocksIn(Sound):
    """Blocks where its arguments say: in a task that a lookup makes, in `lookup_many`, or in some calls only."""

    def __init__(self, clock: ManualClock, place: str, calls: int = 10**9) -> None:
        super().__init__()
        self.clock, self.place, self.calls = clock, place, calls

    def block(self, place: str) -> None:
        if place == self.place and self.calls > 0:
            self.calls -= 1
            self.clock.advance(2 * HELD)

    async def lookup(self, key: Any) -> Found:
        self.block("lookup")
        found: Found = await asyncio.create_task(self.asked(key))
        return found

    async def asked(self, key: Any) -> Found:
        self.clock.advance(0.9 * HELD)
        await asyncio.sleep(0)
        self.block("task")
        found: Found = ROWS.get(key)
        return found

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        self.block("many")
        return await super().lookup_many(keys)


@pytest.mark.parametrize(
    ("place", "says"),
    [("lookup", "lookup('JFK') held"), ("task", "lookup('JFK') held"), ("many", "lookup_many() held")],
)
def test_blocking_is_found_wherever_a_lookup_does_it(place: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr("asyncio_operator.testing.enricher_contract.check_enricher.monotonic", clock)
    with pytest.raises(AssertionError, match=re.escape(says)):
        check_blocking(lambda: BlocksIn(clock, place))
    check_blocking(lambda: BlocksIn(clock, "nowhere"))


@pytest.mark.parametrize("place", ["lookup", "task", "many"])
def test_what_holds_the_loop_now_and_then_is_the_machine_or_an_import(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("asyncio_operator.testing.enricher_contract.check_enricher.monotonic", clock)
    check_blocking(lambda: BlocksIn(clock, place, calls=4))
    with pytest.raises(AssertionError, match="held"):
        check_blocking(lambda: BlocksIn(clock, place, calls=5))


def test_what_a_lookup_raises_is_for_other_rules() -> None:
    check_blocking(RaisesForMissing)
    check_blocking(Ordinary)
