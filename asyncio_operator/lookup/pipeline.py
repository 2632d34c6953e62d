"""The pipeline of a partition: reads batches of keys, looks the keys up in the lanes, delivers the batches in order.

A batch of keys is opened when it is read, as far as the delivery has room: keys that a place knows, or that calls for
earlier batches will answer, need no call (laws L1, L2). For the others places behind are asked (`asking`). They go to
the lanes across batch borders, so no call waits for the end of a batch: from a window, the open batch itself, or cut
into runs (`open_batch`). This module knows neither rows nor threads.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, cast

from asyncio_operator.engine.attempts import Attempts
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.flights import Call
from asyncio_operator.engine.gate import Limited, Parts
from asyncio_operator.engine.inputs import NOTHING, Reader
from asyncio_operator.engine.options import Called
from asyncio_operator.engine.recorder import recorder_of
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import describe
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.asking import Asking, Piece
from asyncio_operator.lookup.key_batch import Ascent, Delivery, KeyBatch
from asyncio_operator.lookup.open_batch import OpenBatch
from asyncio_operator.lookup.open_keys import OpenKey, PendingKeys
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.places import Places
from asyncio_operator.policies.batching import Batching
from asyncio_operator.quota.usage import overridden
from asyncio_operator.telemetry.calls import counted, observed

if TYPE_CHECKING:
    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.lookup.column_places import ColumnPlaces
    from asyncio_operator.trace.trace import Trace

UNLIMITED = Limited()


def called_by(
    enricher: Enricher, options: LookupOptions, tables: AnswerTables | None, as_arrow: bool = False
) -> Called:
    """What the lookups of an enricher call: a function of a key, or of several if ``options.batching`` is set.

    Args:
        tables: see `LookupPipeline`.
        as_arrow: several keys are `ArrowKeys`.
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
        if as_arrow and (find := row_finder(enricher)) is not None:
            invoke, method = partial(ask, enricher, tables, find=find), "lookup_rows"
    return Called(
        invoke=observed(invoke, describe(enricher), enricher.call_attributes, many=many),
        name=describe(enricher),
        method=method,
        weigh=overridden(enricher.weigh, Enricher.weigh),
        noted=options.timed,
    )


def in_arrow(options: LookupOptions, enricher: Enricher, traced: bool) -> bool:
    """Whether keys go into calls as Arrow has them: no option needs a key, or its answer, as an object."""
    weighed = options.budget and overridden(enricher.weigh, Enricher.weigh)
    as_objects = traced, options.timed, options.judges, options.journaled, weighed
    many = options.batching is not None or enricher.in_memory
    return many and enricher.lookup_columns is not None and not any(as_objects)


def in_slices(options: LookupOptions, enricher: Enricher, traced: bool) -> bool:
    """Whether they are looked up in slices of batches: the enricher is in memory, and no call is limited."""
    limited = options.limited or options.retry or options.attempt_timeout or options.cache
    return enricher.in_memory and not limited and in_arrow(options, enricher, traced)


