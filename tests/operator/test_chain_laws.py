"""O17: chains of runs end together, and an ended run holds nothing of its input."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from asyncio_operator import AsyncFunction, AsyncWaitOperator, BatchAsyncFunction, FunctionError
from tests.operator.attempts import MODES, retry
from tests.operator.helpers import Doors, Life, collect, forever, nap, now, others, raising, same, virtual

WAYS: dict[str, dict[str, Any]] = {"plain": {}, "managed": {"retry": retry(2, 1.0)}}

ENDS = ["closed", "failed", "cancelled", "cut", "dropped", "failed above"]


async def slow(value: Any) -> Any:
    await asyncio.sleep(1)
    return value


async def end(how: str, outputs: Any) -> None:
    """Begin to read, and end the run in this way. If it is dropped, the garbage collector ends it."""
    if how in ("failed", "failed above"):
        with pytest.raises((FunctionError, ZeroDivisionError)):
            await collect(outputs)
        return
    step = asyncio.ensure_future(anext(outputs))
    if how == "cut":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(step, 0.5)
    elif how == "cancelled":
        await asyncio.sleep(0.5)
        step.cancel()
        await asyncio.wait([step])
    else:
        await step
        if how == "closed":
            await outputs.aclose()


def second_fails(how: str) -> Any:
    async def call(value: Any) -> Any:
        if how == "failed" and value == 1:
            raise ValueError(value)
        return value

    return call


async def passed_on(elements: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for element in elements:
        yield element


def numbers(how: str) -> Iterator[int]:
    yield from range(10_000 if how != "failed above" else 5)
    raise ZeroDivisionError


@pytest.mark.parametrize("between", ["nothing", "a generator"])
@pytest.mark.parametrize("above", WAYS)
@pytest.mark.parametrize("below", WAYS)
@pytest.mark.parametrize("how", ENDS)
@virtual
async def test_O17_a_chain_of_operators_ends_together(how, above, below, between):
    first, second = Life(slow), Life(second_fails(how))
    upper = AsyncWaitOperator(first, capacity=2, buffer=10_000, **WAYS[above])
    lower = AsyncWaitOperator(second, capacity=2, **WAYS[below])
    middle = upper.process(numbers(how))
    outputs = lower.process(middle if between == "nothing" else passed_on(middle))
    del middle
    await end(how, outputs)
    del outputs
    if how == "dropped" or between == "a generator":
        # The event loop closes a generator that is no longer referenced, in a later turn.
        gc.collect()
        await asyncio.sleep(0.01)
    assert (first.events[-1], second.events[-1]) == ("close", "close")
    assert not others()
    asked = len(first.events)
    await asyncio.sleep(100)
    assert len(first.events) == asked


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("how", ["closed", "failed", "dropped"])
@pytest.mark.parametrize("stages", [2, 3])
def test_O17_so_does_a_chain_of_ordinary_iterators_whose_calls_hang(stages, how, held):
    """Here a reader thread waits for the next output of the upper run, which never comes."""
    first = Life(lambda value: same(value) if value < 2 else forever())
    outputs: Any = AsyncWaitOperator(first, capacity=2, buffer=10)(range(1000))
    middle = outputs if held else None
    operators = [AsyncWaitOperator(second_fails(how) if stage == 1 else same) for stage in range(1, stages)]
    for operator in operators:
        outputs = operator(outputs)
    if how == "failed":
        with pytest.raises(FunctionError):
            list(outputs)
    else:
        assert next(outputs) == 0
    if how == "closed":
        outputs.close()
    del outputs
    gc.collect()
    wait_for_the_end([first])
    assert middle is None or [*middle] in ([], [1])


def wait_for_the_end(functions: list[Life]) -> None:
    """The threads of the middle end by themselves."""
    waited = threading.Event()
    for _ in range(500):
        if all(function.events[-1] == "close" for function in functions) and not readers():
            break
        waited.wait(0.01)
    assert [function.events[-1] for function in functions] == ["close"] * len(functions)
    assert not readers()


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "asyncio-operator-reader"]


# -- inputs of other kinds


class Generator:
    """An asynchronous generator that says when it is closed."""

    def __init__(self, events: list[Any], closing: Any = None) -> None:
        self.events = events
        self.closing = closing

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for number in range(100):
                yield number
        finally:
            self.events.append("input")
            if self.closing is not None:
                await self.closing()


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O17_an_asynchronous_generator_is_closed_before_the_function(way):
    function = Life()
    outputs = AsyncWaitOperator(function, **WAYS[way]).process(Generator(function.events))
    assert await anext(outputs) == 0
    await outputs.aclose()
    assert function.events[-2:] == ["input", "close"]


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O17_an_error_of_closing_the_input_is_raised_if_the_run_had_none(way):
    operator = AsyncWaitOperator(same, **WAYS[way])
    outputs = operator.process(Generator([], raising(OSError("input"))))
    assert await anext(outputs) == 0
    with pytest.raises(OSError, match="input"):
        await outputs.aclose()

    async def fail_at_once(value: Any) -> Any:
        raise ValueError(value)

    failing = AsyncWaitOperator(Doors(closing=raising(OSError("function")), call=fail_at_once), buffer=2, **WAYS[way])
    with pytest.raises(FunctionError) as caught:
        await collect(failing.process(Generator([], raising(OSError("input")))))
    assert caught.value.__notes__ == [
        "closing the input failed too: OSError: input",
        "closing the function failed too: OSError: function",
    ]


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O17_an_input_that_goes_on_closing_is_left_behind_after_the_grace_period(way, caplog):
    function = Life()
    operator = AsyncWaitOperator(function, grace_period=5.0, **WAYS[way])
    outputs = operator.process(Generator(function.events, forever))
    assert await anext(outputs) == 0
    start = now()
    with caplog.at_level(logging.ERROR, "asyncio_operator"):
        await outputs.aclose()
    assert now() == start + 5.0
    assert [record.getMessage() for record in caplog.records] == [
        "closing the input took longer than the grace period of 5.0 s, and was cancelled"
    ]
    assert function.events[-1] == "close"
    await asyncio.sleep(0.01)
    assert not others()


class Closable:
    """Iterators of the user's own, with `close` and `aclose`."""

    def __init__(self) -> None:
        self.number = 0
        self.closed = False

    def __iter__(self) -> Closable:
        return self

    def __next__(self) -> int:
        self.number += 1
        return self.number

    def close(self) -> None:
        self.closed = True


