"""`Lookup`: looks up keys without Spark, on your own event loop, with cache, sharing, batches, retries and limits.

    async with Lookup(enricher, cache=Cache(expire_after_write=60)) as lookup:
        row = await lookup.get("key")

A lookup belongs to the loop that opens it. Any number of tasks may call `get` at the same time.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from asyncio_operator.arrow.key_identity import canonical_optional
from asyncio_operator.checks import Duration, milliseconds
from asyncio_operator.clock import Clock
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.inputs import as_input
from asyncio_operator.engine.timing import clock_of, close_within
from asyncio_operator.enricher import Enricher, Found, optional_parts, require_enricher
from asyncio_operator.errors import ConfigurationError, EnricherError, StateError, describe, describe_error
from asyncio_operator.figures import Figures
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.hints import named_options
from asyncio_operator.lookup.answers import ATOMIC, AnswerCheck, copied
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import cache_owner, open_own_cache
from asyncio_operator.lookup.key_batch import Failure
from asyncio_operator.lookup.options import DefaultRetry, LookupOptions, checked
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.lookup.places import Places
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import ProcessWindow, RateLimit
from asyncio_operator.policies.shutdown import CLIENT_CLOSE_TIMEOUT
from asyncio_operator.quota.share import own_allowance
from asyncio_operator.quota.spec import Budget
from asyncio_operator.quota.usage import overridden
from asyncio_operator.state.entries import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.quota.share import Reservation

OTHER_LOOP = "the lookup was opened on another event loop; open one in each, or use asyncio.run_coroutine_threadsafe"
_OPEN: set[int] = set()  # The ids of enrichers that a lookup has open. Another lookup opens a copy.


class Lookup:
    """Looks up keys through an enricher.

    Args:
        enricher: the source of rows.
        cache: which answers are kept; None: none.
        batching: how calls with several keys are formed. Default: with as many keys as the enricher takes at once.
        retry: when a failed lookup is repeated; None: never. By default as the enricher says (`default_retry`): with
            `HttpEnricher` errors that may pass are repeated, three attempts in all. Then set a `timeout` too: a service
            may ask for a long wait.
        timeout: seconds from the start of a key's first call to its deadline, all attempts included; None: no deadline.
        rate_limit: the number of calls that this lookup may start in a period; None: any number.
        circuit_breaker: refuses calls while too many fail; None: never.
        hedge: when a slow call is made a second time; None: never.
        clock: returns seconds. It measures the age of cached answers and of failed calls, and how long the circuit
            breaker has been open. Default: the time of the running loop. Waits (`linger`, back-off, rate limits,
            deadlines) always take the time of the loop.
        attempt_timeout: seconds that each call may take; None: no limit.
        capacity: maximum number of calls in flight, or an `AdaptiveCapacity`.
        budget: what all lookups and runs with an equal `Budget` may use together, in this process or at its
            coordinator; None: no such limit. Calls weigh what the enricher's `weigh` says.
        journal: only None. `asyncio_operator.spark.enrich` takes a `Journal`.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    @named_options("Lookup")
    def __init__(
        self,
        enricher: Enricher,
        *,
        cache: Cache | bool | None = None,
        batching: Batching | int | None = None,
        retry: DefaultRetry = "default",
        timeout: Duration | None = None,
        rate_limit: RateLimit | int | None = None,
        circuit_breaker: CircuitBreaker | None = None,
        hedge: Hedge | None = None,
        clock: Clock | None = None,
        attempt_timeout: Duration | None = None,
        capacity: int | AdaptiveCapacity = 100,
        budget: Budget | None = None,
        journal: None = None,
    ) -> None:
        require_enricher(enricher)
        if journal is not None:
            raise ConfigurationError(f"journal is {describe(journal)}, which a Lookup does not take: give it a Cache")
        # Law L2: a failure is that of its own callers.
        self._options = replace(checked(enricher, locals()), fail=None)
        milliseconds(clock)
        self._enricher = enricher
        self._window = ProcessWindow(self._options.rate_limit)
        self._clock = clock
        self._engine: _Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # On which it was opened, or closed, last.
        self._opening = asyncio.Lock()  # Held while it is being opened.
        self._closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the enricher and the cache, on the running loop.

        Raises:
            StateError: it is open already, or still closing on another loop.
            ConfigurationError: the enricher's schema is not a `pyarrow.Schema`, or the cache cannot be opened.
        """
        if self._opening.locked() or self._engine is not None:
            raise StateError("the lookup is open already")
        self._take_loop()
        async with self._opening:
            if self._closing is not None and not self._closing.done():
                await asyncio.wait([self._closing])
            self._engine = await _opened(self._enricher, self._options, self._clock, self._window)

    async def close(self) -> None:
        """Cancel running calls, and close the enricher and the cache. Callers that still wait get a `StateError`, and
        so does another loop, unless that of the lookup is closed. A second call does nothing."""
        self._take_loop()
        async with self._opening:  # What is still opening is closed when it is open.
            if (engine := self._engine) is not None:
                self._engine, self._closing = None, asyncio.ensure_future(engine.close())
        if (closing := self._closing) is not None:
            # A caller that is cancelled here stops waiting. The lookup is closed all the same.
            await asyncio.wait([closing])
            self._closing = None
            closing.result()

    def _take_loop(self) -> None:
        """Belong to the running loop from now on, unless another one that is not closed has something to do still."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            busy = self._engine or self._opening.locked() or (self._closing and not self._closing.done())
            if busy and self._loop and not self._loop.is_closed():
                raise StateError(OTHER_LOOP)
            self._loop, self._opening, self._closing = loop, asyncio.Lock(), None

    async def get(self, key: Any) -> Found:
        """The row of a key, a list of rows, or None. It is None without a row, and if a part of the key is None.

        The enricher gets the canonical key: a datetime with a zone is converted to UTC, -0.0 to 0.0. Values of
        different types are different keys: 1, True and 1.0.

        Rows have columns of the enricher's schema, as far as the answer has them. The caller may change them.

        Raises:
            EnricherError: the lookup failed. An error of another type that `lookup` raised is raised as it is. An
                `ExceptionGroup` becomes an `EnricherError` (`EnricherError.of`) with the group as its cause.
            ElementTimeoutError: the key passed its deadline.
            CircuitOpenError: the circuit breaker refused the call.
            BudgetExceeded: the call would exceed the budget, however long it waited.
            CoordinatorError: the coordinator of the budget gives no answer.
            ResultError: the answer does not fit the schema.
            StateError: the lookup is not open, was opened on another loop, or was closed meanwhile.
        """
        if self._engine is None:
            raise StateError("the lookup is not open; use `async with Lookup(...) as lookup`, or await lookup.open()")
        if self._engine.loop is not asyncio.get_running_loop():
            raise StateError(OTHER_LOOP)
        return await self._engine.get(key)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Lookup({describe(self._enricher)})"


