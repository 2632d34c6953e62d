"""`check_enricher` catches an enricher that breaks a rule, one for each, and lets those pass that do not.

Whether a lookup blocks the loop is seen on a clock that the enricher turns, and once in real time.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import Found
from asyncio_operator.testing import FakeEnricher, ManualClock, VirtualTimeLoop, check_enricher
from asyncio_operator.testing.enricher_contract.check_enricher import HELD, RULES, rule_loop_is_free
from asyncio_operator.testing.enricher_contract.rules import Check
from enrichers import BlockingEnricher, FunctionEnricher, enricher
from tests.testing.broken_enrichers import (
    BROKEN,
    MISSING,
    ROWS,
    SECRET,
    SOCKETS,
    STOP,
    Blocks,
    LooksNothingUp,
    Ordinary,
    RaisesForMissing,
    ShowsItsPassword,
    Sound,
    changed,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is left behind is not waited for as long as usual; and gone after the test."""
    monkeypatch.setattr("asyncio_operator.testing.enricher_contract.check_enricher.SETTLING", 0.05)
    STOP.clear()
    yield
    STOP.set()
    for left in SOCKETS:
        left.close()


def rows_by(rule: str) -> Any:
    """What a rule needs to know: rules of shapes alone are broken first if rows are compared."""
    return [*ROWS] if rule in ("rule_types", "rule_lookup_many") else ROWS


@pytest.mark.parametrize(("rule", "broken", "says"), BROKEN)
def test_the_check_catches(rule: str, broken: type[Enricher], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio_operator.testing.enricher_contract.check_enricher.monotonic", Blocks.clock)
    with pytest.raises(AssertionError) as raised:
        check_enricher(
            broken, known=rows_by(rule), missing=MISSING, secrets=[SECRET], loop_factory=VirtualTimeLoop, patience=5
        )
    assert str(raised.value).startswith(f"{rule} ("), str(raised.value)
    assert says in str(raised.value)
    assert SECRET not in str(raised.value)


def test_there_is_a_broken_enricher_for_every_rule() -> None:
    assert {rule for rule, _, _ in BROKEN} == {rule.__name__ for rule in RULES}


class Poisoned(Sound):
    """Its error for a batch with the key "bad" is the class attribute."""

    max_batch = 500
    error: Exception | None = ValueError("bad row")
    lone: Exception | None = ValueError("bad row")

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        error = self.error if len(keys) > 1 else self.lone
        if "bad" in keys and error is not None:
            raise error
        return [ROWS.get(key) for key in keys]


class Swallows(Poisoned):
    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        if "bad" in keys and len(keys) == 1:
            raise ValueError("bad row")
        return [None if "bad" in keys else ROWS.get(key) for key in keys]


def check_poison(kind: type[Enricher], **options: Any) -> None:
    options = {"known": ROWS, "missing": MISSING, "poison": ["bad"]} | options
    check_enricher(kind, loop_factory=VirtualTimeLoop, **options)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            changed(Poisoned, error=EnricherError("busy", retryable=True)),
            "of which 'bad' is poisoned, raised an error that fails all of them: EnricherError: busy",
        ),
        (changed(Poisoned, error=EnricherError("no table", any_key=True)), "EnricherError: no table"),
        (changed(Poisoned, error=ConnectionError("lost")), "must be no TimeoutError or ConnectionError"),
        (changed(Poisoned, error=None, lone=None), "the poisoned key 'bad' gave None; its lookup must fail"),
        (Swallows, "was not found"),
    ],
)
def test_X14_a_poisoned_key_that_takes_others_with_it_is_caught(kind: type[Enricher], says: str) -> None:
    with pytest.raises(AssertionError) as raised:
        check_poison(kind)
    assert str(raised.value).startswith("rule_poison ("), str(raised.value)
    assert says in str(raised.value)
    check_poison(kind, poison=None)


def test_X14_a_poisoned_key_that_costs_one_row_passes() -> None:
    check_poison(Poisoned)
    with pytest.raises(ConfigurationError, match="poison needs known"):
        check_poison(Poisoned, known=None)


def test_a_sound_one_passes() -> None:
    check_enricher(Sound, known=ROWS, missing=MISSING, secrets=[SECRET], loop_factory=VirtualTimeLoop)


