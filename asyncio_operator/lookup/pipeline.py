"""The pipeline of a partition: reads batches of keys, looks the keys up in the lanes, delivers the batches in order.

Keys go to the lanes across batch borders, so no call waits for the end of a batch (`key_source`).
This module knows neither rows nor threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncio_operator.budget.usage import overridden
from asyncio_operator.engine.attempts import Attempts
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.inputs import Reader
from asyncio_operator.engine.options import Called
from asyncio_operator.engine.recorder import recorder_of
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.delivery import Delivery
from asyncio_operator.lookup.key_batch import Failure, KeyBatch
from asyncio_operator.lookup.key_source import KeySource
from asyncio_operator.lookup.known import KnownAnswers
from asyncio_operator.lookup.memory import Memory
from asyncio_operator.lookup.open_keys import PendingKeys
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.places import Places
from asyncio_operator.policies.batching import Batching
from asyncio_operator.telemetry.calls import counted, observed

if TYPE_CHECKING:
    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.lookup.answers import AnswerCheck
    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.trace.trace import Trace


UNLIMITED = Limited()


def called_by(
    enricher: Enricher, options: LookupOptions, tables: AnswerTables | None, in_arrow: bool = False
) -> Called:
    """What the lookups of an enricher call: a function of a key, or of several if ``options.batching`` is set.

    Args:
        tables: what the tables of an enricher that answers in columns look like.
        in_arrow: several keys are `ArrowKeys`.
    """
    many = options.batching is not None
    invoke: Callable[[Any], Awaitable[Any]] = enricher.lookup_many if many else enricher.lookup
    method = "lookup_many"
    if tables is not None:
        # Imported here: it loads pyarrow, as the maker of `tables` has.
        from asyncio_operator.arrow.answer_tables import ask, row_finder

        async def in_columns(keys: Sequence[Any]) -> Sequence[Any]:
            answers = await ask(enricher, tables, keys)
            # A function of the user reads them.
            return answers.answers() if options.judges else answers

        async def one(key: Any) -> Any:
            return (await in_columns([key]))[0]

        invoke, method = in_columns if many else one, "lookup_columns"
        if in_arrow and (find := row_finder(enricher)) is not None:
            invoke, method = partial(ask, enricher, tables, find=find), "lookup_rows"
    return Called(
        invoke=observed(invoke, describe(enricher), enricher.call_attributes, many=many),
        name=describe(enricher),
        method=method,
        weigh=overridden(enricher.weigh, Enricher.weigh),
        noted=options.timed,
    )


def runs_in_arrow(options: LookupOptions, enricher: Enricher, traced: bool) -> bool:
    """Whether the keys of runs may stay in Arrow: no option needs a key, or its answer, as an object."""
    weighed = options.budget and overridden(enricher.weigh, Enricher.weigh)
    as_objects = traced or options.timed or options.judges or options.journaled or options.cache or weighed
    return enricher.lookup_columns is not None and options.batching is not None and not as_objects


class LookupPipeline:
    """Looks up the keys of batches, on the loop that is running when it is made.

    Args:
        enricher: already open.
        source: gives `KeyBatch` objects.
        deliver: see `Delivery`.
        cache: given if ``options.cache`` is set.
        check: converts an answer to the form that is cached, or raises what is wrong with it.
        trace: records every call. Its elements are the called keys, which leave when they have their outcome.
        tables: see `called_by`.
        known: asked for answers before calls are made, after the places behind the cache.
        single: keys come one by one, to `pending`, and their types may differ. An invalid answer is named with its key.

    Attributes:
        timers: of the run, which closes them.
        places: where answers may be.
        pending: keys that have a flight.
        attempts: make the calls.
        emitted: see `Delivery`.
    """

    def __init__(
        self,
        enricher: Enricher,
        source: Input,
        deliver: Callable[[KeyBatch, int], None],
        options: LookupOptions,
        cache: LookupCache | None = None,
        check: AnswerCheck | None = None,
        trace: Trace | None = None,
        tables: AnswerTables | None = None,
        limited: Limited = UNLIMITED,
        known: Sequence[KnownAnswers] = (),
        single: bool = False,
    ) -> None:
        self._options = options
        self._name = describe(enricher)
        self._clock = clock = clock_of(asyncio.get_running_loop())
        self.timers = Timers(clock)
        self._counted = Figures()
        # Laws L12 and L13: behind a cache the memory has what the cache has dropped.
        self._memories: Sequence[Memory] = ()
        if options.remember and cache is not None:
            self._memories = cache.memories(options.remember, options.timed)
        elif options.remember:
            self._memories = (Memory(options.remember, options.timed, clock),)
        self._delivery = Delivery(deliver, self.timers, ordered=options.ordered, buffer=options.buffer)
        self.emitted = self._delivery.emitted
        self._recorder = recorder = recorder_of(trace, clock())
        self._reader = Reader(source)
        known = known if cache is None else (*cache.known, *known)
        in_arrow = not single and options.in_arrow(enricher, traced=trace is not None)
        if in_arrow and options.batching is None:
            options = replace(options, batching=Batching(1))
        self.places = places = Places(self._counted, cache, () if in_arrow else self._memories, known, options.timed)
        # An answer of a batch that is not kept is checked later, when its columns are built.
        check = check if places.keeps or single else None
        self.pending = pending = PendingKeys(enricher, options, places, clock, check, recorder, single=single)
        # Refreshes of a cache leave a scarce budget to new keys.
        yields = limited.allowance is not None and places.refreshes
        self._keys = KeySource(
            self._reader,
            self._delivery,
            pending,
            known,
            options,
            eager=trace is not None,
            direct=in_arrow or not (options.batching or single or yields),
            slices=options.batching.max_size if in_arrow and options.batching is not None else 0,
        )
        self.attempts = self._keys.attempts = Attempts(
            self._keys,
            self._reader,
            pending,
            options,
            called_by(enricher, options, tables, in_arrow),
            limited,
            self.timers,
            recorder,
        )
        self._lanes = self.attempts.lanes
        self._counted.attempt_latency = self._lanes.latency

    @property
    def figures(self) -> Figures:
        """What was counted so far, but for rows. Any thread may ask."""
        figures = Figures()
        figures.add(self._counted)
        figures.calls -= self._keys.left_over
        # The latency of a key is that of its call, if nothing came between.
        figures.latency.merge(self._lanes.direct)
        figures.attempt_latency.merge(self._lanes.direct)
        return figures

    @property
    def in_flight(self) -> int:
        """Calls that run now. Any thread may ask."""
        return self._lanes.in_flight

    async def run(self, failing: Callable[[], None] | None = None) -> None:
        """Run until the source has ended and everything is delivered.

        Args:
            failing: called when the run has failed, before its calls have ended.

        Raises:
            FunctionError: a lookup failed and ``options.fail`` is set, or it raised an error that is no `Exception`.
        """

        def cut_short(failed: bool) -> None:
            # Law O6: calls that ignore their cancellation may take longer, and nothing is delivered meanwhile.
            self._delivery.close()
            if failed and failing is not None:
                failing()

        self._lanes.when_cut_short(cut_short)
        try:
            with counted(self._name, lambda: self.figures):
                await self._lanes.run()
            self._delivery.flush()
        finally:
            self._delivery.close()
            failure = await self._keys.close(self._options.grace_period)
            self.timers.close()
            for memory in self._memories:
                memory.clear()
            self._recorder.ended(self._clock())
            await self._reader.close(self._options.grace_period)
        if failure is not None:
            raise failure

    def forget(self, key: Any, outcome: Any, failure: Failure) -> None:
        """Ask for the key again in later batches: this answer is of no use, and `failure` says why."""
        for memory in self._memories:
            memory.forget(key, outcome)
        self._delivery.replace(key, outcome, failure)
