"""The asynchronous wait operator: elements in, results out, with many calls in flight.

    operator = AsyncWaitOperator(fetch, capacity=100, timeout=5.0)
    async for result in operator.process(keys): ...        # on a running loop
    for result in operator(keys): ...                      # anywhere else; also rdd.mapPartitions(operator)

The operator is a specification: it checks its options when it is made and travels by pickle. A `Run` is made from it
for every call of `process`. Source: Flink's ``AsyncWaitOperator``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.function import as_async_function
from asyncio_operator.inputs import as_input
from asyncio_operator.metrics import OperatorStatistics
from asyncio_operator.policies.options import Duration, duration, one_of, plain_function, positive_int
from asyncio_operator.policies.options import timeout as optional_duration
from asyncio_operator.queues import OrderedStreamElementQueue, StreamElementQueue, UnorderedStreamElementQueue
from asyncio_operator.run import OnError, Outcomes, Run

BUFFER_FACTOR = 64
"""Default of `buffer` over `capacity`. In ordered mode a call that takes k times the mean holds back the results of k
calls per lane; with 64, one that is 64 times slower than the mean stops nobody."""

QUEUES: dict[str, type[StreamElementQueue]] = {
    "ordered": OrderedStreamElementQueue,
    "unordered": UnorderedStreamElementQueue,
}


class AsyncWaitOperator:
    """Runs an asynchronous function for every element, with bounded concurrency, order and deadlines.

    Args:
        function: an ``async def`` function of one value, an `AsyncFunction`, or a `BlockingFunction`.
        mode: "ordered", results leave in input order; "unordered", as they complete, but never across a watermark.
        capacity: calls in flight at most. 100 keeps a service with 10 ms latency busy at 10,000 calls a second.
        buffer: elements admitted and not yet emitted, at most; default 64 x `capacity`. With ``buffer=capacity`` one
            slow call stops all others in ordered mode, as it does in Flink.
        timeout: deadline of an element, in seconds from the start of its call; None or 0 for none.
        on_timeout: gives the result of a late element from its value; default: the function's `timeout`, which raises.
        on_error: "fail" ends the run with `FunctionError`; "skip" drops the element; a function of value and error
            gives a result in its place.
        flatten: the function returns an iterable, each item of which is one output; none is allowed.
        clock: gives seconds; default: the time of the running loop.
        grace_period: seconds that the end of a run waits for calls that ignore their cancellation, and for `close`.

    Raises:
        ConfigurationError: an option is wrong.
    """

    def __init__(
        self,
        function: Any,
        *,
        mode: str = "ordered",
        capacity: int = 100,
        buffer: int | None = None,
        timeout: Duration | None = None,
        on_timeout: Callable[[Any], Any] | None = None,
        on_error: OnError = "fail",
        flatten: bool = False,
        clock: Callable[[], float] | None = None,
        grace_period: Duration = 30.0,
    ) -> None:
        self._function = as_async_function(function)
        self._queue = QUEUES[one_of("mode", mode, tuple(QUEUES))]
        self._capacity = positive_int("capacity", capacity)
        self._buffer = BUFFER_FACTOR * capacity if buffer is None else positive_int("buffer", buffer)
        if on_timeout is not None:
            plain_function("on_timeout", on_timeout, "a function of the value")
        if on_error not in ("fail", "skip"):
            plain_function("on_error", on_error, '"fail", "skip", or a function of value and error')
        if not isinstance(flatten, bool):
            raise ConfigurationError(f"flatten is {describe(flatten)}; it must be True or False")
        if clock is not None:
            plain_function("clock", clock, "a function that gives seconds")
        self._outcomes = Outcomes(on_error, on_timeout, optional_duration("timeout", timeout), flatten)
        self._clock = clock
        self._grace_period = duration("grace_period", grace_period)
        self._run: Run | None = None

    @property
    def metrics(self) -> OperatorStatistics:
        """The figures of the latest run, at this moment; all zero before the first."""
        return OperatorStatistics() if self._run is None else self._run.statistics()

    def process(self, elements: Any) -> AsyncGenerator[Any, None]:
        """Run over the elements of an iterable or asynchronous iterable.

        A value gives its result, a `Record` a `Record` with the same timestamp, a `Watermark` itself. The run starts
        with the first step. ``aclose()`` on the returned generator ends it early: what runs is cancelled and awaited,
        and the function is closed.

        Raises:
            ConfigurationError: `elements` is not iterable.
            FunctionError: the function, or a hook, failed, and `on_error` did not deal with it.
            StateError: the operator's latest run has not ended.
        """
        capacity = self._capacity
        if self._function.max_concurrency is not None:
            capacity = min(capacity, self._function.max_concurrency)
        return Run(
            self._function,
            self._queue(self._buffer),
            as_input(elements),
            self._outcomes,
            self._starting,
            capacity=capacity,
            clock=self._clock,
            grace_period=self._grace_period,
        ).outputs()

    def _starting(self, run: Run) -> None:
        if self._run is not None and not self._run.done():
            raise StateError("the operator is running; end that run first, or make a second operator")
        self._run = run

    def __call__(self, elements: Iterable[Any]) -> Iterator[Any]:
        """Run on the process's loop thread, from any other thread; what `process` gives, as an ordinary iterator.

        Raises:
            StateError: called on the loop thread itself, which cannot wait for itself.
        """
        from asyncio_operator.bridge import iterate

        return iterate(self.process, elements, patience=2 * self._grace_period + 5.0)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}
