"""B1 of the part that forms batches: what each element costs, and that an element that has ended goes into no batch."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from asyncio_operator.engine.flights import Call, Flight
from asyncio_operator.engine.schedule import Schedule
from asyncio_operator.policies.batching import Batching

SIZE = 500


class Counted(Flight):
    """Counts how often it is looked at."""

    __slots__ = ("looks",)

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "looks", 0)
        super().__init__(None, number, 0.0)

    def __getattribute__(self, name: str) -> Any:
        object.__setattr__(self, "looks", object.__getattribute__(self, "looks") + 1)
        return object.__getattribute__(self, name)


def looks(flight: Counted) -> int:
    return int(object.__getattribute__(flight, "looks"))


class Coming:
    """What a schedule asks of its source, which gives what was put into it, and may give more at any time."""

    waiting = 0
    over = False

    def __init__(self) -> None:
        self.flights: deque[Flight] = deque()

    def take_run(self, most: int, now: float) -> Call | None:
        return Call([self.flights.popleft()]) if self.flights else None

    def is_full(self) -> bool:
        return False


def batch_of(schedule: Schedule, now: float) -> list[Flight] | None:
    call, _ = schedule.next_call(now, 0)
    return None if call is None else call.flights


def test_B1_an_element_costs_the_same_in_a_batch_of_any_size() -> None:
    """It comes alone, as from an asynchronous input: whatever waits already is not looked at again."""
    coming = Coming()
    schedule = Schedule(cast("Any", coming), Batching(SIZE, linger=10.0), retrying=False)
    flights = [Counted(number) for number in range(SIZE)]
    for flight in flights[:-1]:
        coming.flights.append(flight)
        assert batch_of(schedule, 0.0) is None
    coming.flights.append(flights[-1])
    assert batch_of(schedule, 0.0) == flights
    assert max(looks(flight) for flight in flights) <= 3
