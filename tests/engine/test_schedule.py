"""B1 of the part that forms batches: what each element costs, and that an element that has ended goes into no batch."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.engine.flights import Flight
from asyncio_operator.engine.schedule import BatchFormer
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


def never() -> bool:
    return False


def test_B1_an_element_costs_the_same_in_a_batch_of_any_size() -> None:
    """It comes alone, as from an asynchronous input: whatever waits already is not looked at again."""
    coming: deque[Flight] = deque()
    former = BatchFormer(Batching(SIZE, linger=10.0), lambda now: coming.popleft() if coming else None)
    flights = [Counted(number) for number in range(SIZE)]
    for flight in flights[:-1]:
        coming.append(flight)
        assert former.batch(0.0, never) is None
    coming.append(flights[-1])
    assert former.batch(0.0, never) == flights
    assert max(looks(flight) for flight in flights) <= 3


@given(st.lists(st.sampled_from(["comes", "ends", "fill", "batch", "late"])), st.integers(1, 4))
def test_B1_a_batch_holds_what_waits_in_its_order_and_nothing_that_has_ended(steps: list[str], size: int) -> None:
    coming: deque[Flight] = deque()
    former = BatchFormer(Batching(size, linger=1.0), lambda now: coming.popleft() if coming else None)
    waiting: list[Flight] = []
    now = came = 0.0
    for number, step in enumerate(steps):
        now += 0.25
        if step == "comes":
            coming.append(Flight(None, number, number, now, 0))
        elif step == "ends" and waiting:
            former.leave(waiting.pop(len(waiting) // 2))
        elif step == "late":
            now += 1.0
        if step in ("fill", "batch"):
            there = list(coming)
            if not waiting and there:
                came = now
            waiting += there[: size - len(waiting)]
            due = bool(waiting) and (len(waiting) == size or now >= came + 1.0)
            if step == "fill":
                former.fill(now)
            elif due:
                assert former.batch(now, never) == waiting
                waiting = []
            else:
                assert former.batch(now, never) is None
                assert former.closes == (came + 1.0 if waiting else float("inf"))
        assert len(former) == len(waiting)
