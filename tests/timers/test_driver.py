"""The driver of processing-time timers: T7, and T10 for the loop that it keeps."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.timers import InternalTimerService, ProcessingTimeDriver, TimerServiceManager
from tests.operator.helpers import virtual


def driven(react=lambda timer: None, queues=None):
    """A service on the time of the running loop, and the milliseconds at which its timers fire."""
    loop, fired = asyncio.get_running_loop(), []

    def note(timer):
        fired.append((timer.timestamp, round(loop.time() * 1000)))
        react(timer)

    service = InternalTimerService(on_processing_time=note, clock=loop.time, queues=queues)
    service.current_key = "a"
    return service, fired


def pass_a_second():
    """Without a turn of the loop."""
    asyncio.get_running_loop().advance(1)  # type: ignore[attr-defined]


def alarms():
    return [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


@virtual
async def test_T7_one_alarm_moved_when_an_earlier_timer_is_registered():
    service, fired = driven()
    service.register_processing_time_timer(5_000)
    async with ProcessingTimeDriver(service):
        assert [handle.when() for handle in alarms()] == [5.0]
        for timestamp in (9_000, 3_000, 4_000):
            service.register_processing_time_timer(timestamp)
            assert len(alarms()) == 1
        service.delete_processing_time_timer(4_000)
        await asyncio.sleep(8)
        assert fired == [(3_000, 3_000), (5_000, 5_000)]
        service.register_processing_time_timer(7_000)  # overdue: at the next turn, not at once
        assert len(fired) == 2
        await asyncio.sleep(0.5)
        assert fired[2:] == [(7_000, 8_000)]
    assert alarms() == []
    await asyncio.sleep(5)
    assert len(fired) == 3
    assert service.next_processing_time() == 9_000


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from(["register", "delete", "sleep"]), st.integers(0, 50)), max_size=30))
@virtual
async def test_T7_every_timer_fires_once_when_it_is_due(make_queues, steps):
    service, fired = driven(queues=make_queues())
    model, expected, now = set(), [], 0
    async with ProcessingTimeDriver(service):
        for action, number in (*steps, ("sleep", 1000)):
            if action == "register":
                service.register_processing_time_timer(number)
                model.add(number)
            elif action == "delete":
                service.delete_processing_time_timer(number)
                model.discard(number)
            else:
                start, now = now, now + number
                await asyncio.sleep(number / 1000)
                for _ in range(3):  # those that are due at this very time
                    await asyncio.sleep(0)
                due = sorted(at for at in model if at <= now)
                expected += [(at, max(at, start)) for at in due]
                model.difference_update(due)
    assert fired == expected


@virtual
async def test_T7_a_callback_may_register_the_next_timer_of_a_period():
    service: InternalTimerService
    service, fired = driven(lambda timer: service.register_processing_time_timer(timer.timestamp + 10))
    service.register_processing_time_timer(10)
    async with ProcessingTimeDriver(service):
        await asyncio.sleep(0.055)
    assert fired == [(at, at) for at in (10, 20, 30, 40, 50)]


@virtual
async def test_T7_after_quiesce_nothing_fires_and_timers_stay():
    service, fired = driven()
    async with ProcessingTimeDriver(service) as driver:
        service.register_processing_time_timer(1_000)
        await driver.quiesce()
        service.register_processing_time_timer(500)
        await asyncio.sleep(2)
        assert fired == []
        await driver.quiesce()
        await driver.aclose()
    async with ProcessingTimeDriver(service):
        await asyncio.sleep(0.001)
    assert [at for at, _ in fired] == [500, 1_000]
    with pytest.raises(StateError, match="started before"):
        await driver.__aenter__()


@virtual
async def test_T7_quiesce_on_another_loop_is_refused_while_the_driver_is_alive():
    service, fired = driven()
    service.register_processing_time_timer(1_000)
    async with ProcessingTimeDriver(service) as driver:
        with pytest.raises(StateError, match="on the event loop that started it"):
            await asyncio.to_thread(lambda: asyncio.run(driver.quiesce()))
        await asyncio.sleep(1)
    await asyncio.to_thread(lambda: asyncio.run(driver.quiesce()))
    assert fired == [(1_000, 1_000)]


@virtual
async def test_T7_quiesce_in_a_callback_waits_for_that_callback_and_lets_no_other_one_run():
    """As a task that a callback starts, and that begins to run at once (an eager task)."""
    seen: list[Any] = []

    def react(timer):
        task = driver.quiesce()
        seen.extend((task, task.send(None)))
        assert not seen[1].done()

    service, fired = driven(react)
    service.register_processing_time_timer(1)
    service.register_processing_time_timer(2)
    async with ProcessingTimeDriver(service) as driver:
        pass_a_second()
        await asyncio.sleep(1)
        assert seen[1].done()
        with pytest.raises(StopIteration):
            seen[0].send(None)
    assert len(fired) == 1
    assert service.next_processing_time() == 2


def failing(timer):
    if timer.timestamp == 2:
        raise LookupError("no such customer")


@virtual
async def test_T7_an_error_reaches_on_error_and_no_other_timer_is_lost():
    service, fired = driven(failing)
    errors: list[BaseException] = []
    for timestamp in (1, 2, 3):
        service.register_processing_time_timer(timestamp)
    async with ProcessingTimeDriver(service, on_error=errors.append):
        pass_a_second()
        await asyncio.sleep(1)
    assert [at for at, _ in fired] == [1, 2, 3]
    assert [str(error) for error in errors] == ["no such customer"]


@virtual
async def test_T7_without_on_error_it_ends_the_driver_and_is_raised_when_the_block_is_left(caplog):
    service, fired = driven(failing)
    for timestamp in (1, 2, 3):
        service.register_processing_time_timer(timestamp)
    with pytest.raises(LookupError, match="no such customer"):
        async with ProcessingTimeDriver(service):
            await asyncio.sleep(1)
    service.register_processing_time_timer(2)

    async def failing_block():
        async with ProcessingTimeDriver(service):
            await asyncio.sleep(1)
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block") as caught:
        await failing_block()
    assert "no such customer" in caught.value.__notes__[0]
    service.register_processing_time_timer(2)
    with pytest.raises(ZeroDivisionError):  # an error of on_error
        async with ProcessingTimeDriver(service, on_error=lambda error: 1 / 0):
            await asyncio.sleep(1)
    assert [at for at, _ in fired] == [1, 2, 2, 2]
    assert service.next_processing_time() == 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert "has ended: LookupError: no such customer" in caplog.text


@virtual
async def test_T7_a_manager_takes_the_place_of_the_service_and_none_of_its_services_starves():
    loop: Any = asyncio.get_running_loop()
    fired: asyncio.Queue[float] = asyncio.Queue()
    manager = TimerServiceManager()

    def busy(timer):
        loop.advance(0.002)  # longer than its period
        busy_service.register_processing_time_timer(timer.timestamp + 1)

    busy_service = manager.service("a", on_processing_time=busy, clock=loop.time)
    busy_service.current_key = "k"
    busy_service.register_processing_time_timer(0)
    async with ProcessingTimeDriver(manager):
        # Another clock, and a service that is asked for while the driver runs.
        late = manager.service(
            "b", on_processing_time=lambda timer: fired.put_nowait(loop.time()), clock=lambda: loop.time() + 1_000
        )
        late.current_key = "k"
        late.register_processing_time_timer(1_000_100)
        with pytest.raises(StateError, match="driver already"):
            await ProcessingTimeDriver(manager).__aenter__()
        with pytest.raises(StateError, match="driver already"):
            await ProcessingTimeDriver(late).__aenter__()
        assert 0.1 <= await fired.get() < 0.11
    async with ProcessingTimeDriver(late):
        pass


@virtual
async def test_T7_T8_restored_timers_fire_when_their_name_is_asked_for_while_a_driver_runs():
    fired: list[Any] = []
    loop = asyncio.get_running_loop()
    former, manager = TimerServiceManager(), TimerServiceManager()
    service = former.service("a", on_processing_time=fired.append, clock=loop.time)
    service.current_key = "k"
    service.register_processing_time_timer(500)
    for group in former.queues.key_groups:
        manager.restore(group, former.snapshot(group))
    async with ProcessingTimeDriver(manager):
        await asyncio.sleep(1)
        assert not fired
        manager.service("a", on_processing_time=fired.append, clock=loop.time)
        await asyncio.sleep(0.01)
        assert [timer.timestamp for timer in fired] == [500]


@virtual
async def test_T7_callbacks_run_in_the_context_of_the_block():
    who = contextvars.ContextVar("who", default="no one")

    seen: list[str] = []
    service, _ = driven(lambda timer: seen.append(who.get()))

    async def register():
        who.set("another task")
        service.register_processing_time_timer(10)

    who.set("the block")
    async with ProcessingTimeDriver(service):
        await asyncio.create_task(register())
        await asyncio.sleep(1)
    assert seen == ["the block"]


@virtual
async def test_T7_a_clock_that_breaks_ends_the_driver():
    times = iter([0.0, 0.0])
    service = InternalTimerService(clock=lambda: next(times, float("nan")))
    service.current_key = "a"
    service.register_processing_time_timer(10)
    with pytest.raises(StateError, match="clock"):
        async with ProcessingTimeDriver(service):
            await asyncio.sleep(1)


@virtual
async def test_T10_many_due_timers_leave_the_loop_its_turns():
    """Callbacks of 5 us keep a loop for at most 10 ms, and it does not turn for each of them either."""
    loop: Any = asyncio.get_running_loop()
    manager = TimerServiceManager()
    names = "abc"
    for name in names:
        service = manager.service(name, on_processing_time=lambda timer: loop.advance(0.000_005), clock=loop.time)
        service.current_key = "k"
        for timestamp in range(3_000):
            service.register_processing_time_timer(timestamp - 3_000)
    turns = []
    async with ProcessingTimeDriver(manager):
        while manager.next_processing_time() is not None:
            start = loop.time()
            await asyncio.sleep(0)
            turns.append(loop.time() - start)
    assert sum(turns) == pytest.approx(9_000 * 0.000_005)
    assert max(turns) < 0.01
    assert len(turns) < 100


@pytest.mark.parametrize("service", [None, InternalTimerService, "timers"])
def test_T7_what_is_no_service_is_refused(service: Any):
    with pytest.raises(ConfigurationError, match=r"service is .*TimerServiceManager"):
        ProcessingTimeDriver(service)
    with pytest.raises(ConfigurationError, match="on_error"):
        ProcessingTimeDriver(InternalTimerService(), on_error=service or 5)  # type: ignore[arg-type]
