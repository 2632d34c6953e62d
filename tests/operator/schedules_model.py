"""The model: what becomes of an element, from its script and the moments at which its attempts begin.

The operator is free in when it begins an attempt, as far as the laws allow; the moment it does, everything is settled
until the attempt has ended, and with it whether and when there is another, or what the element gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

from asyncio_operator import Retry
from tests.operator.schedules import Act, Options

EPS = 1e-6
LATE = 0.002
"""Seconds: an element that waits may be looked at a millisecond late."""


class BusyError(Exception):
    """Comes with the time after which to ask again."""

    retry_after = 2


class HopelessError(Exception):
    """Asking again gives the same."""

    retryable = False


class HookError(Exception):
    pass


class InputError(Exception):
    pass


ERRORS: dict[str, type[BaseException]] = {
    "error": ValueError,
    "lost": ConnectionError,
    "busy": BusyError,
    "hopeless": HopelessError,
}
RETRIED = ("ValueError", "ConnectionError", "BusyError", "CancelledError", "ElementTimeoutError")
WORST = ("cancelled", "lost", "busy", "short", "hopeless", "error")
"""Of the acts in a batch, the first of these that occurs is what the call ends in."""


@dataclass(eq=False)
class Fate:
    """Of one element in one run. `state` holds from `since`, which may be still to come: until then it is called."""

    number: int
    script: tuple[Act, ...]
    used: int = 0
    state: str = "new"  # "new" | "waits" | "half" | "ended"
    since: float = 0.0
    attempts: int = 0
    begun: float = 0.0
    deadline: float = inf
    used_before: int = 0
    outputs: list[Any] = field(default_factory=list)
    fatal: str | None = None  # what the run fails of
    error: str | None = None
    timed_out: bool = False
    half: list[Fate] = field(default_factory=list)
    attempt_ends: float = -inf
    used_at_first: int = 0
    first: Begun | None = None  # a call that may get a copy
    copied: bool = False

    @property
    def act_of_copy(self) -> Act:
        return self.script[min(self.attempts, len(self.script) - 1)]

    @property
    def act(self) -> Act:
        return self.script[min(self.attempts, len(self.script)) - 1]


@dataclass(eq=False)
class Begun:
    """The first call of elements, which may get a copy."""

    fates: list[Fate]
    ends: float
    ending: str


class LawError(AssertionError):
    pass


def law(holds: object, what: str) -> None:
    """Unlike a bare ``assert``, it is not left out of modules that pytest does not rewrite, and says which law."""
    if not holds:
        raise LawError(what)


class Model:
    """The fates of the elements of one run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.fates: dict[int, Fate] = {}
        self.attempt_timeout = options.attempt_timeout or inf
        self.max_attempts = 1 if options.retry is None else options.retry.max_attempts
        self.retries = 0

    def admit(self, number: int, script: tuple[Act, ...], used: int, since: float) -> None:
        self.fates[number] = Fate(number, script, used, since=since, used_before=used, used_at_first=used)

    def limit(self, fate: Fate) -> float:
        """Of the attempt that has begun."""
        return min(fate.deadline, fate.begun + self.attempt_timeout)

    def begin(self, numbers: list[int], now: float, retries: int) -> tuple[float, str]:
        """A call begins; the seconds it takes, and how it ends. `retries` are those of the operator until now."""
        fates = [self.fates[number] for number in numbers]
        self.leave_halves(fates, now, retries)
        halves = fates[0].state == "half"
        for fate in fates:
            self.check_start(fate, fates, halves, now)
            if not halves:
                self.retries += fate.used > 0
                fate.attempts += 1
                fate.begun = now
                fate.deadline = min(fate.deadline, now + (self.options.timeout or inf))
        seconds = max(fate.act.seconds for fate in fates)
        worst = worst_of({fate.act.ending for fate in fates})
        first = None if halves or any(fate.used for fate in fates) else Begun(fates, now + int(seconds), worst)
        for fate in fates:
            fate.first, fate.copied = first, False
        self.decide(fates, worst, now + int(seconds), copy=False)
        return seconds, worst

    def decide(self, fates: list[Fate], worst: str, end: float, copy: bool) -> None:
        """The call that decides ends then, in this way."""
        present = [fate for fate in fates if end <= self.limit(fate) + EPS]
        for fate in fates:
            limit = self.limit(fate)
            fate.used_before, fate.attempt_ends = fate.used, min(end, limit)
            act = fate.act_of_copy if copy else fate.act
            if fate not in present:
                self.cut(fate, limit)
            elif self.options.batching is None or worst == "result":
                self.ended(fate, act.ending, end, act)
            elif len(fates) > 1 and worst in ("cancelled", "error", "hopeless"):
                self.split(fate, present, end)
            else:
                self.ended(fate, worst, end, act)

    def copy(self, numbers: list[int], now: float) -> tuple[float, str]:
        """A call is made a second time; the seconds it takes, and how it ends. What was decided is decided anew."""
        fates = [self.fates[number] for number in numbers]
        first = fates[0].first
        assert first is not None
        # Never at the same time as the other call, nor in the present turn: then either might be first.
        seconds = max(1, *(int(fate.act_of_copy.seconds) for fate in fates)) + 0.25
        worst = worst_of({fate.act_of_copy.ending for fate in fates})
        for fate in fates:
            # Nothing has happened to it since its first call began.
            fate.state, fate.used, fate.timed_out, fate.error, fate.fatal = "new", 0, False, None, None
            fate.outputs, fate.half, fate.first, fate.copied = [], [], None, True
        single, ends = self.options.batching is None, now + seconds
        answers = [ending not in ERRORS and ending != "cancelled" for ending in (first.ending, worst)]
        if single:
            worst = fates[0].act_of_copy.ending
        if answers[0] and (not answers[1] or first.ends < ends):
            self.decide(fates, first.ending, first.ends, copy=False)
        elif answers[1]:
            self.decide(fates, worst, ends, copy=True)
        else:
            self.decide(fates, first.ending, max(first.ends, ends), copy=False)
        return seconds, worst

    def leave_halves(self, fates: list[Fate], now: float, retries: int) -> None:
        """Halves that are called for another attempt have been cut, or refused, while they waited."""
        halves = [fate for fate in fates if fate.state == "half"]
        if self.options.circuit_breaker is None:
            for fate in halves:
                # At the very end of its attempt it may be called still, or be cut and called again.
                if self.limit(fate) < now + (EPS if retries > self.retries else -EPS):
                    self.cut(fate, self.limit(fate))
        elif any(fate.state != "half" or fate not in fates[0].half or self.limit(fate) < now - EPS for fate in fates):
            for fate in halves:
                fate.used += 1
                fate.state = "waits"

    def check_start(self, fate: Fate, fates: list[Fate], halves: bool, now: float) -> None:
        law(fate.state == "new" or fate.since <= now + EPS, f"O4, R7: {fate} is called while it runs, or backs off")
        law(fate.state != "ended", f"O4: {fate} is called though it has ended")
        law(now <= fate.deadline + EPS, f"R3: an attempt of {fate} starts after the deadline")
        if halves:
            law(fate.state == "half" and fate in fates[0].half, f"B4: {fate} is called with others than its half")
            missing = [f for f in fates[0].half if f not in fates and f.state == "half" and self.limit(f) > now + EPS]
            law(not missing, f"B4: {missing} got lost of a half")
            return
        law(fate.state != "half", f"B4: {fate} is called without its half")
        law(not fate.attempts or fate.used < self.max_attempts, f"R5: too many attempts for {fate}")

    def cut(self, fate: Fate, limit: float) -> None:
        if limit < fate.deadline - EPS:
            self.failed(fate, "ElementTimeoutError", limit)
        else:
            self.time_out(fate, limit)

    def split(self, fate: Fate, present: list[Fate], end: float) -> None:
        middle = len(present) // 2
        fate.state, fate.since = "half", end
        fate.half = present[:middle] if fate in present[:middle] else present[middle:]

    def ended(self, fate: Fate, ending: str, end: float, act: Act) -> None:
        """The attempt ends by itself."""
        retry, flatten = self.options.retry, self.options.flatten
        result = result_of(fate.number, ending, act.outputs, flatten)
        match ending:
            case "short" | "junk" if (ending == "short" and self.options.batching) or (ending == "junk" and flatten):
                self.failed(fate, "ResultError", end)
            case "result" | "bad" | "junk" | "short":
                if retry is not None and retry.unsatisfied(result):
                    fate.used += 1
                    if self.again(fate, None, end):
                        return
                self.end(fate, result if flatten else [result], end)
            case "cancelled":
                self.failed(fate, "CancelledError", end)
            case _:
                self.failed(fate, ERRORS[ending].__name__, end)

    def failed(self, fate: Fate, error: str, at: float) -> None:
        retry = self.options.retry
        fate.used += 1
        retried = retry is not None and error in RETRIED and (Exception in kinds(retry) or error == "ConnectionError")
        if not (retried and self.again(fate, BusyError.retry_after if error == "BusyError" else None, at)):
            self.end_with_error(fate, error, at)

    def again(self, fate: Fate, wait: float | None, at: float) -> bool:
        retry = self.options.retry
        assert retry is not None
        start = at + (retry.backoff.wait(fate.used, float) if wait is None else wait)
        if fate.used >= self.max_attempts or start > fate.deadline:
            return False
        fate.state, fate.since = "waits", start
        return True

    def time_out(self, fate: Fate, at: float) -> None:
        fate.timed_out = True
        match self.options.on_timeout:
            case "none":
                self.end_with_error(fate, "ElementTimeoutError", at)
            case "raise":
                self.end_with_error(fate, "HookError", at)
            case _:
                self.end(fate, [(fate.number, "late")], at)

    def end_with_error(self, fate: Fate, error: str, at: float) -> None:
        fate.error = error
        match self.options.on_error:
            case "fail":
                fate.fatal = error
            case "raise":
                fate.fatal = "HookError"
        self.end(fate, [(fate.number, error)] if self.options.on_error == "replace" else [], at)

    def end(self, fate: Fate, outputs: list[Any], at: float) -> None:
        fate.state, fate.since, fate.outputs = "ended", at, outputs

    def waits_until(self, fate: Fate) -> float:
        """When an element that waits ends without a call, or its attempt does."""
        if fate.state not in ("half", "waits"):
            return inf
        surely_half = fate.state == "half" and self.options.circuit_breaker is None
        return self.limit(fate) if surely_half else fate.deadline

    def settle(self, now: float) -> None:
        """What waits for a place past its limit has been cut there."""
        for fate in self.fates.values():
            if fate.state == "half" and (limit := self.waits_until(fate)) <= now + EPS:
                fate.used_before, fate.attempt_ends = fate.used, limit
                self.cut(fate, limit)
            if fate.state == "waits" and fate.deadline <= now + EPS:
                self.time_out(fate, max(fate.deadline, fate.since))

    def fails_at(self) -> float:
        """When the run fails, as far as is known: with a circuit breaker elements may have ended otherwise."""
        if self.options.circuit_breaker is not None:
            return inf
        return min((fate.since for fate in self.fates.values() if fate.fatal), default=inf)


def worst_of(endings: set[str]) -> str:
    """What a call ends in whose elements have these endings."""
    return next((ending for ending in WORST if ending in endings), "result")


def kinds(retry: Retry) -> tuple[type[BaseException], ...]:
    assert isinstance(retry.on, tuple)
    return retry.on


def result_of(number: int, ending: str, outputs: int, flatten: bool) -> Any:
    """What the function gives for a value."""
    mark = "bad" if ending == "bad" else "ok"
    if not flatten:
        return (number, mark)
    return None if ending == "junk" else [(number, mark)] * outputs
