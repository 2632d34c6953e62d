"""The contexts (contextvars) of calls: copies of the context in which the run was started.

Law O17: what a call sets is seen by what the call starts, and by no other call. asyncio gives each task one context,
and a lane is one task for many calls. So a lane whose context has changed is *apart*: each of its later calls, and each
look at the input, runs in a copy of the context that the lane had at first. As long as nothing is set, this costs a
comparison of two pointers for each call.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

PLAIN_TYPES = (str, bytes, types.NoneType)
"""Types whose equal values are the same for every reader, so that no reader notices if one takes the other's place."""


def call_within(context: Context, function: Callable[..., Awaitable[T]], *arguments: Any) -> Awaitable[T]:
    """``function(*arguments)``, to be awaited, with every step of it in the context and in the present task."""
    made = context.run(function, *arguments)
    return _within(context, made if type(made) is types.CoroutineType else _awaited(made))


@types.coroutine
def _within(context: Context, call: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    run = context.run
    try:
        future = run(call.send, None)
        while True:
            try:
                sent = yield future
            except GeneratorExit:
                run(call.close)
                raise
            except BaseException as error:
                future = run(call.throw, error)
            else:
                future = run(call.send, sent)
    except StopIteration as end:
        result: T = end.value
        return result


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def apart_from(context: Context, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    """Makes every call of the function in a copy of the context of its own."""
    return lambda value: call_within(context.copy(), function, value)


def apart_if_changed(context: Context, function: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    """Makes a call of the function where it is, if the context there equals this one, else in a copy of this one."""

    def invoke(value: Any) -> Awaitable[T]:
        try:
            apart = copy_context() != context
        except Exception:  # values that cannot be compared
            apart = True
        return call_within(context.copy(), function, value) if apart else function(value)

    return invoke


def has_lookalikes(context: Context) -> bool:
    """Whether a value in it may be equal to another value that a reader can tell from it, such as 1 and True.

    Contexts compare their values with ``==``. With such a value, equal contexts do not show that nothing was set.
    """
    return any(
        type(value) not in PLAIN_TYPES and getattr(type(value), "__eq__", None) is not object.__eq__
        for value in context.values()
    )
