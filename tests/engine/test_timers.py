"""O20 and R2: the timers of a run are one ordered set with one alarm on the loop."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import asyncio_operator
from asyncio_operator import (
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    Budget,
    CircuitBreaker,
    FixedBackoff,
    Hedge,
    Limit,
    RateLimit,
    Retry,
)
from asyncio_operator.engine.timers import Timers
from asyncio_operator.testing import VirtualTimeLoop
from tests.operator.helpers import Life, collect, now, run_on, virtual

SOURCE = Path(asyncio_operator.__file__).parent


class CountingLoop(VirtualTimeLoop):
    """Knows who sets timers on it.

    Attributes:
        set: how many timers were set, by the name of the function that they call.
        alarms: those of `Timers` that wait, by their owner.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set: Counter[str] = Counter()
        self.alarms: dict[object, list[asyncio.TimerHandle]] = {}

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> asyncio.TimerHandle:
        self.set[callback.__qualname__] += 1
        owner = getattr(callback, "__self__", None)
        if not isinstance(owner, Timers):
            return super().call_at(when, callback, *args, **kwargs)

        def rings() -> None:
            del self.alarms[owner][0]
            callback()

        waiting = [one for one in self.alarms.get(owner, ()) if not one.cancelled()]
        assert not waiting, "a second alarm is set while one waits"
        handle = super().call_at(when, rings, *args, **kwargs)
        self.alarms[owner] = [handle]
        return handle


