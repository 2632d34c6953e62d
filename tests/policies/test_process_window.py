"""G13 without Spark: the rate limit of an operator or a lookup is for the process, from run to run."""

from __future__ import annotations

import pickle
from typing import Any

from asyncio_operator import AsyncWaitOperator, RateLimit
from asyncio_operator.lookup import Lookup
from asyncio_operator.policies.rate_limit import LocalWindow, ProcessWindow
from enrichers import FunctionEnricher
from tests.operator.helpers import now, virtual


async def when(_value: int) -> float:
    return now()


@virtual
async def test_G13_the_rate_limit_of_an_operator_holds_from_run_to_run() -> None:
    operator = AsyncWaitOperator(when, rate_limit=RateLimit(2, per=10.0))
    times = [[at async for at in operator.process(range(3))] for _ in range(2)]
    assert times == [[0, 0, 10], [10, 20, 20]]
    other = AsyncWaitOperator(when, rate_limit=RateLimit(2, per=10.0))
    assert [at async for at in other.process(range(2))] == [20, 20]


@virtual
async def test_G13_the_rate_limit_of_a_lookup_holds_when_it_is_opened_again() -> None:
    async def noted(_key: int) -> Any:
        return {"at": now()}

    lookup = Lookup(FunctionEnricher(noted, "at double"), rate_limit=RateLimit(2, per=10.0))
    found: list[Any] = []
    for first in (0, 2):
        async with lookup:
            found += [await lookup.get(key) for key in (first, first + 1)]
    assert [row["at"] for row in found] == [0, 0, 10, 10]


def test_G13_a_loop_with_a_time_of_its_own_begins_a_window() -> None:
    operator = AsyncWaitOperator(when, rate_limit=RateLimit(2, per=10.0))

    times: list[list[float]] = []

    @virtual
    async def run() -> None:
        times.append([at async for at in operator.process(range(3))])

    run()
    run()
    assert times == [[0, 0, 10]] * 2


def test_G13_a_copy_in_another_process_has_a_window_of_its_own() -> None:
    def clock() -> float:
        return 0.0

    window = ProcessWindow(RateLimit(1))
    first = window.by(clock)
    assert isinstance(first, LocalWindow)
    first.start(0.0)
    assert window.by(clock) is first
    copy = pickle.loads(pickle.dumps(window)).by(clock)
    assert copy is not None
    assert copy.next_start(0.0) == 0.0
    assert ProcessWindow(None).by(clock) is None