class _Engine:
    """The parts of an open lookup: cache, calls, and the task that runs them."""

    def __init__(
        self, enricher: Enricher, cache: LookupCache | None, allowance: Reservation | None, pipeline: LookupPipeline
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._enricher = enricher
        self._cache = cache
        self._optional = optional_parts(enricher)
        self._allowance = allowance
        self._pipeline = pipeline
        self._places, self._pending, self._attempts = pipeline.places, pipeline.pending, pipeline.attempts
        self._failure: BaseException | None = None
        self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """Run until the task is cancelled, or an error ends the run."""
        try:
            await self._pipeline.run()
        except BaseException as error:
            # A cancellation that no one asked for is an error of what the run has called, such as a predicate.
            closed = isinstance(error, asyncio.CancelledError) and self._running.cancelling()
            self._failure = StateError("the lookup was closed") if closed else error
        self._pending.end_all(Failure(self._failure or StateError("the lookup has ended"), None))

    async def get(self, key: Any) -> Found:
        if (key := canonical_optional(key, self._optional)) is None:
            return None
        if (failure := self._failure) is not None:
            raise StateError(f"the lookup has ended with {describe_error(failure)}; open a new Lookup") from failure
        outcome = self._places.get(key)
        if outcome is ABSENT:
            outcome = await self._ask(key)
        elif self._pending.background:
            self._attempts.news()
        if type(outcome) is Failure:
            if isinstance(outcome.error, asyncio.CancelledError):
                # The caller was not cancelled, so it must not see a CancelledError.
                raise EnricherError(f"the lookup of key {describe(key)} cancelled itself") from outcome.error
            if isinstance(outcome.error, ExceptionGroup):
                raise EnricherError.of(outcome.error)
            raise outcome.error.with_traceback(outcome.traceback)
        return _own(outcome)  # type: ignore[no-any-return]

    async def _ask(self, key: Any) -> Any:
        waiter: asyncio.Future[Any] = self.loop.create_future()
        try:
            self._pending.ask(key, self, waiter)
        except TypeError as error:
            raise ConfigurationError(f"key {describe(key)} cannot be looked up; a key must be hashable") from error
        self._attempts.news()
        try:
            return await waiter
        except asyncio.CancelledError:
            if (abandoned := self._pending.leave(key, waiter)) is not None:
                self._attempts.abandon(abandoned)
            raise

    def answer(self, position: asyncio.Future[Any], outcome: Any) -> None:
        """The task that waits for this future gets an outcome."""
        if not position.done():
            position.set_result(outcome)

    async def close(self) -> None:
        if not self.loop.is_closed():
            # Any task may close the lookup, also one that a call has started.
            self._attempts.lanes.stop()
            self._running.cancel()
            await asyncio.wait([self._running])
            if self._allowance is not None:
                await self._allowance.settled()
        try:
            await _closed(self._enricher)
        finally:
            if self._cache is not None:
                for place in self._cache.known:
                    await place.close()
                self._cache.close()


async def _closed(enricher: Enricher) -> None:
    _OPEN.discard(id(enricher))
    if (error := await close_within(describe(enricher), enricher.close, CLIENT_CLOSE_TIMEOUT)) is not None:
        raise error


async def _opened(enricher: Enricher, options: LookupOptions, clock: Clock | None, window: ProcessWindow) -> _Engine:
    # In a thread: `schema` may query the source, and it blocks.
    schema = await asyncio.to_thread(enricher.schema)
    if not hasattr(schema, "names"):
        raise ConfigurationError(
            f"{describe(enricher)}.schema() returned {describe(schema)}; it must return a pyarrow.Schema"
        )
    # The fingerprint is taken after `schema`, because an enricher may learn from its source what belongs to it.
    owner = cache_owner(fingerprint(enricher), schema)
    check = AnswerCheck(schema)
    optional, tables = optional_parts(enricher), None  # Before `open`: an error leaves nothing open.
    if enricher.lookup_columns is not None:
        # Imported here: it loads pyarrow, which the enricher that gave the schema has loaded already.
        from asyncio_operator.arrow.answer_tables import AnswerTables
        from asyncio_operator.arrow.columns import load_pandas

        load_pandas()
        # Keys of unknown type have Python's types.
        tables = AnswerTables(enricher.key_schema(), schema, optional=optional)
    enricher = copy(enricher) if id(enricher) in _OPEN else enricher
    _OPEN.add(id(enricher))
    try:
        await enricher.open()
        cache = None if options.cache is None else await open_own_cache(options.cache, owner, clock, schema)
    except BaseException as error:
        try:
            await _closed(enricher)
        except Exception as second:
            error.add_note(f"closing the enricher failed too: {describe_error(second)}")
        if isinstance(error, ExceptionGroup):
            raise EnricherError.of(error) from error
        raise
    now, weigh = clock_of(asyncio.get_running_loop()), overridden(enricher.weigh, Enricher.weigh)
    allowance = own_allowance(options.budget, describe(enricher), weigh)
    limited = Limited(breaker_clock=clock, allowance=allowance, limiter=window.by(now))
    places, nothing = Places(Figures(), check, cache), as_input(())
    pipeline = LookupPipeline(enricher, nothing, lambda *_: None, options, places, limited, None, tables, single=True)
    return _Engine(enricher, cache, allowance, pipeline)


def _own(answer: Any) -> Any:
    """A copy of the answer, which the caller may change."""
    if isinstance(answer, dict):
        return {name: value if type(value) in ATOMIC else copied(value) for name, value in answer.items()}
    return [*map(_own, answer)] if isinstance(answer, list) else answer