class Trying(BatchAsyncFunction[int, int]):
    """Some values fail at first, some calls take long, and some values never end."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    async def invoke_batch(self, values: Any) -> Any:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        for value in values:
            self.seen[value] = self.seen.get(value, 0) + 1
        if any(value % 50 == 49 for value in values):
            await done
        # No timer of asyncio: those that the test counts are not the function's.
        for _ in range(5 if values[0] % 7 else 60):
            await asyncio.sleep(0)
        if any(value % 10 == 3 and self.seen[value] < 3 for value in values):
            raise ConnectionError(values)
        return [value * 2 for value in values]


def test_O20_a_run_with_every_option_has_one_alarm_on_the_loop_and_no_other_timer() -> None:
    function = Trying()
    operator = AsyncWaitOperator(
        function,
        mode="unordered",
        capacity=8,
        timeout=4.0,
        attempt_timeout=0.6,
        retry=Retry(4, FixedBackoff(0.05)),
        on_error="skip",
        batching=Batching(3, linger=0.01),
        rate_limit=RateLimit(50, 1.0),
        circuit_breaker=CircuitBreaker(0.9, minimum_calls=50, open_for=0.1),
        hedge=Hedge(after=0.02, extra=0.2),
        budget=Budget("O20", Limit(60, 1.0)),
    )

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        outputs = operator.process(range(300))
        got = [await anext(outputs) for _ in range(250)]
        assert len(set(got)) == 250
        assert operator.metrics.retries
        # The budget limits each message to its coordinator.
        assert set(loop.set) <= {"Timers._wake", "Timeout._on_timeout"}, "no other timer is set on the loop"
        assert len(loop.alarms) == 2, "one is the run's; the other belongs to the budget, which outlives the run"
        await outputs.aclose()

    run_on(CountingLoop, main())


@pytest.mark.parametrize("options", [{"timeout": 30.0}, {"hedge": Hedge(2.0, extra=0.5), "mode": "unordered"}])
def test_O20_H1_a_deadline_or_hedge_costs_one_timer_for_a_lane_and_a_period(options: dict[str, Any]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)

        async def call(value: int) -> int:
            await asyncio.sleep(0)
            return value

        outputs = AsyncWaitOperator(call, capacity=10, **options).process(range(2_000))
        for value in range(1_990):
            assert await anext(outputs) == value
        assert loop.set == {"Timers._wake": 1}
        await outputs.aclose()

    run_on(CountingLoop, main())


def test_O20_nothing_else_in_a_run_keeps_timers() -> None:
    """Reads the source. The lines of a key-ordered queue are its own; so are the limits of the waits at a run's end."""
    keepers = re.compile(
        r"heapq|HeapPriorityQueue|\.call_later\(|\.call_at\(|asyncio\.wait_for\(|asyncio\.sleep\((?!0\))"
    )
    found = {
        f"{path.relative_to(SOURCE)}: {kept}"
        for folder in ("engine", "operator", "lookup", "policies")
        for path in (SOURCE / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        for kept in keepers.findall(line)
        if "``" not in line
    }
    assert found == {
        "engine/timers.py: HeapPriorityQueue",
        "engine/timers.py: .call_at(",
        # What a process keeps for its tasks outlives each run, a connection to a Redis too.
        "engine/lent.py: .call_later(",
        "lookup/shared_cache.py: .call_later(",
    }


# -- the set


@virtual
async def test_timers_ring_in_the_order_of_their_times_with_their_subjects() -> None:
    timers, rang = Timers(now), []
    for due in (3.0, 1.0, 2.0, 1.0):
        timers.set(due, lambda subject, at: rang.append((subject, at, now())), f"{due} {len(rang)}")
    await asyncio.sleep(10)
    # Registered in one go: those of equal times and subjects are different functions.
    assert [(subject.split()[0], at, seen) for subject, at, seen in rang] == [
        ("1.0", 1.0, 1.0),
        ("1.0", 1.0, 1.0),
        ("2.0", 2.0, 2.0),
        ("3.0", 3.0, 3.0),
    ]


@virtual
async def test_an_equal_timer_rings_once_and_a_deleted_one_does_not() -> None:
    timers, rang = Timers(now), []

    def ring(subject: str, at: float) -> None:
        rang.append((subject, at))

    for _ in range(2):
        timers.set(1.0, ring, "a")
        timers.set(1.0, ring, "b")
    assert timers.delete(1.0, ring, "a")
    assert not timers.delete(1.0, ring, "a")
    assert not timers.delete(2.0, ring, "b")
    await asyncio.sleep(5)
    assert rang == [("b", 1.0)]


@virtual
async def test_a_timer_that_is_set_while_timers_ring_waits_for_the_next_time() -> None:
    timers, rang = Timers(now), []

    def ring(left: int, at: float) -> None:
        rang.append((left, at))
        if left:
            timers.set(at, ring, left - 1)

    timers.set(1.0, ring, 3)
    assert timers.ring(1.0)
    assert rang == [(3, 1.0)]
    assert timers.earliest == 1.0
    await asyncio.sleep(1.0)
    await asyncio.sleep(0.0)
    assert timers.earliest <= 1.0
    await asyncio.sleep(1.0)
    assert rang == [(3, 1.0), (2, 1.0), (1, 1.0), (0, 1.0)]
    assert timers.earliest == math.inf


@virtual
async def test_an_error_of_one_timer_reaches_its_owner_and_the_others_ring() -> None:
    timers, rang = Timers(now), list[str]()
    errors = list[BaseException]()
    timers.fail = errors.append

    def fails(subject: str, at: float) -> None:
        raise ValueError(subject)

    timers.set(1.0, fails, "first")
    timers.set(1.0, lambda subject, at: rang.append(subject), "second")
    timers.set(2.0, lambda subject, at: rang.append(subject), "third")
    await asyncio.sleep(3)
    assert [str(error) for error in errors] == ["first"]
    assert rang == ["second", "third"]


@virtual
async def test_closed_timers_never_ring_and_hold_nothing() -> None:
    timers, rang = Timers(now), []
    timers.set(1.0, lambda subject, at: rang.append(subject))

    def reminded() -> None:
        rang.append("reminded")

    timers.remind(reminded, 1.5)
    timers.close()
    timers.set(2.0, lambda subject, at: rang.append(subject))
    timers.remind(reminded, 1.5)
    await asyncio.sleep(3)
    assert rang == []


# -- the deadlines of lanes


@pytest.mark.parametrize("ahead", [0.0002, 5.0])
def test_an_alarm_that_wakes_too_early_waits_and_does_not_spin(ahead: float) -> None:
    """As uvloop's may, whose timers count whole milliseconds."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        timers, rang = Timers(lambda: now() - ahead), []
        timers.set(1.0, lambda _, at: rang.append(at))
        # What a coarse clock does: the alarm is set by one reading, and looked at by another.
        timers.clock = lambda: now() - 2 * ahead
        await asyncio.sleep(30)
        assert len(rang) == 1
        assert rang[0] >= 1.0
        assert loop.set["Timers._wake"] < 10

    run_on(CountingLoop, main())


@virtual
async def test_O17_an_ended_run_leaves_no_timer() -> None:
    loop = asyncio.get_running_loop()
    life = Life()
    await collect(AsyncWaitOperator(life, timeout=1_000.0, retry=3).process(range(5)))
    assert life.events[-1] == "close"
    assert [one for one in loop._scheduled if not one.cancelled()] == []  # type: ignore[attr-defined]
