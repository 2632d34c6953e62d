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


class OwnContexts:
    """Makes calls, one after the other, each of which has its own copy of the context, and hands over their results.

    Args:
        invoke: makes a call.
        complete: takes the result of a call. It runs in the context of that call, because a result may be an iterable
            that runs code of the function.
        begin: called before each call, in its context too; None: nothing is.
    """

    def __init__(
        self,
        context: Context,
        invoke: Callable[[Any], Awaitable[Any]],
        complete: Callable[..., Any],
        begin: Callable[[Any, float], float] | None,
    ) -> None:
        self._context = context
        self._invoke = invoke
        self._complete = complete
        self._begin = begin
        self._own = context

    def begin(self, slot: Any, started: float) -> float:
        assert self._begin is not None
        self._own = self._context.copy()
        return self._own.run(self._begin, slot, started)

    def invoke(self, value: Any) -> Awaitable[Any]:
        if self._begin is None:
            self._own = self._context.copy()
        return call_within(self._own, self._invoke, value)

    def complete(self, slot: Any, result: Any, started: float) -> None:
        self._own.run(self._complete, slot, result, started)


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
