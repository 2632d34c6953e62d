"""What users write to be run per element: a coroutine function, an `AsyncFunction`, or a `BlockingFunction`.

`as_async_function` makes one of the first into the second, so that the operator knows one kind only. This module does
not know the operator, and starts nothing before `open`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from asyncio_operator.errors import ConfigurationError, ElementTimeoutError, describe
from asyncio_operator.policies.options import gives_coroutines, plain_function, positive_int

In = TypeVar("In")
Out = TypeVar("Out")


class AsyncFunction(Generic[In, Out]):
    """A function with a life: opened once before the first call, closed once after the last.

    Source: Flink's ``RichAsyncFunction``.
    """

    max_concurrency: int | None = None
    """More calls than this at once would only wait inside the function; None if there is no such bound."""

    async def open(self) -> None:
        """Make clients here: it runs on the loop that will run the calls."""

    async def invoke(self, value: In) -> Out:
        """The result for one value. It may be cancelled at any await."""
        raise NotImplementedError(f"{type(self).__name__} has to define `async def invoke(self, value)`")

    def timeout(self, value: In) -> Out:
        """The result of an element that passed its deadline; by default it raises `ElementTimeoutError`."""
        raise ElementTimeoutError(f"no result before the deadline for element {describe(value)}")

    async def close(self) -> None:
        """Release what `open` made; called once if `open` had begun, also if it failed."""


class BatchAsyncFunction(AsyncFunction[In, Out]):
    """A function of many values at once, such as one query for a list of keys."""

    async def invoke_batch(self, values: Sequence[In]) -> Sequence[Out]:
        """The results for values, one for each, in their order. It may be cancelled at any await."""
        raise NotImplementedError(f"{type(self).__name__} has to define `async def invoke_batch(self, values)`")

    async def invoke(self, value: In) -> Out:
        """The result for one value."""
        return (await self.invoke_batch([value]))[0]


_POOLS = threading.Lock()


class BlockingFunction(AsyncFunction[In, Out]):
    """An ordinary function, run in a thread pool of its own: for clients that have no asynchronous interface.

    A thread cannot be cancelled: at its deadline the element ends, and its place in the capacity is given back only
    when the thread is done.

    Args:
        function: called with the value, in a thread.
        max_workers: threads, and so calls at once whatever the operator's capacity. The default, 32, is the upper end
            of what Python's own default pool takes: threads that wait for I/O cost a stack each and little else, but
            far more of them fight for the interpreter lock. Use an asynchronous client for hundreds of calls at once.
    """

    def __init__(self, function: Callable[[In], Out], max_workers: int = 32) -> None:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise ConfigurationError(
                f"function is {describe(function)}; BlockingFunction takes an ordinary function, `def f(value)`; "
                "pass an `async def` function as it is"
            )
        self.function = function
        self.max_concurrency = positive_int("max_workers", max_workers)
        self._pool: ThreadPoolExecutor | None = None
        self._opened = 0

    async def open(self) -> None:
        # Several operators, on several loops, may have the same function.
        with _POOLS:
            self._opened += 1
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.max_concurrency, thread_name_prefix="asyncio-operator-blocking")

    async def invoke(self, value: In) -> Out:
        call = asyncio.get_running_loop().run_in_executor(self._pool, self._call, value)
        cancelled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            call.cancelled() or call.exception()
            raise cancelled
        return call.result()

    def _call(self, value: In) -> Out:
        try:
            return self.function(value)
        except StopIteration as error:
            # A future cannot hold it, and whoever waits for the call would wait for ever.
            raise RuntimeError("the function raised StopIteration") from error

    async def close(self) -> None:
        with _POOLS:
            self._opened -= 1
            if self._pool is not None and not self._opened:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "_opened": 0}


class _PlainFunction(AsyncFunction[In, Out]):
    """A coroutine function, with no life of its own."""

    def __init__(self, function: Callable[[In], Awaitable[Out]]) -> None:
        self.invoke = function  # type: ignore[method-assign,assignment]

    def __repr__(self) -> str:
        return describe(self.invoke)


def as_async_function(function: Any) -> AsyncFunction[Any, Any]:
    """The function as an `AsyncFunction`.

    Raises:
        ConfigurationError: it is no coroutine function.
    """
    if isinstance(function, AsyncFunction):
        plain_function("timeout", function.timeout, "a method of the value")
        return function
    if gives_coroutines(function):
        return _PlainFunction(function)
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(f"function is {describe(function)}, which has been called already; pass it uncalled")
    raise ConfigurationError(
        f"function is {describe(function)}; it must be an `async def` function or an AsyncFunction. Wrap an ordinary "
        "function that blocks in BlockingFunction, and one that returns an awaitable in an `async def` that awaits it"
    )
