"""The functions that users write: a coroutine function, an `AsyncFunction`, or a `BlockingFunction`.

`as_async_function` turns a coroutine function into an `AsyncFunction`, so the operator knows only one kind. This module
does not know the operator, and starts nothing before `open`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from asyncio_operator.checks import gives_coroutines, is_idempotent, plain_function, positive_int, takes
from asyncio_operator.errors import ConfigurationError, ElementTimeoutError, describe, function_name

In = TypeVar("In")
Out = TypeVar("Out")


class AsyncFunction(Generic[In, Out]):
    """A function that is opened once before the first call, and closed once after the last.

    Source: Flink's ``RichAsyncFunction``.
    """

    max_concurrency: int | None = None
    """The maximum number of calls that the function can run at the same time; further calls would wait inside it. None:
    no maximum."""

    idempotent: bool = True
    """Whether two calls for the same value have the effect of one. False forbids `hedge`, and a task of Spark makes
    no call ahead of the rows that are taken. A function may have an attribute of that name."""

    async def open(self) -> None:
        """Make clients here. It runs on the loop that runs the calls."""

    async def invoke(self, value: In) -> Out:
        """The result for one value. It may be cancelled at any await."""
        raise NotImplementedError(f"{type(self).__name__} must define `async def invoke(self, value)`")

    def weigh(self, values: Sequence[In]) -> Mapping[str, float]:
        """Under a budget: what one call for these values is likely to weigh, by unit, such as ``{"tokens": 1300}``.

        Calls and values are counted without it. It must return at once. By default a call weighs nothing else. An
        ``async def`` may have an attribute of that name, a function of the list of values.
        """
        return {}

    def timeout(self, value: In) -> Out:
        """The result of an element that passed its deadline. By default it raises `ElementTimeoutError`."""
        raise ElementTimeoutError(f"no result before the deadline for element {describe(value)}")

    async def close(self) -> None:
        """Release everything that `open` made. Called once if `open` was called, also if `open` failed."""


class BatchAsyncFunction(AsyncFunction[In, Out]):
    """A function of several values per call, such as one query for a list of keys."""

    async def invoke_batch(self, values: Sequence[In]) -> Sequence[Out]:
        """The results for values, one for each, in their order. It may be cancelled at any await."""
        raise NotImplementedError(f"{type(self).__name__} must define `async def invoke_batch(self, values)`")

    async def invoke(self, value: In) -> Out:
        """The result for one value."""
        return (await self.invoke_batch([value]))[0]


ELEMENT = "the element (several values: a tuple)"

WEIGHED = "the list of elements"

_POOLS = threading.Lock()


class BlockingFunction(AsyncFunction[In, Out]):
    """An ordinary function that runs in its own thread pool: for clients without an asynchronous interface.

    It sees the context variables of the call, as with ``asyncio.to_thread``. A thread cannot be cancelled. So an
    element ends at its deadline, but it counts against the capacity until its thread is done.

    Args:
        function: called with the value, in a thread.
        max_workers: the maximum number of threads, and so of calls at the same time, whatever the capacity. The
            default, 32, is the largest default of Python's own pool. A thread that waits for I/O costs little more than
            its stack, but many threads compete for the interpreter lock. Use an asynchronous client for hundreds of
            calls at the same time.
    """

    def __init__(self, function: Callable[[In], Out], max_workers: int = 32) -> None:
        if not callable(function) or gives_coroutines(function):
            raise ConfigurationError(
                f"function is {describe(function)}; BlockingFunction takes an ordinary function, `def f(value)`; "
                "pass an `async def` function as it is"
            )
        takes("function", function, ELEMENT)
        self.function = function
        self.idempotent = is_idempotent(function) and self.idempotent
        self.max_concurrency = positive_int("max_workers", max_workers)
        self._pool: ThreadPoolExecutor | None = None
        self._opened = 0

    async def open(self) -> None:
        # Several operators, on several loops, may share this function.
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
            # A future cannot hold a StopIteration, so the caller would wait forever.
            raise RuntimeError("the function raised StopIteration") from error

    async def close(self) -> None:
        with _POOLS:
            self._opened = max(0, self._opened - 1)
            if self._pool is not None and not self._opened:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None, "_opened": 0}


def weigh_of(function: Callable[..., Any]) -> Any:
    """The attribute `weigh` of a coroutine function: a function of the list of elements, or None.

    Raises:
        ConfigurationError: it is something else.
    """
    weigh = getattr(function, "weigh", None)
    if weigh is not None:
        plain_function(f"{function_name(function)}.weigh", weigh, "a function of the list of elements", WEIGHED)
    return weigh


class _PlainFunction(AsyncFunction[In, Out]):
    """A coroutine function, without `open` and `close`."""

    def __init__(self, function: Callable[[In], Awaitable[Out]]) -> None:
        self.invoke = function  # type: ignore[method-assign,assignment]
        self.idempotent = is_idempotent(function)
        weigh = weigh_of(function)
        if weigh is not None:
            self.weigh = weigh  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return function_name(self.invoke)


def as_async_function(function: Any) -> AsyncFunction[Any, Any]:
    """The function as an `AsyncFunction`.

    Raises:
        ConfigurationError: it is not a coroutine function of one value, or one of its methods is wrong.
    """
    if isinstance(function, AsyncFunction):
        # Otherwise each call would fail, and `on_error="skip"` would hide that.
        if isinstance(function, BatchAsyncFunction):
            batch = BatchAsyncFunction.invoke_batch
            _check_async(function, "invoke_batch(self, values)", batch, "the list of elements")
        else:
            _check_async(function, "invoke(self, value)", AsyncFunction.invoke, ELEMENT)
        _check_async(function, "open(self)")
        _check_async(function, "close(self)")
        name, late = f"{type(function).__name__}.timeout", function.timeout
        if not callable(late):
            raise ConfigurationError(
                f"{name} is {describe(late)}; in an AsyncFunction `timeout` is the hook `def timeout(self, value)`; "
                f"keep the number under another name, or give the operator timeout={describe(late)}"
            )
        plain_function(name, late, "a method of the element", "the element")
        weigh = f"{type(function).__name__}.weigh"
        plain_function(weigh, function.weigh, "a method of the list of elements", WEIGHED)
        return function
    if gives_coroutines(function):
        takes("function", function, ELEMENT)
        return _PlainFunction(function)
    given = f"function is {describe(function)}"
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(f"{given}, the result of a call; pass the function itself, without calling it")
    if inspect.isclass(function) and issubclass(function, AsyncFunction):
        raise ConfigurationError(f"{given}, a class; pass an instance, {function.__name__}(...)")
    if inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"{given}, an asynchronous generator; return a list, with flatten=True")
    raise ConfigurationError(
        f"{given}; it must be an `async def` function or an AsyncFunction. Wrap an ordinary "
        "function that blocks in BlockingFunction, and one that returns an awaitable in an `async def` that awaits it"
    )


def _check_async(function: AsyncFunction[Any, Any], wanted: str, unwritten: object = None, *arguments: str) -> None:
    """Check that a method is a coroutine function of these arguments, and is not the inherited `unwritten`."""
    name, _, _ = wanted.partition("(")
    shown, method = f"{type(function).__name__}.{name}", getattr(function, name)
    if not callable(method):
        raise ConfigurationError(
            f"{shown} is {describe(method)}; in an AsyncFunction `{name}` is the method `async def {wanted}`; keep the "
            "value under another name"
        )
    if getattr(method, "__func__", None) is unwritten is not None:
        raise ConfigurationError(f"{type(function).__name__} does not define `async def {wanted}`")
    if inspect.isasyncgenfunction(method):
        raise ConfigurationError(f"{shown} is an asynchronous generator; return a list, with flatten=True")
    if not gives_coroutines(method):
        blocking = ", or wrap a blocking function in BlockingFunction" if arguments else ""
        raise ConfigurationError(f"{shown} is an ordinary function; make it `async def {wanted}`{blocking}")
    takes(shown, method, *arguments)
