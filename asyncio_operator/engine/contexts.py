"""The contexts (contextvars) of calls: copies of the context in which the run was started.

Law O17: a context variable that a call sets is seen by tasks that the call starts, and by no other call. asyncio gives
each task one context, and a lane is one task for many calls. So a lane whose context has changed is *apart*: each of
its later calls runs in a copy of the context that the lane had at first. As long as no variable is set, this costs a
comparison of two pointers for each call, and no copy. The input, read by whichever lane seeks, has one context of its
own.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


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


Begin = Callable[[Any, float], float]  # See `contracts.Window`, as for the two below.
Invoke = Callable[[Any], Awaitable[Any]]
Complete = Callable[[Any, Any, float], object]


def in_own_contexts(
    context: Context, begin: Begin | None, invoke: Invoke, complete: Complete
) -> tuple[Begin | None, Invoke, Complete]:
    """The same functions for calls, one after the other, each of which has its own copy of the context. `complete` too
    runs in it, because a result may be an iterable that runs code of the function."""
    own = context

    def begin_call(slot: Any, started: float) -> float:
        nonlocal own
        own = context.copy()
        return own.run(begin, slot, started)  # type: ignore[arg-type]

    def invoke_call(value: Any) -> Awaitable[Any]:
        nonlocal own
        if begin is None:
            own = context.copy()
        return call_within(own, invoke, value)

    def complete_call(slot: Any, result: Any, started: float) -> None:
        own.run(complete, slot, result, started)

    return None if begin is None else begin_call, invoke_call, complete_call


Doubtful = Sequence[tuple[ContextVar[Any], Any]]  # Variables whose values can be equal without being the same object.


def doubtful_values(context: Context) -> Doubtful:
    """The variables whose values are not compared by identity, such as 1, which equals True, and text, which equals the
    member of an enumeration. Contexts compare their values with ``==``: equal ones do not show that these are the same.
    """
    return [
        (variable, value)
        for variable, value in context.items()
        if value is not None and getattr(type(value), "__eq__", None) is not object.__eq__
    ]


def are_replaced(doubtful: Doubtful) -> bool:
    """Whether one of the variables has another value in the present context."""
    return any(variable.get() is not value for variable, value in doubtful)
