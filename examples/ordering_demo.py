"""Ten calls of one to three milliseconds, made in six ways, side by side in one picture.

    python -m examples.ordering_demo

The six ways: a blocking call, and the operator with three calls at once: in a pool of three threads, ordered,
unordered, unordered between watermarks, and ordered by key. The program prints the time of the last result and the
order of the results. Nothing is simulated: the times are those of this machine, the fastest of ten runs for each way.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from asyncio_operator import AsyncWaitOperator, BlockingFunction, Record, Watermark
from asyncio_operator.trace import Trace
from examples import pictures

NAME = "ordering_demo"
TITLE = "Ten calls of 1 to 3 ms, in six ways"
CALLS_AT_ONCE = 3


class Element(NamedTuple):
    """An element; a1, a2, ... have the key a. The picture shows its repr."""

    name: str
    milliseconds: int

    def __repr__(self) -> str:
        return f"{self.name} {self.milliseconds}ms"


ELEMENTS = [
    Element("a1", 3),
    Element("b1", 1),
    Element("c1", 1),
    Element("a2", 1),
    Element("b2", 1),
    Element("c2", 2),
    Element("a3", 1),
    Element("b3", 3),
    Element("c3", 1),
    Element("a4", 2),
]
RECORDS = [Record(element, timestamp) for timestamp, element in enumerate(ELEMENTS)]
WITH_WATERMARKS = [*RECORDS[:4], Watermark(3), *RECORDS[4:8], Watermark(7), *RECORDS[8:]]
"""A watermark says that all records with a timestamp up to its own have come."""


def ask(element: Element) -> str:
    """A call that blocks its thread."""
    time.sleep(element.milliseconds / 1e3)
    return element.name


async def ask_async(element: Element) -> str:
    """The same call, while its thread does something else."""
    await asyncio.sleep(element.milliseconds / 1e3)
    return element.name


def key_of(element: Element) -> str:
    """Elements with the same key stay in order."""
    return element.name[0]


def blocking_call(trace: Trace) -> Iterable[str]:
    """One call after the other. It writes its trace by hand; the operator does this itself."""
    trace.started(time.monotonic())
    for number, element in enumerate(ELEMENTS):
        trace.admitted(time.monotonic(), number, element)
        trace.record("attempt_started", time.monotonic(), number, 1)
        answer = ask(element)
        trace.record("attempt_ended", time.monotonic(), number, 1, "result")
        trace.record("completed", time.monotonic(), number, "result")
        trace.record("emitted", time.monotonic(), number)
        yield answer


def operator(trace: Trace, function: Any = ask_async, inputs: Iterable[Any] = ELEMENTS, **options: Any) -> list[str]:
    """The asynchronous wait operator: one thread for all calls, if the function does not bring threads of its own."""

    async def outputs() -> list[str]:
        wait_operator = AsyncWaitOperator(function, capacity=CALLS_AT_ONCE, trace=trace, **options)
        return [name_of(output) async for output in wait_operator.process(inputs)]

    return asyncio.run(outputs())


def name_of(output: str | Record[str] | Watermark) -> str:
    """An output in one word."""
    match output:
        case Record(answer):
            return answer
        case Watermark():
            return "|"
        case _:
            return output


WAYS: dict[str, pictures.Way] = {
    "blocking call": blocking_call,
    f"pool of {CALLS_AT_ONCE} threads": partial(
        operator, function=BlockingFunction(ask, CALLS_AT_ONCE), mode="ordered"
    ),
    "async, ordered": partial(operator, mode="ordered"),
    "async, unordered": partial(operator, mode="unordered"),
    "async, unordered, watermarks": partial(operator, inputs=WITH_WATERMARKS, mode="unordered"),
    "async, key-ordered": partial(operator, mode="key_ordered", key=key_of),
}


def demo(path: Path) -> dict[str, pictures.Run]:
    """Run all ways, and show the results."""
    return pictures.show(WAYS, path, TITLE, "| is a watermark")


if __name__ == "__main__":
    sys.exit(pictures.main(NAME, "Ten calls, made in six ways, side by side in one picture.", demo))
