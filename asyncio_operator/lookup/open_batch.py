"""An open batch: keys that wait for outcomes, and the window in which lanes take them where a call takes one key.

In a window a key costs one step of an iterator and one store in a list. Limits are asked at that step, and a window
ends while its next key has to wait for them. So it is also where keys stay in Arrow, in slices: no key has an object,
is shared with another batch, or is remembered, because to ask a table in memory again costs less. Otherwise the keys
are cut into runs for the calls: a run costs one step for all of its keys, and its results are stored at once. Only a
call in trouble gives its keys a flight each (`open_keys`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, compress, repeat
from math import inf
from operator import not_
from typing import TYPE_CHECKING, Any, cast

from asyncio_operator.engine.flights import Call
from asyncio_operator.engine.window import CallWindow
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.answers import FEW
from asyncio_operator.lookup.key_batch import PENDING, TURNS, Calls, KeyBatch, shared
from asyncio_operator.lookup.open_keys import OpenKey, weights_of
from asyncio_operator.telemetry.annotations import HTTP_STATUS

if TYPE_CHECKING:
    from asyncio_operator.lookup.asking import Asking
    from asyncio_operator.lookup.column_places import ColumnPlaces


AT_ONCE = 1_000
"""Calls whose results wait. Their objects start the garbage collector, which takes the longer the more there are."""

NAMED = 256  # Answers below which places get the names of their keys.

Result = tuple[int, Any, float, Any]
"""A position, the result that has come for it, the seconds of its call, and the call, if there is one."""


class Arrivals:
    """Results that have come and are no outcomes yet, in lists: an object for each would start the garbage collector,
    which walks through all that a cache holds.
    """

    __slots__ = ("calls", "latencies", "positions", "results", "turns")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.results: list[Any] = []
        self.latencies: list[float] = []  # Seconds of their calls.
        self.calls: list[Call | None] = []  # These calls; None for one without an object.
        # The turns of the loop in which they have come, as `Calls.came` has them.
        self.turns: list[tuple[int, int, float]] = []

    def turn_over(self, time: float) -> None:
        """A turn of the loop is over, at this time of places."""
        self.turns.append((len(self.results), next(TURNS), time))


def some(values: list[Any], positions: Sequence[int]) -> list[Any]:
    """Those at some positions."""
    if type(positions) is range:
        return values[positions.start : positions.stop]
    return [values[i] for i in positions]


class OpenBatch(CallWindow):
    """A batch whose keys, or those at some positions, wait for outcomes: an `Owner` of positions, and a window of the
    lanes if the source is direct.

    Args:
        positions: those of the keys to call for, ascending until `gather`.
    """

    def __init__(self, batch: KeyBatch, positions: Sequence[int], source: Asking) -> None:
        gate, final = source.attempts.gate, not (source.judges or source.slices)
        # A place keeps what calls have weighed.
        plain = final and not (source.timed or gate.listens or (gate.weighs and source.known))
        # In no cycle, in which its answers would wait for the garbage collector.
        super().__init__(source.attempts, plain, final)
        self.batch = batch
        self.positions = positions
        # The number of keys without an outcome, as far as is known: it does not count the results of a window that is
        # not over.
        self.missing = len(positions)
        # Batches that wait for outcomes of this one, with the positions of their keys, there and here.
        self.followers: list[tuple[OpenBatch, list[tuple[int, int]]]] = []
        self.eager = source.eager
        # If nothing keeps the result of a plain call for one key beyond the task, the lane stores it.
        by_lanes = self._plain and source.direct and not source.keeps
        self.results = [PENDING] * len(batch.keys) if by_lanes else None
        self._arrivals = Arrivals()
        self._waiting = 0  # Those of them that are of runs.
        self._places = cast("ColumnPlaces", source.pending.places)
        # As many results wait. What survives the process is kept as soon as it has come.
        self._most = 1 if self._places.survives else AT_ONCE if source.direct else inf
        self._turn_is_noted = not source.keeps
        self._partly = False  # Whether some results of the present window are outcomes already.
        self._now = source.attempts.now
        self._source = source
        self._as_objects = not source.in_arrow
        self._by_row = True  # Whether keys are called for in the order of their rows.
        self._next = 0
        self._passed = 0
        # The keys of the windows that are not over, and the calls of the present one.
        self._admitted: Sequence[int] = ()
        self._left: Any = iter(())
        self._range: Iterator[tuple[Any, Any]] = iter(())
        self._troubled: set[int] = set()

    @property
    def complete(self) -> Callable[[Any, Any, float], object]:  # type: ignore[override]
        if not self.final:
            return self.attempts.complete
        return self.arrived if self._plain else self._arrived_heard

    @property
    def is_cut(self) -> bool:
        """Whether all of its keys are in runs."""
        return self._next == len(self.positions)

    def gather(self) -> None:
        """Call for keys that are near each other together: an index has them on the same pages. All have room."""
        positions, self.positions = self.positions, self.batch.keys.gathered(self.positions)
        self._by_row = self.positions is positions

    def cut(self, most: int) -> Sequence[int]:
        """The positions of the next run."""
        start = self._next
        self._next = min(start + most, len(self.positions))
        return self.positions[start : self._next]

    def passed(self, ordered: bool) -> int:
        """The number of keys, since the last call, before the next one to be called for. A key whose outcome is known
        takes no room before one that is before it: in order it cannot leave first, and would hold its room for ever. In
        any order it leaves first."""
        before, total = self._passed, len(self.batch.keys)
        if not (ordered and self._by_row):
            self._passed = total - len(self.positions) + self._next
        else:
            self._passed = total if self.is_cut else self.positions[self._next]
        return self._passed - before

    def values(self, positions: Sequence[int]) -> Sequence[Any]:
        return some(self.batch.objects, positions) if self._as_objects else self.batch.keys.at(positions)

    def flights(self, positions: Sequence[int]) -> list[OpenKey]:
        self._troubled.update(positions)
        keys = self.batch.objects
        return [self._source.pending.want(keys[i], self, i) for i in positions]

    def store(self, positions: Sequence[int], answers: Sequence[Any], reports: Sequence[Any] | None = None) -> None:
        """See `KeyBatch.store`."""
        self.batch.store(positions, answers, reports)
        self._answered(len(positions))

    def answer(self, position: int, outcome: Any) -> None:
        """One key has its outcome."""
        self.batch.outcomes[position] = outcome
        self._answered(1)

    def found(self, positions: Sequence[int], answers: Sequence[Any], source: str) -> None:
        """These keys are known in a place behind."""
        pending = self._source.pending
        if self.eager:
            for flight, answer in zip(self.flights(positions), answers, strict=True):
                pending.found(flight, answer, source)
            return
        self.store(positions, pending.places.found(some(self.batch.objects, positions), answers, source))
        self._places.refresh_old(self.batch, positions)

    def _answered(self, count: int) -> None:
        self.missing -= count
        if not self.missing:
            self._source.answered(self)
        elif self.missing == self._waiting:
            self.settle()

    # -- batches that wait for keys of this one

    @cached_property
    def names(self) -> dict[int, int]:
        """The positions of the keys that are called for, by the names of the keys."""
        return dict(zip(some(self.batch.keys.names, self.positions), self.positions, strict=True))

    def waits_for(self, name: Any) -> bool:
        """Whether the outcome of a key is to come."""
        return (here := self.names.get(name)) is not None and self.batch.outcomes[here] is PENDING

    def lead(self, follower: OpenBatch) -> int:
        """Let keys of a later batch wait for the outcomes that they have here. Returns how many do."""
        keys, names = follower.batch.keys, follower.batch.keys.names
        mine, outcomes = self.names, self.batch.outcomes
        if mine.keys().isdisjoint(names):
            return 0
        same = [i for i in follower.positions if (at := mine.get(names[i])) is not None and outcomes[at] is PENDING]
        if not same:
            return 0
        here = [mine[names[i]] for i in same]
        # Two keys may have one name.
        pairs = list(compress(zip(same, here, strict=True), keys.same(same, self.batch.keys, here)))
        self.followers.append((follower, pairs))
        waiting = {i for i, _ in pairs}
        follower.positions = [i for i in follower.positions if i not in waiting]
        return len(pairs)

    def pass_on(self) -> None:
        """Give those that wait the outcomes that have come."""
        outcomes = self.batch.outcomes
        followers, self.followers = self.followers, []
        for follower, pairs in followers:
            come = [pair for pair in pairs if outcomes[pair[1]] is not PENDING]
            if len(come) < len(pairs):
                self.followers.append((follower, [pair for pair in pairs if outcomes[pair[1]] is PENDING]))
            if come:
                places = [place for _, place in come]
                found, reports = self.batch.found(places), [shared(outcomes[place]) for place in places]
                in_columns = hasattr(found, "table")
                follower.store(
                    [i for i, _ in come],
                    found if in_columns else list(map(shared, found)),
                    reports if in_columns else None,
                )

    # -- the window of the lanes

    def admit(self, positions: Sequence[int]) -> None:
        """Open the window for these keys."""
        self._admitted = [*self._admitted, *positions] if self._admitted else positions
        size = self._source.slices
        slots: Any = [positions[i : i + size] for i in range(0, len(positions), size)] if size else positions
        # `zip` takes a position before its key, so `_left` always knows how many keys no lane has taken.
        self._left = iter(slots)
        values = map(self.values, slots) if size else self.values(positions)
        self._range = zip(self._left if self._plain else map(self._call, self._left), values, strict=False)

    def _call(self, slot: Any) -> Call:
        """The call for a key, or for a slice."""
        call = Call(((self, slot if self._source.slices else (slot,)),))
        call.counted = False
        if self.eager:
            call.make_flights()
        return call

    def left_over(self) -> int:
        """The number of calls of the present window that no lane has taken."""
        # The iterator that the lanes share knows it, so that no key has to be counted.
        return int(self._left.__length_hint__())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self.let_start(self._with_room() if self._source.known else self._range)

    def _with_room(self) -> Iterator[tuple[Any, Any]]:
        """The calls that may be made now, as long as their answers can be kept."""
        left, has_room = self._left.__length_hint__, self._source.has_room
        while left() and has_room():
            yield next(self._range)

    def hold(self, slot: Any, refusal: BaseException | None) -> Call:
        # It counts again when it starts, and has its outcome when that has come, and not with its window.
        self._source.pending.figures.calls -= 1
        if not self.eager:
            self._troubled.update(slot.pieces[0][1] if type(slot) is Call else (slot,))
        return super().hold(slot, refusal)

    def arrived(self, position: int, result: Any, started: float, call: Call | None = None) -> None:
        """A result has come. It becomes an outcome with others: a few cost as much as many."""
        arrivals = self._arrivals
        arrivals.positions.append(position)
        arrivals.results.append(result)
        arrivals.latencies.append(self._now() - started)
        arrivals.calls.append(call)
        if not self._turn_is_noted:
            self._note_turn()
        if len(arrivals.results) >= self._most:
            self.settle_now()

    def run_arrived(self, positions: Sequence[int], results: Sequence[Any], latency: float, call: Call) -> None:
        """The same for the results of a run."""
        arrivals, count = self._arrivals, len(positions)
        if hasattr(results, "table"):
            # They have been checked, and are together already.
            self._keep(positions, results, [latency] * count, [call] * count, None)
            self._answered(count)
            return
        arrivals.positions += positions
        arrivals.results += results
        arrivals.latencies += repeat(latency, count)
        arrivals.calls += repeat(call, count)
        self._waiting += count
        if not self._turn_is_noted:
            self._note_turn()
        if len(arrivals.results) >= self._most or self._waiting == self.missing:
            self.settle()

    def _note_turn(self) -> None:
        self._turn_is_noted = True
        asyncio.get_running_loop().call_soon(self._turn_over, context=self._source.context)

    def _turn_over(self) -> None:
        """The turn of the loop is over, in which results have come that are kept."""
        self._turn_is_noted = False
        if not self._places.dated:
            self.settle_now()
        elif self._arrivals.results:
            self._arrivals.turn_over(self._places.now())
            self._places.due[self] = None

    def settle_now(self) -> None:
        """The same as `settle`, outside of the lanes."""
        try:
            self.settle()
        except BaseException as error:
            self.attempts.lanes.fail(error)

    def _arrived_heard(self, call: Call, result: Any, started: float) -> None:
        """The same, where a limit hears of the call, or the outcome says how long it took."""
        self.attempts.gate.ended(call, self._now())
        self.arrived(call.pieces[0][1][0], result, started, call)

    def learn(self, over: bool = False) -> list[Result]:
        """Store and keep the results that have come. Returns those that are no outcomes.

        Args:
            over: all of a window have come.
        """
        wrong: list[Result] = []
        if self.results is not None:
            slots, results = self._stored(self.results, over)
            wrong = self._keep(slots, results, [0.0] * len(slots), [None] * len(slots), None)
        new, self._arrivals = self._arrivals, Arrivals()
        self._places.due.pop(self, None)
        if new.turns:
            new.turn_over(self._places.now())
        positions: Sequence[int] = new.positions
        if positions and positions == [*(follow := range(positions[0], positions[0] + len(positions)))]:
            positions = follow
        return wrong + self._keep(positions, new.results, new.latencies, new.calls, new.turns or None)

    def _keep(
        self,
        positions: Sequence[int],
        results: Sequence[Any],
        latencies: Sequence[float],
        calls: Sequence[Call | None],
        turns: Sequence[tuple[int, int, float]] | None,
    ) -> list[Result]:
        """Store and keep the results of keys. Returns those that are no outcomes."""
        if not positions:
            return []
        pending, source, wrong = self._source.pending, self._source, list[Result]()
        try:
            answers = pending.check.many(results)
        except ResultError:
            # The others are kept before the first wrong one may end the run.
            answers, fit = pending.check.right(results)
            every = zip(positions, results, latencies, calls, strict=True)
            wrong = list(compress(every, map(not_, fit)))
            if not len(answers):
                return wrong
            positions, calls = list(compress(positions, fit)), list(compress(calls, fit))
            latencies, ends = list(compress(latencies, fit)), [0, *accumulate(fit)]
            turns = turns and [(ends[end], number, time) for end, number, time in turns]
        known, timed = [calls if asked else () for asked in (source.known, source.timed)]
        weights = list(map({call: weights_of(call) for call in set(known)}.get, known)) or repeat(None)
        http_statuses = [None if call is None else call.http_status for call in timed] or repeat(None)
        # As objects, which are there: to take a few keys of an array costs more than to read them.
        few = self._as_objects and len(positions) < FEW
        keys = some(self.batch.objects, positions) if few else self.batch.keys.at(positions)
        # Their hashes are known, if the keys were searched for.
        named = len(positions) < NAMED and not self.batch.ascending
        names = some(self.batch.keys.names, positions) if named else None
        about = Calls(1, latencies, weights, http_statuses, turns, names)
        self.batch.store(positions, *pending.outcomes(keys, answers, about))
        return wrong

    def _stored(self, results: list[Any], over: bool) -> tuple[Sequence[int], list[Any]]:
        """The positions and the results that lanes have stored since the last time."""
        slots = self._admitted
        if not over or self._partly or self._troubled:
            slots = [i for i in slots if results[i] is not PENDING]
        self._partly = not over
        if type(slots) is range:
            some = results[slots.start : slots.stop]
            results[slots.start : slots.stop] = repeat(PENDING, len(slots))
        else:
            some = [results[i] for i in slots]
            for i in slots:
                results[i] = PENDING
        return slots, some

    def settle(self, over: bool = False) -> None:
        """Store and keep the results that have come, and end the keys whose results are no outcomes."""
        waiting, self._waiting = self._waiting, 0
        wrong = self.learn(over)
        # Those of a window are counted when it is over.
        if right := waiting - sum([call is not None and call.counted for *_, call in wrong]):
            self._answered(right)
        for position, result, latency, call in wrong:
            # One that counts its keys takes all of them off when it has returned.
            alone = self._call(position) if call is None or call.counted else call
            if call is not None and call.http_status is not None:
                alone.note({HTTP_STATUS: call.http_status})
            self.attempts.begun(alone, self._now() - latency)
            for flight in alone.flights:
                cast("OpenKey", flight).latency = latency
            self.attempts.complete_each(alone, (result,), (True,))

    def left(self) -> None:
        if self.left_over():
            return
        self.settle(over=True)
        answered, self._admitted, self._range = self._admitted, (), iter(())
        if self._troubled:
            answered = [i for i in answered if i not in self._troubled]
        if answered:
            self._answered(len(answered))
