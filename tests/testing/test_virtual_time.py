"""`VirtualTimeLoop`: time jumps to the next timer when nothing else is to do, but never past outstanding work."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from asyncio_operator.testing import ManualClock, VirtualTimeLoop
from tests.operator.helpers import now, run_on, virtual


@virtual
async def test_sleeping_takes_no_time_and_time_is_exact():
    expected = 0.0
    for _ in range(1000):
        await asyncio.sleep(0.1)
        expected += 0.1
    assert now() == expected


@pytest.mark.parametrize("start", [1e6, 1.8e9, 1e12, -1e12])
def test_time_passes_far_from_zero_too_and_a_timer_for_now_is_due(start):
    """There a float is coarser than asyncio takes its clock to be."""

    async def main():
        for passed in range(10):
            fired = asyncio.Event()
            asyncio.get_running_loop().call_later(0, fired.set)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert fired.is_set()
            assert now() == pytest.approx(start + passed, abs=0.01)
            await asyncio.sleep(1)

    run_on(lambda: VirtualTimeLoop(start), main())


@virtual
async def test_timers_fire_in_order_at_their_times():
    fired = []
    for delay in (3, 1, 2, 1):
        asyncio.get_running_loop().call_later(delay, lambda: fired.append(now()))
    await asyncio.sleep(10)
    assert fired == [1, 1, 2, 3]


@virtual
async def test_time_stands_still_while_anything_is_ready():
    asyncio.get_running_loop().call_later(1, lambda: None)
    for _ in range(100):
        await asyncio.sleep(0)
        assert now() == 0


@virtual
async def test_infinity_is_never_reached():
    """A thread may call back before."""
    loop: Any = asyncio.get_running_loop()
    loop.call_later(math.inf, lambda: None)
    assert loop._jump(math.inf) is False
    assert now() == 0


@virtual
async def test_it_does_not_jump_while_an_executor_works():
    loop = asyncio.get_running_loop()
    begun, go = threading.Event(), threading.Event()
    fired: list[int] = []

    def work():
        begun.set()
        go.wait(10)
        return now_of(loop)

    loop.call_later(60, fired.append, 60)
    with ThreadPoolExecutor(1) as pool:
        for executor in (None, pool):
            call = loop.run_in_executor(executor, work)
            await loop.run_in_executor(None, begun.wait, 10)
            assert not fired
            go.set()
            assert await call == 0
    assert not fired
    await asyncio.sleep(60)
    assert fired == [60]


def now_of(loop: asyncio.AbstractEventLoop) -> float:
    return loop.time()


@virtual
async def test_threads_may_call_back():
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set_result, 1))
    thread.start()
    assert await done == 1
    thread.join()


@virtual
async def test_sockets_within_the_process_are_served_before_time_jumps():
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.setblocking(False)
        async with asyncio.timeout(1):
            await loop.sock_sendall(theirs, b"x")
            assert await loop.sock_recv(ours, 1) == b"x"
    assert now() == 0


@pytest.mark.parametrize("wrong", ["a", None, math.nan, math.inf, True])
@pytest.mark.parametrize(
    "use", [ManualClock, VirtualTimeLoop, lambda one: ManualClock().set(one), lambda one: ManualClock().advance(one)]
)
def test_E10_a_time_that_is_no_number_is_named(use: Any, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"(start|seconds) .*is .*; it must be a number"):
        use(wrong)


def test_both_clocks_advance_by_a_timedelta_too():
    clock, loop = ManualClock(-1.0), VirtualTimeLoop()
    for one in (clock, loop):
        one.advance(timedelta(seconds=2))
        with pytest.raises(ConfigurationError, match=r"seconds .*is -1; .* not negative"):
            one.advance(-1)
    assert (clock(), loop.time()) == (1.0, 2.0)
    loop.close()


def test_it_starts_where_it_is_told_to():
    async def main():
        assert now() == 100.0
        await asyncio.sleep(1)
        assert repr(asyncio.get_running_loop()) == "<VirtualTimeLoop at 101.0 s>"

    run_on(lambda: VirtualTimeLoop(100.0), main())


def test_the_default_executor_is_shut_down_without_a_jump():
    """From Python 3.12 on, that is guarded by a timeout of five minutes."""

    async def main():
        await asyncio.get_running_loop().run_in_executor(None, int)

    run_on(VirtualTimeLoop, main())
