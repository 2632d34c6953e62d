"""Laws O1, O2, O6 and X7 for a task whose input is pushed: who waits for whom, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncio_operator.spark.worker.table_function import AHEAD, PushedTask
from asyncio_operator.spark.worker.task_frame import spark_watch

ENOUGH = 20.0
"""Seconds after which something has not happened, on a busy machine."""


def run(task: Callable[[Iterator[int]], Iterator[int]], inputs: list[int]) -> list[int]:
    pushed = PushedTask(task)
    given = [output for element in inputs for output in pushed.push(element)]
    return given + list(pushed.finish())


def behind(distance: int) -> Callable[[Iterator[int]], Iterator[int]]:
    """Gives every input when it has read a number of further ones."""

    def task(inputs: Iterator[int]) -> Iterator[int]:
        held: list[int] = []
        for element in inputs:
            held.append(element)
            if len(held) > distance:
                yield held.pop(0)
        yield from held

    return task


@pytest.mark.parametrize("distance", [0, 1, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_O4_every_input_is_given_once_in_its_order(distance: int, count: int) -> None:
    assert run(behind(distance), list(range(count))) == list(range(count))


def test_O4_an_input_may_give_nothing_or_much() -> None:
    def task(inputs: Iterator[int]) -> Iterator[int]:
        for element in inputs:
            yield from [element] * (element % 4)
        yield -1

    assert run(task, list(range(9))) == [1, 2, 2, 3, 3, 3, 5, 6, 6, 7, 7, 7, -1]


def test_O2_few_outputs_are_ahead() -> None:
    made: list[int] = []
    reached = threading.Event()

    def task(inputs: Iterator[int]) -> Iterator[int]:
        for i in range(100):
            made.append(i)
            if i == AHEAD:
                reached.set()
            yield i
        yield from inputs

    pushed = PushedTask(task)
    assert reached.wait(ENOUGH)
    outputs = pushed.finish()
    assert (next(outputs), len(made) <= AHEAD + 2) == (0, True)
    assert list(outputs) == list(range(1, 100))


def test_O1_the_task_reads_on_while_its_outputs_are_not_there() -> None:
    """As if the first input's lookup took until the fourth input is read."""
    pushed = PushedTask(behind(3))
    assert [list(pushed.push(element)) for element in range(3)] == [[], [], []]
    assert list(pushed.push(3)) + list(pushed.finish()) == [0, 1, 2, 3]


@pytest.mark.parametrize("at", [0, 3])
def test_O6_an_error_of_the_task_is_raised_in_place_of_its_outputs(at: int) -> None:
    failed = threading.Event()

    def task(inputs: Iterator[int]) -> Iterator[int]:
        for element in inputs:
            yield element
            if element == at:
                failed.set()
                raise ValueError(f"enough of {element}")

    pushed = PushedTask(task)

    def push_all() -> None:
        for element in range(10):
            list(pushed.push(element))
            assert element < at or failed.wait(ENOUGH)

    with pytest.raises(ValueError, match=f"enough of {at}"):
        push_all()


def test_X7_closing_ends_a_task_that_reads_and_one_that_gives() -> None:
    ended: list[str] = []

    def reading(inputs: Iterator[int]) -> Iterator[int]:
        try:
            yield from inputs
        finally:
            ended.append("reading")

    def giving(inputs: Iterator[int]) -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            ended.append("giving")

    for task in (reading, giving):
        pushed = PushedTask(task)
        outputs = pushed.push(1)
        if task is reading:
            list(outputs)
        pushed.close()
    assert ended == ["reading", "giving"]


class Socket:
    """To Spark, which has hung up."""

    def flush(self) -> None:
        raise BrokenPipeError("nobody there")

    def fileno(self) -> int:
        raise OSError


@pytest.mark.parametrize("hung_up", [False, True], ids=["closed", "hung_up"])
def test_X7_a_task_that_waits_for_a_call_sees_that_it_is_over(hung_up: bool) -> None:
    waits, seen = threading.Event(), threading.Event()

    def task(inputs: Iterator[int]) -> Iterator[int]:
        check_spark = spark_watch()
        assert check_spark is not None
        waits.set()
        while True:
            try:
                check_spark()
            except BaseException:
                seen.set()
                raise
            seen.wait(0.01)
        yield 1

    outfile: Any = Socket() if hung_up else None  # as on the stack of PySpark's worker
    pushed = PushedTask(task)
    assert waits.wait(ENOUGH)
    if not hung_up:
        pushed.close()
    assert seen.wait(ENOUGH), outfile
    if hung_up:
        with pytest.raises(BrokenPipeError, match="nobody there"):
            list(pushed.finish())
