"""The contexts (contextvars) of calls: copies of the context in which the run was started.

Law O17: a context variable that a call sets is seen by tasks that the call starts, and by no other call. asyncio gives
each task one context, and a lane is one task for many calls. So a lane whose context has changed is *apart*: each of
its later calls, and each look at the input, runs in a copy of the context that the lane had at first. As long as no
variable is set, this costs a comparison of two pointers for each call.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

PLAIN_TYPES = (str, bytes, types.NoneType)
"""Types whose equal values no reader can distinguish, so one may replace the other."""


def call_within(context: Context, function: Callable[..., Awaitable[T]], *arguments: Any) -> Awaitable[T]:
    """``function(*arguments)``, to be awaited, with every step of it in the context and in the present task."""
    # The call too: a function that is not ``async def`` runs code before it returns its awaitable.
    made = context.run(function, *arguments)
    # A future, or an object with ``__await__``, cannot be stepped by `_within`.
    return _within(context, made if type(made) is types.CoroutineType else _awaited(made))


@types.coroutine
def _within(context: Context, call: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    # A task steps its coroutine in the one context of the task. To use another one, each step is made here.
    run = context.run
    try:
        future = run(call.send, None)
        while True:
            try:
                sent = yield future
            except GeneratorExit:
                # Its ``finally`` blocks run in the context too.
                run(call.close)
                raise
            except BaseException as error:
                # A cancellation comes this way, and the call may catch it.
                future = run(call.throw, error)
            else:
                future = run(call.send, sent)
    except StopIteration as end:
        result: T = end.value
        return result


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def apart_from(context: Context, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    """Makes every call of the function in its own copy of the context."""
    return lambda value: call_within(context.copy(), function, value)


def apart_if_changed(context: Context, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    """Makes a call of the function in the present context if that equals this one, else in a copy of this one."""

    def invoke(value: Any) -> Awaitable[T]:
        # A value may have an ``__eq__`` that raises, as arrays of numpy do when asked for a truth value.
        try:
            apart = copy_context() != context
        except Exception:
            apart = True
        return call_within(context.copy(), function, value) if apart else function(value)

    return invoke


def has_lookalikes(context: Context) -> bool:
    """Whether it holds a value that may equal one that differs for a reader, as 1 equals True.

    Contexts compare their values with ``==``. With such a value, equal contexts do not prove that nothing was set.
    """
    # An object of a class without ``__eq__`` equals only itself.
    return any(
        type(value) not in PLAIN_TYPES and getattr(type(value), "__eq__", None) is not object.__eq__
        for value in context.values()
    )
