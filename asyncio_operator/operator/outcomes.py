"""The end of an element: a result, an error or a deadline becomes outputs, no outputs, or the end of the run.

A `Buffer` adds the two waits of a run to its queue: admission waits for room, emission for an element that may leave.

Law: an admitted element ends in exactly one of result, timeout result, skipped, or failure of the run. An error of a
hook ends the run, and names the hook. Whether a failed attempt is retried is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import FUNCTION, not_awaited, plain_result
from asyncio_operator.elements import Record
from asyncio_operator.engine.failures import element_error, ends_the_run, is_ordinary, is_over_budget
from asyncio_operator.engine.timing import wake
from asyncio_operator.errors import ElementTimeoutError, ResultError, describe
from asyncio_operator.figures import Figures
from asyncio_operator.function import AsyncFunction
from asyncio_operator.queues.base import Entry, StreamElementQueue

if TYPE_CHECKING:
    from asyncio_operator.operator.options import RunOptions


class Buffer:
    """The elements that are admitted and not yet emitted. It decides no order.

    Attributes:
        admitted, emitted: number of records so far.
        room: the future of a wait for room.
        ready: the future of a wait for an element that may leave.
    """

    def __init__(self, queue: StreamElementQueue, now: Callable[[], float]) -> None:
        self.queue = queue
        self.admitted = 0
        self.emitted = 0
        self.room: asyncio.Future[None] | None = None
        self.ready: asyncio.Future[None] | None = None
        self._now = now
        self._blocked = 0.0
        self._blocked_since: float | None = None

    def is_full(self) -> bool:
        return len(self.queue) >= self.queue.capacity

    async def wait(self, news: asyncio.Future[None]) -> None:
        """Wait for a future. If there is no room now, new room completes it too."""
        if not self.is_full():
            await news
            return
        self.room = news
        self._blocked_since = self._now()
        try:
            await news
        finally:
            self.room = None
            self._blocked += self._now() - self._blocked_since
            self._blocked_since = None

    def backpressure(self) -> float:
        """Seconds for which admission has waited for room."""
        return self._blocked + (0.0 if self._blocked_since is None else self._now() - self._blocked_since)

    def completed(self) -> None:
        """An element has completed. Wake the emission if an element may leave now."""
        ready = self.ready
        if ready is not None and self.queue.peek_completed() is not None:
            # Until the emission waits again, completions need not look at the queue.
            self.ready = None
            wake(ready)


GO_ON = 'on_error="skip" or a function as on_error lets the run go on'
IN_TIME = 'raise the timeout, give on_timeout for a result in its place, or on_error="skip" or a function as on_error'


class Outcomes:
    """Ends the elements of a run, and counts them. Every hook runs in a context of its own (law O17).

    Args:
        on_late: the function's `timeout`.
    """

    def __init__(self, options: RunOptions, on_late: Callable[[Any], Any], buffer: Buffer) -> None:
        self.figures = Figures()
        self.options = options
        self._flatten = options.flatten
        self._on_late = options.on_timeout or on_late
        self.buffer = buffer
        self._context = copy_context()

    def complete(self, entry: Entry, result: Any, attempts: int = 1, what: str = FUNCTION) -> str:
        """End an element with a result of the function, or of a hook, in attempt `attempts`.

        Returns how it ended: "result", or what `failed` returns if the result is a coroutine or cannot be flattened.
        """
        try:
            outputs = self.outputs(result, what) if self._flatten or type(result) is CoroutineType else (result,)
        except BaseException as error:
            what = what if isinstance(error, ResultError) else f"iterating over the result of {what}"
            return self.failed(entry, error, attempts, what=what)
        entry.complete(outputs)
        if self.buffer.ready is not None:
            self.buffer.completed()
        return "result"

    def answered(self, entry: Entry, result: Any, started: float) -> None:
        """End an element with the result of its first call, which started at this time."""
        if self._flatten or type(result) is CoroutineType:
            self.complete(entry, result)
            return
        entry.complete((result,))
        if self.buffer.ready is not None:
            self.buffer.completed()

    def outputs(self, result: Any, what: str = FUNCTION) -> tuple[Any, ...]:
        """The outputs of a result.

        Raises:
            ResultError: it is a coroutine, or cannot be flattened.
        """
        if type(result) is CoroutineType:
            raise not_awaited(what, result)
        return outputs_of(result) if self._flatten else (result,)

    def failed(
        self, entry: Entry, error: BaseException, attempts: int = 1, again: bool | None = False, what: str = FUNCTION
    ) -> str:
        """End an element with an error of the function, or of a hook, in attempt `attempts`.

        `again` as in `Endings`; None: too late. Returns how it ended: "skipped", or "result" if `on_error` gave one.

        Raises:
            FunctionError: that ends the run.
            BudgetExceeded: the error itself, whatever `on_error` says, unless the budget has ``on_spent="null"``.
        """
        value = value_of(entry)
        self.figures.failures += 1
        on_error = self.options.on_error
        outputs: tuple[Any, ...] = ()
        if ends_the_run(error):
            raise error
        if not is_ordinary(error):
            raise element_error(what, value, error, "it asks the process to end", attempts) from error
        if on_error == "skip":
            self.figures.skipped += 1
        elif callable(on_error):
            try:
                own = self._context.copy()
                result = plain_result("on_error", own.run(on_error, value, error))
                outputs = own.run(outputs_of, result) if self._flatten else (result,)
            except BaseException as hook_error:
                remedy = "make it return a result"
                raise element_error("on_error", value, hook_error, remedy, attempts) from hook_error
        elif is_over_budget(error):
            outputs = () if self._flatten else (None,)
        else:
            retry, remedy = self.options.retry, IN_TIME if again is None else GO_ON
            if retry and what == FUNCTION and again is not None and (why := retry.refusal(error, attempts, again)):
                remedy = f"{why}; {remedy}"
            raise element_error(what, value, error, remedy, attempts) from error
        entry.complete(outputs)
        self.buffer.completed()
        return "skipped" if on_error == "skip" else "result"

    def timed_out(self, entry: Entry, attempts: int = 1) -> str:
        """End an element at its deadline, with the result that a hook gives for it, or with the hook's error.

        Returns how it ended: "timeout", or "skipped".
        """
        value, limit = value_of(entry), self.options.timeout
        self.figures.timeouts += 1
        # Not overridden: the default only raises, and the error that is made here names the element and the limit.
        if getattr(self._on_late, "__func__", None) is AsyncFunction.timeout:
            error = ElementTimeoutError(f"element {describe(value)} had no result within its timeout of {limit} s")
            return "skipped" if self.failed(entry, error, attempts, None) == "skipped" else "timeout"
        hook = "on_timeout" if self.options.on_timeout is not None else "the function's timeout"
        try:
            own = self._context.copy()
            result = own.run(self._on_late, value)
        except BaseException as hook_error:
            self.failed(entry, hook_error, attempts, what=hook)
        else:
            own.run(self.complete, entry, result, attempts, hook)
        return "timeout"


def value_of(entry: Entry) -> Any:
    """What the function is called with."""
    return entry.element.value if type(entry.element) is Record else entry.element


def outputs_of(result: Any) -> tuple[Any, ...]:
    """The items of a result under ``flatten=True``."""
    if isinstance(result, str | bytes | bytearray | Mapping) or not isinstance(result, Iterable):
        raise ResultError(
            f"with flatten=True a result must be an iterable of outputs, such as a list; this one is of type "
            f"{type(result).__name__}: {describe(result)}"
        )
    return tuple(result)
