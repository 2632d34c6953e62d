"""O17: every call, hook and input runs in a context of its own, a copy of that of the run; and O8 for the input."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, BlockingFunction, FixedBackoff, Retry
from tests.operator.helpers import Doors, collect, forever, now, process, same, virtual

NOTHING = object()


class Level(enum.StrEnum):
    TEXT = "text"


tenant: contextvars.ContextVar[Any] = contextvars.ContextVar("tenant", default=NOTHING)

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "retry": {"retry": Retry()},
    "attempt_timeout": {"attempt_timeout": 10},
    "key_ordered": {"mode": "key_ordered", "key": lambda value: value % 2},
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


async def at_once() -> None:
    """Returns without giving the loop a turn."""


async def a_turn() -> None:
    await asyncio.sleep(0)


async def a_second() -> None:
    await asyncio.sleep(1)


PAUSES = [at_once, a_turn, a_second]


def setting(seen: list[Any]) -> Any:
    """A call that notes what it sees, and sets what it is called with."""

    async def call(value: Any) -> Any:
        seen.append(tenant.get())
        tenant.set(value)
        await asyncio.sleep(0)
        return value

    return call


class Incomparable:
    """As an array, whose comparison has no truth value."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("not to be compared")

    __hash__ = object.__hash__


SET: list[tuple[Any, Callable[[], Any]]] = [
    (NOTHING, object),
    (object(), object),
    # Equal, and another object all the same.
    ("text", lambda: Level.TEXT),
    (1, lambda: True),
    (1.0, lambda: 1),
    ([1], lambda: [1]),
    ("text", Incomparable),
    (Incomparable(), Incomparable),
]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize(("value", "other"), SET)
@virtual
async def test_O17_a_call_sees_what_was_set_where_the_run_was_started_and_not_what_other_calls_set(
    value, other, pause, way
):
    """The very object, also where calls set an equal one."""
    if value is not NOTHING:
        tenant.set(value)
    seen: list[Any] = []

    async def call(_: Any) -> None:
        seen.append(tenant.get())
        tenant.set(own := other())
        await pause()
        assert tenant.get() is own

    await process(call, range(50), capacity=3, **way)
    assert len(seen) == 50
    assert all(one is value for one in seen)
    assert tenant.get() is value


@virtual
async def test_O17_what_a_call_starts_sees_what_it_has_set(way):
    seen: dict[Any, Any] = {}

    async def call(value: int) -> int:
        tenant.set(value)
        await asyncio.create_task(started(value))
        asyncio.get_running_loop().call_soon(lambda: seen.update({("later", value): tenant.get()}))
        await asyncio.sleep(1)
        return value

    async def started(value: int) -> None:
        seen["task", value] = tenant.get()

    await process(call, range(20), capacity=3, **way)
    assert len(seen) == 40
    assert all(value == saw for (_, value), saw in seen.items())


def test_O17_a_blocking_function_has_a_context_for_each_call():
    seen: list[Any] = []

    def call(value: int) -> None:
        seen.append(tenant.get())
        tenant.set(value)

    with_nothing = list(AsyncWaitOperator(BlockingFunction(call, max_workers=2))(range(20)))
    assert len(with_nothing) == 20
    assert seen == [NOTHING] * 20


def test_O17_the_synchronous_face_starts_the_run_where_it_is_called():
    seen: list[Any] = []

    def consume() -> None:
        tenant.set("mine")
        list(AsyncWaitOperator(setting(seen), capacity=3)(range(20)))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(consume,))
    thread.start()
    thread.join()
    assert seen == ["mine"] * 20


@virtual
async def test_O17_calls_see_neither_what_open_sets_nor_what_the_consumer_sets_later():
    seen: list[Any] = []

    async def opening() -> None:
        tenant.set("of open")

    async for _ in AsyncWaitOperator(Doors(opening, call=setting(seen)), capacity=2).process(range(20)):
        tenant.set("of the consumer")
    assert seen == [NOTHING] * 20


