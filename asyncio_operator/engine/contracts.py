"""The protocols between the parts of a run: the engine sees what is around it through these, and only these.

    Input     gives elements                       (`inputs` wraps what users pass)
    Source    hands out elements                   (`operator.intake`, `lookup.pipeline`)
    Intake    gives the lanes their windows        (`attempts`)
    Window    a run of calls that all lanes share  (`attempts`, `operator.intake`, `lookup.open_batch`)
    Endings   takes the outcome of an element      (`operator.outcomes`, `lookup.open_keys`)

The lanes give results to the window, and report any other end of a call to the intake, which decides what it means. A
source never makes its caller wait: if its reader has nothing now, the reader is `wanted`, and waits for the input in a
task of its own. So other news can end the wait of the lane that looks for work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from asyncio_operator.engine.flights import Call


class Window:
    """A piece of work that lanes share. Its attributes are those of the simplest one."""

    working = 0  # The number of lanes that work in it, those with calls past their limits excluded. The lanes keep it.
    instant = True  # Whether taking work from it takes no time. Then the end of a call counts as the start of the next.
    # Whether each result is the outcome of its elements, so that what a call takes is what its elements take.
    final = False
    # The list in which results are stored, each at the index that is its slot: faster than a call of `complete`, which
    # takes the results if this is None.
    results: list[Any] | None = None
    # Called with a slot and the time when its call starts. It returns the seconds that the call may take. None: every
    # call may take the lanes' `timeout`. Context variables that it sets are seen by the call. An error that this
    # function or a method below raises ends the run.
    begin: Callable[[Any, float], float] | None = None
    # Called when a call has given its result, with the time and when the call started.
    ended: Callable[[float, float], object] | None = None
    complete: Callable[[Any, Any, float], object]  # Called with a slot, its result, and when its call started.

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yields pairs of a slot, which identifies the outcome, and a value for the function."""
        raise NotImplementedError

    def call_of(self, slot: Any, started: float | None = None) -> Call:
        """The call of a slot, which may be that call. It has started at this time, if it is in trouble."""
        return slot  # type: ignore[no-any-return]

    def left(self) -> None:
        """The last lane has left the window, which may still have work. May be called more than once."""


class Intake(Protocol):
    """The source of windows."""

    async def window(self) -> Window | None:
        """The present window if it has work left, otherwise the next one, after a wait. None if there are no more.

        Only one lane at a time waits here.
        """

    def is_urgent(self, now: float) -> bool:
        """Whether lanes have to leave their window, because other work goes before it."""

    def failed(self, call: Call, error: BaseException) -> None:
        """The call raised an error."""

    def timed_out(self, call: Call) -> float | None:
        """The call is past its limit. It is cancelled, unless this returns a new limit, in seconds from its start."""

    def returned(self, call: Call, error: BaseException | None) -> None:
        """A call that was past its limit has returned, or raised an error. This is the last report about it."""

    def value_of(self, call: Call) -> Any:
        """The value with which the function was called."""

    def stop(self) -> None:
        """The run ends: no window is requested any more, and no call starts."""


class Source(Protocol):
    """Hands out elements: in calls, or `direct`, in windows."""

    direct: bool  # Whether lanes take new elements from `window`, because a call takes one.
    alone: bool  # Whether nothing but its input can bring work.

    @property
    def keyed(self) -> Any:
        """The queue that keeps calls of one key apart (law Q7), `queues.key_ordered`; None: elements have no keys."""

    @property
    def waiting(self) -> int:
        """The number of elements that have come in and were not taken."""

    @property
    def over(self) -> bool:
        """Whether no element will come any more."""

    def take_run(self, most: int, now: float) -> Call | None:
        """A call for at most `most` elements that may have their first attempt, and that no window hands out."""

    def window(self) -> Window | None:
        """New elements to be called for, if it is `direct` and there are any."""

    def values(self, call: Call) -> Any:
        """What several elements are called with: a list of their values, or something like it."""

    def store(self, call: Call, results: Sequence[Any], now: float) -> None:
        """A call for elements without flights has given these results, one for each."""

    def prepare(self, now: float) -> None:
        """No call may start now: have elements ready for the next one."""

    def is_full(self) -> bool:
        """Whether no element can come in until something leaves."""

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future; if it is full now, some room completes it too."""

    def stop(self) -> None:
        """The run ends: nothing is handed out any more."""


class Endings(Protocol):
    """Gives elements their outcomes. Each method ends the element of an entry after its last attempt, and returns one
    word for a trace: how the element ended. What it raises ends the run. `again`: `retry` wanted another one. The
    elements that ended in an error are counted here.
    """

    def complete(self, entry: Any, result: Any, attempts: int) -> str: ...

    def failed(self, entry: Any, error: BaseException, attempts: int, again: bool) -> str: ...

    def timed_out(self, entry: Any, attempts: int) -> str: ...


@runtime_checkable
class Input(Protocol):
    """A source of elements. One reader at a time. A class that inherits from it needs no method that does nothing."""

    instant: bool = True
    """Whether iterating takes no time worth measuring."""

    async def ready(self) -> bool:
        """Wait until iterating may give something; False at the end."""

    def has_some(self) -> bool:
        """Whether iterating may give something now, without waiting; False also at the end."""

    def read_ahead(self) -> list[Any]:
        """Elements that were read from the source and not yet given by iterating."""
        return []

    def __iter__(self) -> Iterator[Any]:
        """The elements that are available now. The reader may stop half-way and iterate again later."""

    def exhausted(self) -> None:
        """The reader iterated to the end of the available elements. There may be more later."""
        return

    async def release(self) -> None:
        """Drop the source, after the last read has ended. The result of `read_ahead` stays the same."""
        return
