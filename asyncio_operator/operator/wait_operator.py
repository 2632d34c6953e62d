"""The asynchronous wait operator: elements in, results out, with many calls in flight.

    operator = AsyncWaitOperator(fetch, capacity=100, timeout=5.0)
    async for result in operator.process(keys): ...        # on a running loop
    for result in operator(keys): ...                      # anywhere else; also rdd.mapPartitions(operator)

The operator is a specification: it checks its options when it is made and travels by pickle. A `Run` is made from it
for every call of `process`. Source: Flink's ``AsyncWaitOperator``.

A cancellation that reaches an asynchronous generator finishes it. Every later step then raises `StopAsyncIteration`, as
at the end. So ``asyncio.wait_for(anext(outputs), 1.0)`` in a loop would lose all elements in flight without an error.
Law O8: after such a cancellation the next step of `Outputs` raises a `StateError`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from asyncio_operator.checks import Duration, plain_result, positive_int
from asyncio_operator.elements import OperatorSnapshot
from asyncio_operator.engine.inputs import as_input
from asyncio_operator.engine.options import OperatorMode, check_hedge, options_among
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.figures import OperatorStatistics
from asyncio_operator.function import BatchAsyncFunction, as_async_function
from asyncio_operator.hints import named_options
from asyncio_operator.operator.options import OnError, OperatorTimers, RunOptions
from asyncio_operator.operator.run import Run, outputs_of
from asyncio_operator.policies.adaptive_capacity import BUFFER_FACTOR, AdaptiveCapacity, calls_at_most
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import ProcessWindow, RateLimit
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import OPERATOR_GRACE_PERIOD, longest_end
from asyncio_operator.queues import (
    KeyOrderedStreamElementQueue,
    OrderedStreamElementQueue,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from asyncio_operator.quota.spec import Budget
from asyncio_operator.trace import Trace

if TYPE_CHECKING:
    from asyncio_operator.loop.channels import FromLoop
    from asyncio_operator.operator.cached_results import ResultCache


class Outputs(AsyncGenerator[Any, None]):
    """The outputs of a run, which begins with the first step.

    From the third step on `__anext__` is a slot that holds the generator's own method. If a call returns at once, a
    Python method around it would add 6 % to the time of an element; the slot adds 2 %.
    """

    __slots__ = ("__anext__", "__weakref__", "_begin", "_run", "_steps")

    __anext__: Callable[[], Any]

    def __init__(self, begin: Callable[[list[Run]], Run]) -> None:
        # The run, once it has begun.
        self._run: list[Run] = []
        self._begin = partial(begin, self._run)
        # The run ends when its outputs are dropped, so neither it nor the slot may hold them.
        this = weakref.ref(self)
        self._steps: Any = outputs_of(self._begin, partial(_cut, this))
        self.__anext__ = partial(_first_step, this)

    def asend(self, value: None) -> Any:
        """One step; the value is ignored."""
        return self.__anext__()

    def athrow(self, *error: Any) -> Any:
        """Raise an error where the run waits, which ends it."""
        if not self._run:
            self.__anext__ = self._steps.__anext__
        return self._steps.athrow(*error)

    def aclose(self) -> Any:
        """End the run: cancel its calls, wait for them, and close the function."""
        if not self._run:
            self.__anext__ = self._steps.__anext__
        return self._steps.aclose()

    def __del__(self) -> None:
        for run in self._run:
            run.strand()


def _first_step(this: weakref.ref[Outputs]) -> Any:
    outputs = this()
    assert outputs is not None
    if outputs._run:
        outputs.__anext__ = outputs._steps.__anext__
    elif outputs._steps.ag_frame is None:
        # A step that was cancelled before it began has finished the generator, and not the run.
        outputs._steps = outputs_of(outputs._begin, partial(_cut, this))
    return outputs._steps.__anext__()


def _cut(this: weakref.ref[Outputs]) -> None:
    outputs = this()
    if outputs is not None:
        outputs.__anext__ = partial(_refuse, *outputs._run)


def _refuse(run: Run) -> NoReturn:
    raise StateError(
        "the run ended when its consumer was cancelled while it waited for an output, as asyncio.wait_for does at its "
        f"timeout; {run.statistics().buffered} elements that had been read have no output. operator.snapshot() holds "
        "them, and process(elements, restore=...) goes on from it. To wait for a limited time without ending the run, "
        "use `step = asyncio.ensure_future(anext(outputs, END))` with `END = object()`, `await asyncio.wait([step], "
        "timeout=1.0)`, and end a step that still runs, `step.cancel(); await asyncio.wait([step])`, before aclose()"
    )


class AsyncWaitOperator:
    """Runs an asynchronous function for every element, with bounded concurrency, order and deadlines.

    Args:
        function: an ``async def`` function of one value, an `AsyncFunction`, a `BatchAsyncFunction`, or a
            `BlockingFunction`.
        mode: "ordered": results leave in input order. "unordered": they leave as they complete, but never across a
            watermark. "key_ordered": the same, and the elements of one key are called one after the other.
        capacity: the most calls in flight, or an `AdaptiveCapacity`. 100 keeps a service with 10 ms latency busy at
            10,000 calls a second.
        buffer: the most elements that are admitted and not yet emitted; default 64 x `capacity`, or its `maximum`. With
            ``buffer=capacity`` one slow call stops all others in ordered mode, as it does in Flink.
        timeout: deadline of an element, in seconds from the start of its first call to the end of its last, waits
            included; None or 0 for none.
        attempt_timeout: seconds that each call may take; None or 0 for no limit.
        retry: when an element gets another call; None for never.
        on_timeout: returns the result of a late element, from its value. Default: the function's `timeout`, which
            raises.
        on_error: "fail" ends the run with `FunctionError`; "skip" drops the element; a function of value and error
            returns a result for it.
        key: returns the key of a value, for "key_ordered"; any hashable object.
        flatten: the function returns an iterable of outputs, which may be empty.
        batching: how batches are formed for a `BatchAsyncFunction`.
        rate_limit: how many calls may start in a period of time, in all runs of this operator in this process; None for
            any number.
        circuit_breaker: refuses calls while too many fail; None for never.
        hedge: when a slow call is made a second time; None for never. Not for "key_ordered", where calls of one key
            never overlap, and not for a function with ``idempotent = False``.
        budget: what all runs with an equal `Budget` may use together, in this process or at its coordinator; None for
            no such limit. Calls weigh what the function's `weigh` says. No `on_error` hides `BudgetExceeded`. If the
            budget has ``on_spent="null"``, `on_error` gets it, and "fail" gives None, or with `flatten` nothing.
        cache: keeps results, by value or by `cache_key`; None for none. Elements of one key share a running call. On
            the heap it lives with the operator, from run to run; on disk it belongs to equal functions and options.
        cache_key: returns the key of a value: a text, a number, a date or the like, or a tuple of them. With None a
            call is made, and its result is not kept.
        timers: an `InternalTimerService`, or a `TimerServiceManager`. Each watermark fires the timers that it has
            reached, after the records before it have left. Callbacks emit with ``timers.collect(Record(...))``; these
            records leave before the watermark.
        trace: records the events of every element.
        clock: returns seconds. It measures how long ago calls failed, how long the circuit breaker has been open, and
            the ages of kept results. Default: the time of the running loop; for kept results, which outlive it, the
            system's. All waits (deadlines, back-off, `linger`, rate limits) use the time of the loop, whatever this
            clock returns.
        grace_period: seconds that the end of a run waits for calls that ignore their cancellation, and for `close`. The
            default of 30 is longer than the usual timeouts of clients, so calls that end by themselves are waited for.

    Raises:
        ConfigurationError: an option is wrong.
    """

    @named_options("AsyncWaitOperator")
    def __init__(
        self,
        function: Any,
        *,
        mode: OperatorMode = "ordered",
        capacity: int | AdaptiveCapacity = 100,
        buffer: int | None = None,
        timeout: Duration | None = None,
        attempt_timeout: Duration | None = None,
        retry: Retry | int | None = None,
        on_timeout: Callable[[Any], Any] | None = None,
        on_error: OnError = "fail",
        key: Callable[[Any], Any] | None = None,
        flatten: bool = False,
        batching: Batching | int | None = None,
        rate_limit: RateLimit | int | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        hedge: Hedge | None = None,
        budget: Budget | None = None,
        cache: Cache | bool | None = None,
        cache_key: Callable[[Any], Any] | None = None,
        timers: OperatorTimers | None = None,
        trace: Trace | None = None,
        clock: Callable[[], float] | None = None,
        grace_period: Duration = OPERATOR_GRACE_PERIOD,
    ) -> None:
        self._function = as_async_function(function)
        options = RunOptions(**options_among(locals(), RunOptions))
        check_hedge(options.hedge, self._function)
        batching = options.batching
        if isinstance(self._function, BatchAsyncFunction):
            batching = batching or Batching()
        elif batching is not None:
            raise ConfigurationError(
                f"batching is given, and function is {describe(self._function)}; batches are for a BatchAsyncFunction "
                "only"
            )
        self._options = replace(options, batching=batching)
        self._buffer = BUFFER_FACTOR * calls_at_most(capacity) if buffer is None else positive_int("buffer", buffer)
        self._window = ProcessWindow(options.rate_limit)
        self._cache: ResultCache | None = None
        if self._options.cache is not None:
            # Imported here: it loads the state, which most operators do without.
            from asyncio_operator.operator.cached_results import ResultCache

            owner = ("results", self._function, cache_key, flatten)
            self._cache = ResultCache(self._options.cache, owner, clock)
        self._run: Run | None = None
        self._process = 0

    @property
    def metrics(self) -> OperatorStatistics:
        """The present figures of the latest run; all zero before the first run."""
        return OperatorStatistics() if self._run is None else self._run.statistics()

    def process(self, elements: Any, restore: OperatorSnapshot | None = None) -> AsyncGenerator[Any, None]:
        """Run over the elements of an iterable or asynchronous iterable.

        A value gives its result, a `Record` a `Record` with the same timestamp, a `Watermark` itself. The run starts
        with the first step. ``aclose()`` on the returned generator ends the run early: its calls are cancelled and
        awaited, and the function is closed. So is an asynchronous generator that the run reads, such as another run.

        A cancellation while the consumer waits for an output ends the run too, so ``asyncio.wait_for(anext(outputs),
        1.0)`` ends it at its timeout, and the next step raises a `StateError`. To wait for a limited time put the step
        into a task, ``step = asyncio.ensure_future(anext(outputs, END))``, where END is an object of one's own, and
        ``await asyncio.wait([step], timeout=1.0)``. Before ``aclose()``, cancel a step that runs, and wait for it.

        Args:
            restore: the snapshot of an earlier run; its elements go in before the input.

        Raises:
            ConfigurationError: `elements` is not iterable, or `restore` is not a snapshot.
            FunctionError: the function or a hook failed, and `on_error` did not handle it.
            BudgetExceeded: a call would exceed the budget, however long it waited.
            CoordinatorError: the coordinator of the budget gave no answer for the budget's `patience`.
            StateError: the operator's latest run has not ended; the consumer was cancelled in an earlier step; or the
                step is made on another loop than the first one.
        """
        if not isinstance(restore, OperatorSnapshot | None):
            raise ConfigurationError(f"restore is {describe(restore)}; it must be what operator.snapshot() gave")
        if restore is not None and restore.collected and self._options.timers is None:
            raise ConfigurationError(
                f"restore has {len(restore.collected)} records that timers have collected, and the operator has no "
                "timers; give it those of the first run, timers="
            )
        return self._outputs(elements, restore=restore)

    def outputs_on_demand(self, elements: Any) -> AsyncGenerator[Any, None]:
        """The outputs of `process`. But an element makes room for the next one only when the consumer has come back
        from its output, so no call is made ahead of what the consumer takes. For tasks of Spark."""
        return self._outputs(elements, on_demand=True)

    def _outputs(
        self,
        elements: Any,
        consumer: FromLoop | None = None,
        restore: OperatorSnapshot | None = None,
        on_demand: bool = False,
    ) -> AsyncGenerator[Any, None]:
        options, most = self._options, self._function.max_concurrency
        if most is not None:
            capacity = options.capacity
            if isinstance(capacity, int):
                capacity = min(capacity, most)
            else:
                bounds = capacity.initial, capacity.minimum, capacity.maximum
                capacity = AdaptiveCapacity(*(min(bound, most) for bound in bounds))
            options = replace(options, capacity=capacity)
        given = [as_input(elements), options, restore or OperatorSnapshot(), consumer, on_demand]
        return Outputs(partial(self._begin, given))

    def _begin(self, given: list[Any], begun: list[Run]) -> Run:
        """Begin a run of what is given, which is held by nothing else then."""
        latest = None if self._process != os.getpid() else self._run
        if latest is not None and not latest.task.done() and not latest.strand():
            raise StateError(
                "the operator is running; end that run first, with `aclose()` on what process() gave (a loop that may "
                "be left early: `async with contextlib.aclosing(...)`) or `close()` on the iterator, or make a second "
                "operator for each run at the same time, and limit them together with budget=Budget(...)"
            )
        queue: StreamElementQueue
        if (key := self._options.key) is not None:
            queue = KeyOrderedStreamElementQueue(self._buffer, lambda value: plain_result("key", key(value)))
        elif self._options.mode == "ordered":
            queue = OrderedStreamElementQueue(self._buffer)
        else:
            queue = UnorderedStreamElementQueue(self._buffer)
        run = Run(self._function, queue, self._cache, self._window, *given)
        given.clear()
        self._run, self._process = run, os.getpid()
        begun.append(run)
        return run

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        """Run on the process's loop thread, from any other thread: the outputs of `process`, as an ordinary iterator.

        Raises:
            StateError: called on the loop thread itself, which cannot wait for itself.
        """
        from asyncio_operator.loop.runner import iterate

        return iterate(self._outputs, elements, patience=longest_end(self._options.grace_period))

    def snapshot(self) -> OperatorSnapshot:
        """The inputs of the latest run that were read and not yet emitted. A run begins with its first step; before the
        first run has begun the snapshot is empty, so until then keep the one that the run restores.

        It may be taken at any moment, from any thread. A run that restores it gives again all outputs that were handed
        over after it: take it between two outputs, and go on with only one of the two runs.
        """
        run = self._run
        if run is None:
            return OperatorSnapshot()
        if self._process != os.getpid():
            # The run goes on in the parent process, and does not move in this forked child.
            return run.snapshot()
        from asyncio_operator.loop.runner import on_loop

        return on_loop(run.loop, run.snapshot)

    def __repr__(self) -> str:
        options = self._options
        return f"AsyncWaitOperator({describe(self._function)}, mode={options.mode!r}, capacity={options.capacity})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}
