"""O6: the first failure, in time, ends the run at once, and is the error that the consumer gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncio_operator import AdaptiveCapacity, AsyncWaitOperator, FunctionError
from tests.operator.attempts import OK, Act, Batches, Script, retry
from tests.operator.helpers import Life, collect_until, forever, process, same, virtual


@virtual
async def test_O6_the_first_failure_ends_the_run_while_nobody_reads(mode):
    async def call(value):
        if value == 3:
            await asyncio.sleep(2)
            raise ValueError("three")
        return await (same(value) if value < 2 else forever())

    function = Life(call)
    operator = AsyncWaitOperator(function, mode=mode)
    run = operator.process(range(9))
    assert await anext(run) == 0
    await asyncio.sleep(3)
    assert function.events[-1] == "close"
    assert function.running == 0
    with pytest.raises(FunctionError, match="failed for element 3") as failure:
        await anext(run)
    assert isinstance(failure.value.__cause__, ValueError)
    assert (failure.value.element, failure.value.attempts) == ("3", 1)


@virtual
async def test_O6_the_outputs_of_one_input_stop_at_the_failure_too():
    async def call(value):
        if value == 1:
            await asyncio.sleep(2)
            raise ValueError
        return range(9)

    got: list[Any] = []
    with pytest.raises(FunctionError):
        await collect_until(AsyncWaitOperator(call, flatten=True).process(range(2)), got, pause=1)
    assert got in ([0, 1], [0, 1, 2])


ENDING = [KeyboardInterrupt, SystemExit, GeneratorExit]


@pytest.mark.parametrize("error", [ValueError, StopAsyncIteration, *ENDING])
@pytest.mark.parametrize("on_error", ["fail", "skip", lambda value, error: None], ids=["fail", "skip", "function"])
@virtual
async def test_O6_an_error_belongs_to_the_run_and_one_that_asks_the_process_to_end_is_never_hidden(
    mode, error, on_error
):
    calls: list[Any] = []

    async def call(value):
        calls.append(value)
        raise error

    options: dict[str, Any] = {"mode": mode, "on_error": on_error, "retry": retry() if error in ENDING else None}
    if on_error != "fail" and error not in ENDING:
        assert len(await process(call, range(5), **options)) == (0 if on_error == "skip" else 5)
        return
    with pytest.raises(FunctionError) as failure:
        await process(call, range(5), **options)
    assert isinstance(failure.value.__cause__, error)
    assert calls.count(0) == 1


@virtual
async def test_O6_an_error_that_cannot_be_shown_is_told_all_the_same(mode):
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

        __repr__ = __str__

    async def call(value):
        raise MuteError

    with pytest.raises(FunctionError, match="MuteError"):
        await process(call, [1], mode=mode)


class Unclear:
    def __bool__(self):
        raise SystemExit


@pytest.mark.parametrize("value", [property(lambda error: error.headers["Retry-After"]), Unclear()])
@pytest.mark.parametrize("attribute", ["retryable", "retry_after", "overload", "any_key"])
@virtual
async def test_O6_an_error_that_cannot_say_what_it_is_is_judged_as_if_it_did_not(attribute, value):
    kind = type("UnclearError", (ValueError,), {attribute: value, "headers": {}})
    script = Script({1: [Act(error=kind()), OK]})
    assert await process(script, range(3), retry=retry()) == [0, 1, 2]
    assert script.times(1) == [0, 1]
    always = Script(lambda value, attempt: Act(error=kind()) if value == 1 else OK)
    assert await process(always, range(3), capacity=AdaptiveCapacity(), on_error="skip") == [0, 2]

    def poisoned(values, number):
        if 1 in values:
            raise kind
        return values

    assert await process(Batches(poisoned), range(3), on_error="skip") == [0, 2]