def test_without_keys_the_rules_that_need_none_are_checked() -> None:
    check_enricher(Sound, loop_factory=VirtualTimeLoop)
    with pytest.raises(AssertionError, match="rule_secrets"):
        check_enricher(ShowsItsPassword, secrets=[SECRET], loop_factory=VirtualTimeLoop)


class InBatches(Sound):
    """Implements `lookup_many`, and leaves `lookup` to its default."""

    lookup = Enricher.lookup

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        return [await Sound.lookup(self, key) for key in keys]


def test_one_that_implements_lookup_many_alone_passes() -> None:
    check_enricher(InBatches, known=ROWS, missing=MISSING, secrets=[SECRET], loop_factory=VirtualTimeLoop)


class CallsTheDefault(InBatches):
    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        return await Enricher.lookup_many(self, keys)


@pytest.mark.parametrize("kind", [LooksNothingUp, CallsTheDefault])
async def test_one_without_a_lookup_says_so_at_its_first_lookup(kind: type[Enricher]) -> None:
    for call in (kind().lookup("JFK"), kind().lookup_many(["JFK"])):
        with pytest.raises(TypeError, match=f"{kind.__name__} has no lookup of its own; write"):
            await call


class Measured(Sound):
    """Each answer has a NaN of its own, as an answer that was parsed has."""

    def schema(self) -> pa.Schema:
        return pa.schema([("v", pa.float64()), ("all", pa.list_(pa.float64()))])

    async def lookup(self, key: Any) -> Found:
        return {"v": float("nan"), "all": [1.0, float("nan")]} if key == "JFK" else None


def test_a_sound_one_with_nan_in_its_rows_passes() -> None:
    for known in (["JFK"], {"JFK": {"v": float("nan"), "all": [1.0, float("nan")]}}):
        check_enricher(Measured, known=known, missing=MISSING, loop_factory=VirtualTimeLoop)


@pytest.mark.parametrize(
    "row",
    [
        {"v": 1.0, "all": [1.0, float("nan")]},
        {"v": float("nan"), "all": [float("nan"), 1.0]},
        {"v": float("nan"), "all": [1.0]},
        {"v": float("nan")},
        {"v": None, "all": [1.0, float("nan")]},
    ],
)
def test_nan_is_equal_to_nan_alone(row: Any) -> None:
    with pytest.raises(AssertionError, match="rule_found"):
        check_enricher(Measured, known={"JFK": row}, missing=MISSING, loop_factory=VirtualTimeLoop)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"make": 1}, "make is 1"),
        ({"make": lambda: 1}, "make gave 1"),
        ({"make": itertools.repeat(Sound()).__next__}, r"make gave the same object twice, .*lambda: copy\.copy\(it\)"),
        ({"known": {}}, "known and missing"),
        ({"missing": []}, "known and missing"),
        ({"known": "JFK"}, "known is 'JFK'"),
        ({"patience": 0}, "patience"),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        check_enricher(**{"make": Sound, "known": ROWS, "missing": MISSING} | arguments)


async def test_within_a_running_loop_it_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="to_thread"):
        check_enricher(Sound, known=ROWS, missing=MISSING)


@pytest.mark.parametrize("max_batch", [1, 2, 100])
def test_a_fake_enricher_passes(max_batch: int) -> None:
    def make() -> Enricher:
        return FakeEnricher(ROWS, latency=lambda random: random.expovariate(20), max_batch=max_batch)

    check_enricher(make, known=ROWS, missing=MISSING, loop_factory=VirtualTimeLoop, patience=100)


async def airport(key: Any) -> Found:
    await asyncio.sleep(0.001)
    found: Found = ROWS.get(key)
    return found


decorated = enricher("name string, height int")(airport)


@pytest.mark.parametrize(
    "make",
    [lambda: FunctionEnricher(airport, "name string, height int"), lambda: copy.copy(decorated)],
    ids=["function", "copy of a decorated one"],
)
def test_an_enricher_of_a_function_passes(make: Any) -> None:
    check_enricher(make, known=ROWS, missing=MISSING)


def check_blocking(make: Callable[[], Enricher]) -> None:
    check = Check(make, ROWS, MISSING, (), None, 10)
    check.run(lambda: rule_loop_is_free(check))


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
