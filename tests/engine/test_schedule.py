"""B1 of the part that forms batches: what each element costs, and that an element that has ended goes into no batch."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.schedule import Schedule
from asyncio_operator.policies.batching import Batching

SIZE = 500


class Counted(Flight):
    """Counts how often it is looked at."""

    __slots__ = ("looks",)

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "looks", 0)
        super().__init__(None, number, number, 0.0, 0)

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "looks", object.__getattribute__(self, "looks") + 1)
        return object.__getattribute__(self, name)


def looks(flight: Counted) -> int:
    return int(object.__getattribute__(flight, "looks"))


class Coming:
    """A source that gives what was put into it, and may give more at any time."""

    waiting = 0
    over = direct = alone = False
    keyed = None

    def __init__(self) -> None:
        self.flights: deque[Flight] = deque()

    def take_run(self, most: int, now: float) -> Call | None:
        return Call([self.flights.popleft()]) if self.flights else None

    def window(self) -> None:
        return None

    def values(self, call: Call) -> Any:
        return call.values

    def store(self, call: Call, results: Any, now: float) -> bool:
        return False

    def prepare(self, now: float) -> None:
        """There is nothing to prepare."""

    def is_full(self) -> bool:
        return False

    async def wait(self, news: Any) -> None:
        await news

    def stop(self) -> None:
        """There is nothing to stop."""


def batch_of(schedule: Schedule, now: float) -> list[Flight] | None:
    call, _ = schedule.next_call(now, 0)
    return None if call is None else call.flights


def test_B1_an_element_costs_the_same_in_a_batch_of_any_size() -> None:
    """It comes alone, as from an asynchronous input: whatever waits already is not looked at again."""
    coming = Coming()
    schedule = Schedule(coming, Batching(SIZE, linger=10.0), retrying=False)
    flights = [Counted(number) for number in range(SIZE)]
    for flight in flights[:-1]:
        coming.flights.append(flight)
        assert batch_of(schedule, 0.0) is None
    coming.flights.append(flights[-1])
    assert batch_of(schedule, 0.0) == flights
    assert max(looks(flight) for flight in flights) <= 3


@given(st.lists(st.sampled_from(["comes", "ends", "fill", "batch", "late"])), st.integers(1, 4))
def test_B1_a_batch_holds_what_waits_in_its_order_and_nothing_that_has_ended(steps: list[str], size: int) -> None:
    coming = Coming()
    schedule = Schedule(coming, Batching(size, linger=1.0), retrying=False)
    waiting: list[Flight] = []
    now = came = 0.0
    for number, step in enumerate(steps):
        now += 0.25
        if step == "comes":
            coming.flights.append(Flight(None, number, number, now, 0))
        elif step == "ends" and waiting:
            schedule.ended(waiting.pop(len(waiting) // 2))
        elif step == "late":
            now += 1.0
        if step in ("fill", "batch"):
            there = list(coming.flights)
            if not waiting and there:
                came = now
            waiting += there[: size - len(waiting)]
            due = bool(waiting) and (len(waiting) == size or now >= came + 1.0)
            if step == "fill":
                schedule.prepare(now)
            elif due:
                assert batch_of(schedule, now) == waiting
                waiting = []
            else:
                assert batch_of(schedule, now) is None
                assert schedule.closes == (came + 1.0 if waiting else float("inf"))
        assert schedule.forming == len(waiting)