class AsyncClosable(Closable):
    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> AsyncClosable:
        return self

    async def __anext__(self) -> int:
        return next(self)

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["iterator", "generator", "asynchronous iterator"])
@virtual
async def test_O17_every_other_input_stays_open_and_may_be_gone_on_with(kind, way):
    source = Closable() if kind != "asynchronous iterator" else AsyncClosable()
    elements: Any = (number for number in source) if kind == "generator" else source
    first = AsyncWaitOperator(same, capacity=2, buffer=2, **WAYS[way])
    async with contextlib.aclosing(first.process(elements)) as outputs:
        got = [await anext(outputs) for _ in range(3)]
    assert not source.closed
    second = AsyncWaitOperator(same)
    async with contextlib.aclosing(second.process(elements, restore=first.snapshot())) as outputs:
        got += [await anext(outputs) for _ in range(7)]
    assert got == list(range(1, 11))


# -- what an ended run holds


class Value:
    def __init__(self, number: int) -> None:
        self.number = number


class Pooled(AsyncFunction[Value, int]):
    """Leaves something open in its first call, as a client does with a connection."""

    def __init__(self, pool: list[asyncio.Task[Any]], how: str) -> None:
        self.pool = pool
        self.how = how

    async def invoke(self, value: Value) -> int:
        if len(self.pool) < 3:
            self.pool.append(asyncio.create_task(forever()))
        await nap(0.001)
        if self.how == "failed" and value.number == 50:
            raise ValueError
        return value.number


class PooledBatches(BatchAsyncFunction[Value, int]):
    def __init__(self, function: Pooled) -> None:
        self.function = function

    async def invoke_batch(self, values: Sequence[Value]) -> list[int]:
        return await asyncio.gather(*map(self.function.invoke, values))


async def in_time(values: list[Value]) -> AsyncIterator[Value]:
    while values:
        yield values.pop(0)


def at_once(values: list[Value]) -> Iterator[Value]:
    while values:
        yield values.pop(0)


HELD = {**WAYS, "batched": {}, "limited": {"timeout": 5.0, "attempt_timeout": 1.0}, "flattened": {"flatten": True}}


@pytest.mark.parametrize("source", [at_once, in_time])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["ended", "failed", "closed"])
@pytest.mark.parametrize("way", HELD)
@virtual
async def test_O17_an_ended_run_holds_of_its_input_what_a_snapshot_has_and_what_is_left_open_holds_nothing(
    way, how, mode, source
):
    pool: list[asyncio.Task[Any]] = []
    function: Any = Pooled(pool, how)
    if way == "batched":
        function = PooledBatches(function)
    elif way == "flattened":
        function = flattened(function)
    values = [Value(number) for number in range(100)]
    watched = [weakref.ref(value) for value in values]
    modes = MODES[mode] | ({"key": lambda value: value.number % 7} if "key" in MODES[mode] else {})
    operator = AsyncWaitOperator(function, capacity=3, buffer=10, **modes, **HELD[way])
    await consume(operator.process(source(values)), how)
    del values
    gc.collect()
    inside = {id(element) for element, _ in operator.snapshot().elements}
    held = [value() for value in watched]
    assert {id(value) for value in held if value is not None} <= inside
    del held, operator, function
    gc.collect()
    assert not any(value() is not None for value in watched)
    for task in pool:
        task.cancel()


def flattened(function: Pooled) -> Any:
    async def call(value: Value) -> list[int]:
        return [await function.invoke(value)] * 2

    return call


async def consume(outputs: Any, how: str) -> None:
    count = 0
    with contextlib.suppress(FunctionError):
        while await anext(outputs, None) is not None:
            count += 1
            if how == "closed" and count == 40:
                break
    await outputs.aclose()
    assert how == "ended" or count < 100
