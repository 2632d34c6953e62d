"""The result of `process`: a generator of a run's outputs that raises an error after a cancellation has ended it.

A cancellation that reaches an asynchronous generator finishes it. Every later step then raises `StopAsyncIteration`, as
at the end. So ``asyncio.wait_for(anext(outputs), 1.0)`` in a loop would lose all elements in flight without an error.

Law O8: after such a cancellation the next step raises a `StateError`.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from asyncio_operator.errors import StateError

if TYPE_CHECKING:
    from asyncio_operator.operator.run import Run


class Outputs(AsyncGenerator[Any, None]):
    """The outputs of a run, which begins with the first step.

    From the third step on `__anext__` is a slot that holds the generator's own method. If a call returns at once, a
    Python method around it would add 6 % to the time of an element; the slot adds 2 %.
    """

    __slots__ = ("__anext__", "__weakref__", "_run", "_steps")

    __anext__: Callable[[], Any]

    def __init__(self, run: Run) -> None:
        self._run = run
        # The run ends when its outputs are dropped, so neither it nor the slot may hold them.
        this = weakref.ref(self)
        self._steps: Any = run.outputs(partial(_cut, this))
        self.__anext__ = partial(_first_step, this)

    def asend(self, value: None) -> Any:
        """One step; the value is ignored."""
        return self.__anext__()

    def athrow(self, *error: Any) -> Any:
        """Raise an error where the run waits, which ends it."""
        if not self._run.begun:
            self.__anext__ = self._steps.__anext__
        return self._steps.athrow(*error)

    def aclose(self) -> Any:
        """End the run: cancel its calls, wait for them, and close the function."""
        if not self._run.begun:
            self.__anext__ = self._steps.__anext__
        return self._steps.aclose()

    def __del__(self) -> None:
        self._run.strand()


def _first_step(this: weakref.ref[Outputs]) -> Any:
    outputs = this()
    assert outputs is not None
    if outputs._run.begun:
        outputs.__anext__ = outputs._steps.__anext__
    elif outputs._steps.ag_frame is None:
        # A step that was cancelled before it began has finished the generator, and not the run.
        outputs._steps = outputs._run.outputs(partial(_cut, this))
    return outputs._steps.__anext__()


def _cut(this: weakref.ref[Outputs]) -> None:
    outputs = this()
    if outputs is not None:
        outputs.__anext__ = partial(_refuse, outputs._run)


def _refuse(run: Run) -> NoReturn:
    raise StateError(
        "the run ended when its consumer was cancelled while it waited for an output, as asyncio.wait_for does at its "
        f"timeout; {run.statistics().buffered} elements that had been read have no output. operator.snapshot() holds "
        "them, and process(elements, restore=...) goes on from it. To wait for a limited time without ending the run, "
        "use `step = asyncio.ensure_future(anext(outputs, END))` with `END = object()`, `await asyncio.wait([step], "
        "timeout=1.0)`, and end a step that still runs, `step.cancel(); await asyncio.wait([step])`, before aclose()"
    )
