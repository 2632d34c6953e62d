"""The laws that are checked of a run: at its calls and hooks, whenever time is about to pass, and at its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from typing import Any

from asyncio_operator import AdaptiveCapacity, AsyncWaitOperator, FunctionError, OperatorSnapshot, Record, Watermark
from tests.operator.schedules import Part, Schedule
from tests.operator.schedules_model import EPS, LATE, Fate, InputError, LawError, Model, law


class Laws:
    """What is seen of a run, and what has to hold of it."""

    operator: AsyncWaitOperator
    consumer: asyncio.Task[None]

    def __init__(self, schedule: Schedule, part: Part, restore: OperatorSnapshot | None, position: int) -> None:
        self.schedule = schedule
        self.part = part
        self.options = part.options
        self.restore = restore
        self.model = Model(part.options)
        self.running = 0
        self.calling: Counter[int] = Counter()
        self.starts: list[float] = []
        self.uncut: dict[int, float] = {}  # calls, numbered, and when they end or are cancelled
        self.call_of: dict[int, int] = {}  # the number of the latest call of an input that is not a copy
        self.copies = 0
        self.calm_until = 0.0
        self.returned: dict[int, float] = {}
        self.free_since = 0.0
        self.opened = 0
        self.closed = 0
        self.order: list[int] = []  # inputs, restored and read
        self.read: set[int] = set()  # of these, what was read
        self.position = position  # in the input
        self.got: list[Any] = []
        self.given: Counter[int] = Counter()  # outputs of each input
        self.watermarks = 0  # inside
        self.started = False
        self.waiting = False  # the consumer, for an output
        self.stopping = False
        self.input_failed = False
        self.failed = False  # a call has ended, or been cut, and with it the run
        self.closed_in = inf  # the turn of the loop
        self.turns = 0
        self.broken: LawError | None = None

    def check(self, holds: object, what: str) -> None:
        """Where an error would be the function's, or the consumer's: it is raised after the turn."""
        if not holds and self.broken is None:
            self.broken = LawError(what)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def key(self, number: int) -> int:
        return number % self.schedule.keys

    @property
    def capacity(self) -> int:
        capacity = self.options.capacity
        return capacity.maximum if isinstance(capacity, AdaptiveCapacity) else capacity

    def element(self, number: int) -> Any:
        """An input."""
        if self.schedule.scripts[number] is None:
            return Watermark(number)
        return Record(number, number) if self.schedule.records[number] else number

    # -- at calls and hooks

    def check_call(self, numbers: list[int], now: float) -> None:
        options = self.options
        law((self.opened, self.closed) == (1, 0), "O8: called before open, or after close")
        law(self.running < self.capacity, "O1: more calls than the capacity")
        law(now <= self.model.fails_at() + EPS, "O6: a call after the run has failed")
        law(not self.failed, "O18: a call after the one that the run has failed with")
        law(self.turns <= self.closed_in, "O18: a call after the run was closed")
        if options.batching is not None:
            law(0 < len(numbers) <= options.batching.max_size, "B1: a batch is too large")
            law(len(set(numbers)) == len(numbers), "O4: an element is twice in a batch")
        if options.mode == "key_ordered":
            for number in numbers:
                self.check_key(number, now)
        limit = options.rate_limit
        if limit is not None:
            most, per = limit.rate + (limit.burst or 0), float(limit.per)  # type: ignore[arg-type]
            if len(self.starts) >= most:
                law(now - self.starts[-most] >= per - EPS, "R10: more starts in a window than the rate limit allows")

    def check_copy(self, numbers: list[int], now: float) -> None:
        """A call is made a second time."""
        self.copies += 1
        hedge, fates = self.options.hedge, [self.model.fates[number] for number in numbers]
        assert hedge is not None
        law(self.operator.metrics.hedged == self.copies, "H3: hedged is not the copies that were made")
        law(self.copies <= hedge.extra * (len(self.starts) + 1) + EPS, "H1: more copies than their share")
        for fate in fates:
            law(fate.first is not None, f"H1, H2: {fate} is copied twice, or was retried, or is part of a half")
            law(now >= fate.begun + float(hedge.after) - EPS, f"H1: {fate} is copied too early")  # type: ignore[arg-type]
        first = fates[0].first
        law(all(fate.first is first for fate in fates), "H1: a copy of several calls")
        assert first is not None
        missing = [f for f in first.fates if f not in fates and self.model.limit(f) > now + EPS]
        law(not missing, f"H1: {missing} got lost of a copy")

    def note_limits(self, call: int, numbers: list[int], seconds: float) -> None:
        """Until when a call may run, and, if it is a copy, the call before it."""
        now = self.now()
        decided = max(self.model.fates[number].attempt_ends for number in numbers)
        fate = self.model.fates[numbers[0]]
        if self.calling[numbers[0]] > 1 and fate.copied:
            first = self.call_of[numbers[0]]
            if first in self.uncut:
                self.uncut[first] = min(self.uncut[first], decided)
            self.uncut[call] = min(now + seconds, decided) if seconds else decided
        else:
            self.uncut[call] = decided
            self.call_of.update(dict.fromkeys(numbers, call))

    def note_failure(self, numbers: list[int]) -> None:
        """A call is over."""
        fates, now = [self.model.fates[number] for number in numbers], self.now()
        known = self.options.circuit_breaker is None
        self.failed |= known and any(fate.fatal and fate.since <= now + EPS for fate in fates)

    def check_key(self, number: int, now: float) -> None:
        key = self.key(number)
        for other in self.order:
            if other == number:
                return
            if other in self.model.fates and self.key(other) == key:
                law(self.has_ended(self.model.fates[other], now), f"Q7: {number} runs before {other}, of the same key")
                law(not self.calling[other], f"Q7: {number} runs while the call of {other} does, of the same key")

    def has_ended(self, fate: Fate, now: float) -> bool:
        """Whether it may have. A circuit breaker refuses unseen, and the deadline runs from the first refusal."""
        ended = fate.state == "ended" and fate.since <= now + EPS
        waited = fate.state in ("waits", "half") and self.model.waits_until(fate) <= now + EPS
        return ended or waited or self.options.circuit_breaker is not None

    def check_output(self, number: int) -> None:
        """An output has come."""
        now, fate = self.now(), self.model.fates.get(number)
        self.check(self.model.fails_at() > now - EPS, "O6: emitted after the run has failed")
        if fate is not None:
            self.check(self.has_ended(fate, now), f"O4: emitted before it has ended: {fate}")
            return
        for other in self.order[: self.order.index(number)]:
            if other in self.model.fates:
                fate = self.model.fates[other]
                self.check(self.has_ended(fate, now), f"Q6: {Watermark(number)} has overtaken {fate}")

    def check_timeout(self, number: int) -> None:
        fate, now = self.model.fates[number], self.now()
        if self.options.circuit_breaker is None:
            self.check(0 <= now - fate.deadline + EPS <= LATE, f"R2: {fate} is not at its deadline")
            self.check(fate.timed_out or fate.state != "ended", f"O4: {fate} has ended, and is timed out")

    # -- whenever time is about to pass

    def at_rest(self) -> None:
        now = self.now()
        if not self.started or self.stopping or self.input_failed or self.consumer.done() or not self.opened:
            return
        self.model.settle(now - LATE)
        law(all(time > now - LATE for time in self.uncut.values()), "R1, R2: a call past its limit is not cancelled")
        if self.model.fails_at() <= now + EPS:
            law(not self.uncut or self.model.fails_at() > now - LATE, "O6: a call runs on, and the run has failed")
            return
        if self.may_fail_of_deadline(now):
            return
        metrics = self.operator.metrics
        law(metrics.in_flight == self.running <= self.capacity, "O1, R8: in_flight is not what runs")
        law(metrics.admitted - metrics.emitted == metrics.buffered <= self.options.buffer, "O1: more than the buffer")
        if self.options.circuit_breaker is not None:
            return
        self.check_backing_off(now, metrics.backing_off)
        self.check_idleness(now)
        self.check_hedging(now)
        if self.waiting:
            self.check_emission(now)

    def may_fail_of_deadline(self, now: float) -> bool:
        return any(self.model.waits_until(fate) <= now + EPS for fate in self.model.fates.values())

    def check_backing_off(self, now: float, counted: int) -> None:
        waiting = [f for f in self.model.fates.values() if f.state == "waits" and f.attempt_ends <= now + EPS]
        least = sum(f.since > now + LATE and f.attempt_ends <= now - LATE for f in waiting)
        most = sum(f.since > now - LATE for f in waiting)
        law(least <= counted <= most, f"R8: {counted} are said to back off, not {least}")

    def check_idleness(self, now: float) -> None:
        """With a free slot nothing waits, and the input is read."""
        options = self.options
        patience = LATE + (0 if options.batching is None else float(options.batching.linger))  # type: ignore[arg-type]
        unsteady = options.rate_limit is not None or isinstance(options.capacity, AdaptiveCapacity)
        if unsteady or self.running >= self.capacity or self.free_since + patience >= now:
            return
        for fate in self.model.fates.values():
            waits = (fate.state in ("waits", "half") and not self.is_held(fate, now - patience)) or (
                fate.state == "new" and not self.key_is_taken(fate, now - patience)
            )
            law(not waits or fate.since + patience >= now, f"O1: a slot is free, and {fate} waits")
        unread = self.position < len(self.schedule.scripts) and self.schedule.gaps is None
        full = self.operator.metrics.buffered + self.watermarks >= options.buffer
        law(full or not unread, "O1: a slot is free, and the input is not read")

    def check_hedging(self, now: float) -> None:
        """With a free slot, and enough calls for another copy, no call is slow without one."""
        hedge, since = self.options.hedge, now - LATE
        if hedge is None or self.options.rate_limit is not None or isinstance(self.options.capacity, AdaptiveCapacity):
            return
        allowed = self.copies + 1 <= hedge.extra * (len(self.starts) + 1) and self.calm_until < since
        if allowed and self.running < self.capacity and self.free_since < since:
            for fate in self.model.fates.values():
                runs = fate.first is not None and self.calling[fate.number] and fate.attempt_ends > now + LATE
                slow = fate.begun + float(hedge.after) < since  # type: ignore[arg-type]
                law(not (runs and slow), f"H1: {fate} is slow, and has no copy")

    def is_held(self, fate: Fate, since: float) -> bool:
        """Q7: whether its next attempt waits for a call of its own that was cut, or has done so until then."""
        still = self.calling[fate.number] or self.returned.get(fate.number, 0) > since
        return self.options.mode == "key_ordered" and bool(still)

    def key_is_taken(self, fate: Fate, since: float) -> bool:
        """Whether it waits for its key, or has done so until then."""
        if self.options.mode != "key_ordered":
            return False
        before = self.order[: self.order.index(fate.number)]
        mates = [n for n in before if n in self.model.fates and self.key(n) == self.key(fate.number)]
        return any(self.calling[n] or self.returned.get(n, 0) > since or not self.ended_by(n, since) for n in mates)

    def ended_by(self, number: int, time: float) -> bool:
        fate = self.model.fates[number]
        return fate.state == "ended" and fate.since <= time

    def check_emission(self, now: float) -> None:
        """The consumer waits: nothing that may leave is kept back."""
        ordered, complete = self.options.mode == "ordered", True
        for number in self.order:
            fate = self.model.fates.get(number)
            if fate is None:
                if not complete:
                    return
                may = not self.running or self.is_inside(number)
                law(self.given[number] or not may, f"Q6: {Watermark(number)} may leave, and does not")
            elif fate.state == "ended" and fate.since < now - LATE:
                law(self.given[number] == len(fate.outputs), f"O4: {fate} has ended, and its outputs do not leave")
            elif ordered:
                return
            else:
                complete = False

    def is_inside(self, number: int) -> bool:
        """Whether it has surely been admitted: with no slot free it may wait, read ahead or restored."""
        behind = self.order[self.order.index(number) + 1 :]
        fates = [self.model.fates[n] for n in behind if n in self.model.fates]
        return any(n in self.read for n in behind) or any(fate.attempts for fate in fates)

    # -- at a snapshot

    def check_snapshot(self, snapshot: OperatorSnapshot) -> None:
        """O10."""
        now, elements = self.now(), snapshot.elements
        inside = {e.timestamp if isinstance(e, Watermark) else getattr(e, "value", e): used for e, used in elements}
        law(
            [self.element(number) for number in inside] == [element for element, _ in elements], "O10: not the elements"
        )
        law(list(inside) == sorted(inside), "O10: not in the order of the input")
        law(set(inside) <= set(self.order), "O10: holds what was not read")
        if self.options.circuit_breaker is not None:
            return
        self.model.settle(now - LATE)
        for number in self.order:
            fate = self.model.fates.get(number)
            if number not in inside:
                self.check_left(number, fate, now)
            elif fate is None:
                law(not self.given[number], "O10: holds a watermark that has left")
            else:
                gone = self.given[number] and self.given[number] >= len(fate.outputs)
                law(not gone, f"O10: holds {fate}, which has left")
                self.check_attempts(fate, inside[number], now)

    def check_left(self, number: int, fate: Fate | None, now: float) -> None:
        if fate is None:
            law(self.given[number], "O10: forgets a watermark")
        elif fate.state == "ended":
            law(fate.since <= now + EPS and self.given[number] == len(fate.outputs), f"O10: forgets {fate}")
        else:
            law(self.has_ended(fate, now), f"O10: forgets {fate}")

    def check_attempts(self, fate: Fate, used: int, now: float) -> None:
        if self.stopping or self.input_failed or min(self.model.fails_at(), self.model.waits_until(fate)) <= now + EPS:
            return
        after = {fate.used} if fate.attempt_ends <= now + LATE else set()
        # Without retries nobody counts.
        before = {fate.used_before} if fate.attempt_ends >= now - LATE or self.options.retry is None else set()
        law(used in after | before or fate.error == "ResultError", f"O10: {used} attempts for {fate}")

    # -- at the end

    def check_end(self, failure: BaseException | None, timers: list[asyncio.TimerHandle]) -> None:
        metrics, now = self.operator.metrics, self.now()
        law(self.broken is None, str(self.broken))
        law(asyncio.all_tasks() == {asyncio.current_task()}, "O8: tasks are left behind")
        law(len(timers) <= 1, f"timers are left behind: {timers}")
        law(
            self.running == metrics.in_flight == metrics.backing_off == 0, "O9, O14: calls or back-offs are left behind"
        )
        began = (1, 1) if self.started else (0, 0)
        law((self.opened, self.closed) == began or self.part.cancel_after, "O8, O9: opened and closed once")
        if self.options.circuit_breaker is not None:
            self.adopt()
        self.model.settle(now)
        self.check_outputs()
        fatal = [fate for fate in self.model.fates.values() if fate.fatal]
        if isinstance(failure, FunctionError):
            self.check_failure(failure, fatal)
        elif isinstance(failure, InputError):
            law(self.input_failed, "O8: no error of the input")
        elif failure is not None:
            raise failure
        elif not self.stopping:
            law(not self.input_failed, "O8: the error of the input was swallowed")
            law(not fatal, f"O6: a failure was swallowed: {fatal}")
            self.check_all()

    def check_failure(self, failure: FunctionError, fatal: list[Fate]) -> None:
        if self.options.circuit_breaker is not None:
            return
        first = min((fate.since for fate in fatal), default=inf)
        fate = self.model.fates[int(failure.element)]
        law(fate in fatal and fate.since <= first + LATE, f"O6: {fate} is not the first failure")
        law(type(failure.__cause__).__name__ == fate.fatal, f"O6: {failure.__cause__!r} is not the cause for {fate}")
        calls = fate.used_at_first + fate.attempts
        law(failure.attempts == calls, f"O6: {failure.attempts} attempts are reported for {fate}, which had {calls}")

    def check_all(self) -> None:
        """O4, O5: everything has ended, and was emitted."""
        fates, metrics, options = self.model.fates.values(), self.operator.metrics, self.options
        law(self.position == len(self.schedule.scripts), "O5: the input was not read to its end")
        for number in self.order:
            fate = self.model.fates.get(number)
            law(fate is None or fate.state == "ended", f"O4: {fate} has not ended")
            law(
                self.given[number] == (1 if fate is None else len(fate.outputs)),
                f"O4: lost outputs of {number}: {fate}",
            )
        law(metrics.admitted == metrics.emitted == len(fates), "O14: admitted, emitted")
        if options.circuit_breaker is None:
            law(metrics.timeouts == sum(fate.timed_out for fate in fates), "O14: timeouts")
            law(metrics.failures == sum(fate.error is not None for fate in fates), "O14: failures")
            law(metrics.retries == self.model.retries, "O14: retries")
            law(metrics.skipped == (metrics.failures if options.on_error == "skip" else 0), "O14: skipped")

    def check_outputs(self) -> None:
        """Order, and nothing doubled."""
        wanted = {n: self.wanted(n) for n in self.order}
        flat = [(n, output) for n in self.order for output in wanted[n]]
        got = [(number_of(output), output) for output in self.got]
        if self.options.mode == "ordered":
            law(got == flat[: len(got)], f"Q5: {got} is not the beginning of {flat}")
            return
        surplus = Counter(map(repr, got)) - Counter(map(repr, flat))
        law(not surplus, f"O4: doubled or wrong: {surplus}")
        segment = {n: sum(m not in self.model.fates for m in self.order[:i]) for i, n in enumerate(self.order)}
        keys = [self.place(number, segment[number]) for number, _ in got]
        law(keys == sorted(keys), f"Q6: {got} crossed a watermark, or is not as they completed")
        for number in {n for n, _ in got}:
            mine = [output for n, output in got if n == number]
            law(mine == wanted[number][: len(mine)], f"Q3: {mine} of {wanted[number]}")

    def place(self, number: int, segment: int) -> tuple[int, bool, float]:
        """What an unordered output is sorted by."""
        fate = self.model.fates.get(number)
        loose = fate is None or self.options.circuit_breaker is not None
        return segment, fate is None, 0.0 if loose or fate is None else fate.since

    def wanted(self, number: int) -> list[Any]:
        fate = self.model.fates.get(number)
        if fate is None:
            return [Watermark(number)]
        outputs = fate.outputs
        return [Record(output, number) for output in outputs] if self.schedule.records[number] else outputs

    def adopt(self) -> None:
        """A circuit breaker refuses unseen: what an element gave is taken over if it may have been given."""
        for number, fate in self.model.fates.items():
            mine = [getattr(o, "value", o) for o in self.got if number_of(o) == number]
            marks = {mark for _, mark in mine}
            law(len(marks) <= 1, f"O4: {mine} of {fate}")
            law("CircuitOpenError" not in marks or self.options.on_error == "replace", "R10: refused")
            if fate.state != "ended" or fate.outputs != mine:
                fate.state, fate.outputs, fate.fatal = "ended", mine, None


def number_of(element: Any) -> int:
    """Of an input, or of an output."""
    if isinstance(element, Watermark):
        return element.timestamp
    value = element.value if isinstance(element, Record) else element
    number: int = value[0] if isinstance(value, tuple) else value
    return number