@virtual
async def test_O17_calls_and_hooks_see_nothing_of_each_other():
    seen: list[Any] = []
    seen_by_hooks: list[Any] = []

    def hook(*_: Any) -> int:
        seen_by_hooks.append(tenant.get())
        tenant.set("of a hook")
        return 0

    async def call(value: int) -> int:
        seen.append(tenant.get())
        tenant.set(value)
        if value % 3 == 0:
            raise ValueError(value)
        await asyncio.sleep(10 if value % 3 == 1 else 0)
        return value

    hooks: dict[str, Any] = {"on_error": hook, "on_timeout": hook, "timeout": 1}
    await process(call, range(30), capacity=3, **hooks)
    await process(call, range(30), capacity=3, **hooks, retry=Retry(2, FixedBackoff(0), if_result=hook))
    await process(call, range(30), capacity=3, **hooks, mode="key_ordered", key=hook)
    assert set(seen) == {NOTHING}
    assert set(seen_by_hooks) <= {NOTHING, "of a hook"}


@virtual
async def test_O17_a_cancelled_call_may_clean_up_in_its_context():
    cleaned: list[tuple[int, Any]] = []

    async def call(value: int) -> None:
        tenant.set(value)
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.1)
            cleaned.append((value, tenant.get()))

    await process(call, range(9), capacity=3, timeout=1, on_error="skip")
    assert cleaned == [(value, value) for value in range(9)]


@pytest.mark.parametrize("lazy", ["of a call", "of on_error", "of on_timeout"])
@virtual
async def test_O17_a_lazy_result_is_taken_in_the_context_of_its_call(lazy, way):
    def lines(value: int) -> Iterator[Any]:
        tenant.set(value)
        return ((value, tenant.get()) for _ in range(2))

    async def call(value: int) -> Any:
        if lazy == "of on_error":
            raise ValueError
        await asyncio.sleep(100 if lazy == "of on_timeout" else 0)
        return lines(value)

    kinds: dict[str, dict[str, Any]] = {
        "of a call": {},
        "of on_error": {"on_error": lambda value, error: lines(value)},
        "of on_timeout": {"on_timeout": lines, "timeout": 1},
    }
    outputs = await process(call, range(10), capacity=1, flatten=True, **kinds[lazy], **{**way, "retry": None})
    assert outputs == [(value, value) for value in range(10) for _ in range(2)]


async def read_two(outputs: Any, how: str) -> None:
    """Read two outputs, wait while the input waits, and end the run in this way."""
    await anext(outputs)
    await anext(outputs)
    await asyncio.sleep(0.1)
    if how == "cancelled":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(outputs), 1)
    else:
        await outputs.aclose()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@virtual
async def test_O8_an_input_is_cancelled_once_and_may_clean_up(how, way):
    cleaned: list[Any] = []

    async def elements() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await forever()
        finally:
            try:
                await asyncio.sleep(0.2)
            finally:
                cleaned.append(now())

    begun = now()
    outputs = AsyncWaitOperator(same, capacity=2, **way).process(elements())
    await read_two(outputs, how)
    assert cleaned == [pytest.approx(begun + (1.3 if how == "cancelled" else 0.3))]


# -- the context in which it is read


@pytest.mark.parametrize("ending", ["at its end", "early"])
@pytest.mark.parametrize("asynchronous", [False, True])
@virtual
async def test_O17_an_input_is_read_in_one_context_of_its_own_and_may_reset_what_it_sets(asynchronous, ending, way):
    seen: list[Any] = []

    def elements() -> Generator[int, None, None]:
        token = tenant.set("of the input")
        try:
            for number in range(20):
                yield number
                seen.append(tenant.get())
        finally:
            tenant.reset(token)
            seen.append(tenant.get())

    async def later() -> AsyncIterator[int]:
        with contextlib.closing(elements()) as numbers:
            for number in numbers:
                yield number
                await asyncio.sleep(0.001)

    async def call(value: int) -> int:
        assert tenant.get() == "of the consumer", "it sees what the input has set"
        tenant.set(value)
        await asyncio.sleep(0.01)
        return value

    tenant.set("of the consumer")
    outputs = AsyncWaitOperator(call, capacity=3, buffer=5, **way).process(later() if asynchronous else elements())
    if ending == "early":
        await anext(outputs)
        await outputs.aclose()
    else:
        assert await collect(outputs) == list(range(20))
    assert seen.pop() == "of the consumer"
    assert set(seen) == {"of the input"}
