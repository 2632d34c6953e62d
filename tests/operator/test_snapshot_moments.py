"""O10: a snapshot at any moment, in a chain of runs and between two steps of the synchronous face."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from asyncio_operator import (
    AsyncWaitOperator,
    FunctionError,
    OperatorSnapshot,
    Record,
    Watermark,
)
from asyncio_operator.loop.thread import loop_thread
from tests.operator.attempts import BAD, OK, Script, retry
from tests.operator.helpers import (
    collect,
    same,
)

# -- at any moment


# -- the synchronous face


def rest_of(operator: AsyncWaitOperator, snapshot: OperatorSnapshot) -> list[Any]:
    return asyncio.run(collect(operator.process([], restore=snapshot)))


@pytest.mark.parametrize("taken", [0, 1, 2, 7, 64, 128, 129, 200, 400])
def test_O10_a_snapshot_between_two_steps_of_the_synchronous_face_loses_and_doubles_nothing(any_mode, taken):
    operator = AsyncWaitOperator(same, capacity=8, **any_mode)
    outputs = operator(range(1000))
    got = [next(outputs) for _ in range(taken)]
    snapshot = operator.snapshot()
    outputs.close()  # type: ignore[attr-defined]
    # What was not read yet comes behind everything else.
    inside = [element for element, _ in snapshot.elements]
    assert sorted(got + inside) == list(range(taken + len(inside)))
    assert rest_of(operator, snapshot) == inside


def test_O10_also_if_many_inputs_have_no_output(any_mode):
    """Outputs that are on their way to the consumer are known however many inputs without any are between them."""

    async def call(value: Any) -> list[Any]:
        return [] if 100 <= value < 400 else [value]

    operator = AsyncWaitOperator(call, capacity=8, flatten=True, **any_mode)
    outputs = operator(range(1000))
    first = next(outputs)
    # One taken, 300 without outputs, and as many on their way as there may be.
    while operator.metrics.emitted < 301:
        operator.snapshot()
    snapshot = operator.snapshot()
    outputs.close()  # type: ignore[attr-defined]
    inside = {element for element, _ in snapshot.elements}
    assert {first, *inside} >= set(range(100))


def test_O10_what_is_on_its_way_to_the_consumer_keeps_its_attempts(any_mode):
    script = Script(lambda value, attempt: BAD if attempt == 0 else OK)
    operator = AsyncWaitOperator(script, retry=retry(delay=0.0), **any_mode)
    outputs = operator(range(50))
    assert next(outputs) == 0
    while (metrics := operator.metrics).retries < 50 or metrics.in_flight or metrics.backing_off:
        operator.snapshot()
    assert operator.snapshot().elements == tuple((value, 1) for value in range(1, 50))
    outputs.close()  # type: ignore[attr-defined]


async def tasks() -> int:
    return len(asyncio.all_tasks())


class Ending:
    """An input, or a function, that fails at its end, if that is switched on."""

    def __init__(self, failing: str, elements: list[Any]) -> None:
        self.failing = failing
        self.elements = elements
        self.last = elements[-1]
        self.go = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield from self.elements
        assert self.go.wait(10)
        if self.failing == "input":
            raise OSError("mine")

    async def call(self, value: Any) -> Any:
        if self.failing == "call" and value == self.last:
            while not self.go.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0)
            raise OSError("mine")
        return value

    def run_until_failed(self, operator: AsyncWaitOperator, taken: int, last_act: str) -> list[Any]:
        """What was taken of a run that has failed before the consumer asks again."""
        outputs = operator(self)
        got = [next(outputs) for _ in range(taken)]
        while operator.metrics.admitted < sum(not isinstance(element, Watermark) for element in self.elements):
            operator.snapshot()
        self.go.set()
        while asyncio.run_coroutine_threadsafe(tasks(), loop_thread().loop).result(10) > 1:
            pass
        with pytest.raises((OSError, FunctionError)):
            outputs.close() if last_act == "close" else got.extend(outputs)  # type: ignore[attr-defined]
        return got


@pytest.mark.parametrize("last_act", ["read on", "close"])
@pytest.mark.parametrize("failing", ["call", "input"])
@pytest.mark.parametrize("taken", [1, 2, 40])
def test_O10_outputs_that_a_failure_took_back_are_in_the_snapshot_and_not_emitted(any_mode, failing, taken, last_act):
    elements: list[Any] = []
    for number in range(100):
        elements += [Watermark(number)] if number % 7 == 3 else []
        elements.append(Record(number, number) if number % 2 else number)
    ending = Ending(failing, elements)
    ending.last = 99
    operator = AsyncWaitOperator(ending.call, **any_mode)
    got = ending.run_until_failed(operator, taken, last_act)
    inside = [element for element, _ in operator.snapshot().elements]
    assert len(got) == taken
    assert Counter(map(str, got + inside)) == Counter(map(str, elements))
    metrics = operator.metrics
    assert metrics.emitted == sum(not isinstance(element, Watermark) for element in got)
    assert metrics.buffered == 100 - metrics.emitted


class Stopping(asyncio.SelectorEventLoop):
    """Stops between the question whether it runs and whatever comes next."""

    lies = 0

    def is_running(self) -> bool:
        self.lies -= 1
        return self.lies == 0 or super().is_running()


def test_O10_it_does_not_wait_for_a_loop_that_stops():
    loop = Stopping()
    operator = AsyncWaitOperator(same)
    run = operator.process(range(5))
    assert loop.run_until_complete(anext(run)) == 0
    loop.lies = 1
    assert [element for element, _ in operator.snapshot().elements] == [1, 2, 3, 4]
    assert loop.lies < 0
    loop.run_until_complete(run.aclose())
    loop.close()


def test_O10_it_may_be_taken_from_another_thread_at_any_time(any_mode):
    operator = AsyncWaitOperator(same, capacity=4, **any_mode)
    got = []
    snapshots: list[tuple[int, OperatorSnapshot]] = []
    for output in operator(range(3000)):
        got.append(output)
        if len(got) % 97 == 0:
            snapshots.append((len(got), operator.snapshot()))
    assert sorted(got) == list(range(3000))
    for count, snapshot in snapshots:
        inside = [element for element, _ in snapshot.elements]
        assert sorted(got[:count] + inside) == list(range(count + len(inside)))