class LookupPipeline(Asking):
    """Looks up the keys of batches, on the loop that is running when it is made. It is the `Source` of its keys, in
    runs or in windows, and of the flights of refreshes.

    Args:
        enricher: already open.
        source: gives `KeyBatch` objects.
        deliver: see `Delivery`.
        places: where answers may be; with a cache if ``options.cache`` is set.
        trace: records every call. Its elements are the called keys, which leave when they have their outcome.
        tables: what the tables of an enricher that answers in columns look like; None: it does not.
        single: keys come one by one, to `pending`, and their types may differ. An invalid answer is named with its key.
    """

    alone = False
    keyed = None

    def __init__(
        self,
        enricher: Enricher,
        source: Input,
        deliver: Callable[[KeyBatch, int], None],
        options: LookupOptions,
        places: Places,
        limited: Limited = UNLIMITED,
        trace: Trace | None = None,
        tables: AnswerTables | None = None,
        single: bool = False,
    ) -> None:
        self._options = options
        self._name = describe(enricher)
        self._single = single
        self.timers = Timers(clock_of(asyncio.get_running_loop()))  # Of the run, which closes them.
        clock = self.timers.clock
        self._delivery = Delivery(deliver, self.timers, ordered=options.ordered, buffer=options.buffer)
        self._delivery.settle = self._settle
        self.emitted, self.wait = self._delivery.emitted, self._delivery.wait  # See `Delivery`.
        self._recorder = recorder = recorder_of(trace, clock())
        self._reader = Reader(source)
        sliced = not single and in_slices(options, enricher, traced=trace is not None)
        self.in_arrow = in_arrow(options, enricher, traced=trace is not None)
        if sliced and options.batching is None:
            options = replace(options, batching=Batching(1))
        self.places = places
        called = called_by(enricher, options, tables, sliced)
        parts = Parts(options, called, limited, self.timers, recorder, places.figures)
        super().__init__(PendingKeys(enricher, options, places, parts, single=single))
        # Refreshes of a cache leave a scarce budget to new keys.
        yields = limited.allowance is not None and places.refreshes
        self.eager = trace is not None
        self.direct = sliced or not (options.batching or single or yields)
        self.slices = options.batching.max_size if sliced and options.batching is not None else 0
        # Batches with more keys are called for by value. Not under a budget, which may not last for the last rows.
        by_value = enricher.lookup_columns is not None and not enricher.in_memory and limited.allowance is None
        self._gathered_above = options.batching.max_size if by_value and options.batching is not None else inf
        self.timed = options.timed
        self.judges = options.judges or options.hedge is not None or self.eager
        # Whether what has come answers later questions too. A cache settles what came for it before it is asked.
        self._remembers = bool(options.remember)
        self._failing: Callable[[], None] | None = None
        self._current: OpenBatch | None = None
        self._window: OpenBatch | None = None
        self._opened: dict[OpenBatch, None] = self.pending.batches
        self._ended: deque[OpenBatch] = deque()  # Those whose end is reported now.
        self._ascent = Ascent()
        self.attempts = Attempts(self, self._reader, self.pending, parts)
        self._lanes = self.attempts.lanes

    @property
    def figures(self) -> Figures:
        """What was counted so far, but for rows. Any thread may ask."""
        figures = self.attempts.counted()
        figures.calls -= self.left_over
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
        self._failing = failing
        try:
            with counted(self._name, lambda: self.figures):
                await self._lanes.run()
            self._delivery.flush()
        finally:
            self._delivery.close()
            for opened in self._opened if self.keeps else ():
                # What was paid for is kept, however the run ends.
                opened.learn()
            failure = await self.close(self._options.grace_period)
            self.timers.close()
            self.places.clear()
            self._recorder.ended(self.timers.clock())
            await self._reader.close(self._options.grace_period)
        if failure is not None:
            raise failure

    # -- the source of the lanes

    @property
    def over(self) -> bool:
        if self._single or not self._reader.over or self._current is not None or self.waiting:
            return False
        # A key that a lane calls for may need another attempt.
        return not self.direct or not self._opened

    @property
    def left_over(self) -> int:
        """The number of calls in the window that no lane has taken."""
        return 0 if self._window is None else self._window.left_over()

    def window(self) -> OpenBatch | None:
        window = self._window
        if not self.left_over:
            piece = self.next_piece(sys.maxsize) if self.direct else None
            if piece is None:
                return None
            if self.known:
                # The next answers come while these keys are called for.
                self.ask()
            window = self._window = piece[0]
            assert window is not None
            window.admit(piece[1])
            self.pending.figures.calls += self.left_over
        return window if self.has_room() else None

    def take_run(self, most: int, now: float) -> Call | None:
        if flights := self.next_flights(most):
            return Call(flights)
        piece = None if self.direct else self.next_piece(most)
        return None if piece is None else Call(piece[0].flights(piece[1]) if self.eager else (piece,))

    def prepare(self, now: float) -> None:
        if self.known:
            self.ask()
        else:
            self._read()

    def stop(self) -> None:
        # Law O6: calls that ignore their cancellation may take longer, and nothing is delivered meanwhile.
        self._delivery.close()
        if self._lanes.failed and self._failing is not None:
            self._failing()

    def cut(self, most: int) -> Piece | None:
        self._read()
        current = self._current
        if current is None:
            return None
        # Keys in Arrow take no memory of their own.
        room = len(current.positions) if self.slices else self._delivery.room()
        if room <= 0:
            return None
        positions = current.cut(min(most, room))
        self._pass(current)
        return current, positions

    def _read(self) -> None:
        """Open batches of the input until there is a key to cut off."""
        places = cast("ColumnPlaces", self.places)  # Only a task has batches.
        while self._current is None and self._delivery.takes_a_batch():
            batch: KeyBatch = self._reader.read()
            if batch is NOTHING:
                return
            if not self.slices:
                self._ascent.add(batch)
            if not self._remembers:
                # What has come is in the places now, or it is no answer to a later question.
                for opened in list(self._opened):
                    opened.settle_now()
            self._current = current = OpenBatch(batch, places.recall(batch), self)
            earlier = () if self.slices else self._share(current)
            if len(current.positions) > self._gathered_above and len(batch.keys) <= self._delivery.room():
                current.gather()
            self._delivery.take(batch, not current.missing)
            self._opened[current] = None
            self._pass(current)
            if not current.missing:
                self.answered(current)
            for opened in earlier:
                opened.pass_on()

    def _share(self, current: OpenBatch) -> list[OpenBatch]:
        """Let keys wait that are open already. Returns the batches for whose outcomes they wait."""
        leading = list[OpenBatch]()
        if current.batch.ascending:
            return leading
        for one in reversed(self._opened):
            if current.positions and (shared := one.lead(current)):
                self.pending.figures.shared += shared
                leading.append(one)
        if self.pending.running:
            # Refreshes of keys whose old answers have expired meanwhile.
            current.positions = [i for i in current.positions if not self._join(current, i)]
        return leading

    def _join(self, current: OpenBatch, position: int) -> bool:
        name = current.batch.keys.names[position]
        present = self.pending.running.get(name)
        # Two keys may have one name. As lists: a NaN is itself.
        same = present is not None and [present.value] == [current.batch.objects[position]]
        return same and self.pending.join(name, current, position)

    def answered(self, opened: OpenBatch) -> None:
        """All keys of a batch have their outcomes."""
        self._ended.append(opened)
        if len(self._ended) > 1:
            # It has waited for a batch whose outcomes are passed on now.
            return
        while self._ended:
            one = self._ended[0]
            del self._opened[one]
            self._delivery.end(one.batch)
            one.pass_on()
            self._ended.popleft()
        if not self._opened:
            self.attempts.news()

    def _settle(self) -> None:
        for opened in list(self._opened):
            opened.settle_now()
            opened.pass_on()

    def _pass(self, current: OpenBatch) -> None:
        self._delivery.keys += current.passed(self._delivery.ordered)
        if current.is_cut:
            self._current = None

    def values(self, call: Call) -> Any:
        if not self.slices or call.pieces:
            return call.values
        # A part of a slice in Arrow: Python may not be able to hold its keys.
        waiters = [cast("OpenKey", flight).waiters[0] for flight in call.flights]
        return waiters[0][0].batch.keys.at([position for _, position in waiters])

    def store(self, call: Call, results: Sequence[Any], now: float) -> None:
        latency = now - call.started
        self.pending.figures.latency.add_many(latency, call.count)
        # A window counts its outcomes when it is over, but for those of calls that had to wait.
        if self.direct and not call.counted:
            ((owner, positions),) = call.pieces
            assert isinstance(owner, OpenBatch)
            if self.slices:
                # No place keeps them: to ask for them again costs less.
                owner.batch.store(positions, results)
            else:
                owner.arrived(positions[0], results[0], call.started, call)
            return
        end = 0
        for owner, positions in call.pieces:
            start, end = end, end + len(positions)
            cast("OpenBatch", owner).run_arrived(positions, results[start:end], latency, call)

    def is_full(self) -> bool:
        stuck = self._delivery.room() <= 0 or (self._current is None and not self._delivery.takes_a_batch())
        return stuck and not self.asked
