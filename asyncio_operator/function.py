"""What users write to be run per element: a coroutine function, an `AsyncFunction`, or a `BlockingFunction`.

`as_async_function` makes one of the first into the second, so that the operator knows one kind only. This module does
not know the operator, and starts nothing before `open`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from asyncio_operator.errors import ConfigurationError, ElementTimeoutError, describe, function_name
from asyncio_operator.policies.options import gives_coroutines, plain_function, positive_int, takes

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


ELEMENT = "the element (several values: a tuple)"

_POOLS = threading.Lock()


class BlockingFunction(AsyncFunction[In, Out]):
    """An ordinary function, run in a thread pool of its own: for clients that have no asynchronous interface.

    It sees the context variables of the call, as with ``asyncio.to_thread``. A thread cannot be cancelled: at its
    deadline the element ends, and its place in the capacity is given back only when the thread is done.

    Args:
        function: called with the value, in a thread.
        max_workers: threads, and so calls at once whatever the operator's capacity. The default, 32, is the upper end
            of what Python's own default pool takes: threads that wait for I/O cost a stack each and little else, but
            far more of them fight for the interpreter lock. Use an asynchronous client for hundreds of calls at once.
    """

    def __init__(self, function: Callable[[In], Out], max_workers: int = 32) -> None:
        if not callable(function) or gives_coroutines(function):
            raise ConfigurationError(
                f"function is {describe(function)}; BlockingFunction takes an ordinary function, `def f(value)`; "
                "pass an `async def` function as it is"
            )
        takes("function", function, ELEMENT)
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
        context = contextvars.copy_context()
        call = asyncio.get_running_loop().run_in_executor(self._pool, context.run, self._call, value)
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
        return function_name(self.invoke)


def as_async_function(function: Any) -> AsyncFunction[Any, Any]:
    """The function as an `AsyncFunction`.

    Raises:
        ConfigurationError: it is no coroutine function of one value, or a method of it is not what it has to be.
    """
    if isinstance(function, AsyncFunction):
        _check_methods(function)
        return function
    if gives_coroutines(function):
        takes("function", function, ELEMENT)
        return _PlainFunction(function)
    told = f"function is {describe(function)}"
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(f"{told}, which has been called already; pass it uncalled")
    if inspect.isclass(function) and issubclass(function, AsyncFunction):
        raise ConfigurationError(f"{told}, a class; pass an instance, {function.__name__}(...)")
    if inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{told}, an asynchronous generator; return a list, with flatten=True")
    raise ConfigurationError(
        f"{told}; it must be an `async def` function or an AsyncFunction. Wrap an ordinary "
        "function that blocks in BlockingFunction, and one that returns an awaitable in an `async def` that awaits it"
    )


def _check_methods(function: AsyncFunction[Any, Any]) -> None:
    """Otherwise each call would fail, and with ``on_error="skip"`` nobody would hear of it."""
    if isinstance(function, BatchAsyncFunction):
        _check_async(function, "invoke_batch(self, values)", BatchAsyncFunction.invoke_batch, "the list of elements")
    else:
        _check_async(function, "invoke(self, value)", AsyncFunction.invoke, ELEMENT)
    _check_async(function, "open(self)")
    _check_async(function, "close(self)")
    name, late = f"{type(function).__name__}.timeout", function.timeout
    if not callable(late):
        raise ConfigurationError(
            f"{name} is {describe(late)}; in an AsyncFunction `timeout` is the hook `def timeout(self, value)`; keep "
            f"the number under another name, or give the operator timeout={describe(late)}"
        )
    plain_function(name, late, "a method of the element", "the element")


def _check_async(function: AsyncFunction[Any, Any], wanted: str, unwritten: object = None, *arguments: str) -> None:
    """Check a method that has to be a coroutine function of these arguments, and another one than `unwritten`."""
    name, _, _ = wanted.partition("(")
    told, method = f"{type(function).__name__}.{name}", getattr(function, name)
    if not callable(method):
        raise ConfigurationError(
            f"{told} is {describe(method)}; in an AsyncFunction `{name}` is the method `async def {wanted}`; keep the "
            "value under another name"
        )
    if getattr(method, "__func__", None) is unwritten is not None:
        raise ConfigurationError(f"{type(function).__name__} does not define `async def {wanted}`")
    if inspect.isasyncgenfunction(method):
        raise ConfigurationError(f"{told} is an asynchronous generator; return a list, with flatten=True")
    if not gives_coroutines(method):
        blocking = ", or wrap a blocking function in BlockingFunction" if arguments else ""
        raise ConfigurationError(f"{told} is an ordinary function; make it `async def {wanted}`{blocking}")
    takes(told, method, *arguments)
