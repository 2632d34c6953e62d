"""What an answer says about the limits of its service: how much is left, when more comes back, when to return.

| style | headers | the time until a reset |
| --- | --- | --- |
| OpenAI, Azure | ``x-ratelimit-{limit,remaining,reset}-{requests,tokens}`` | ``6m0s``, ``12ms`` or seconds |
| Anthropic | ``anthropic-ratelimit-{requests,tokens,...}-{limit,remaining,reset}`` | RFC 3339 |
| IETF draft | ``RateLimit``, ``RateLimit-Policy``; before that ``RateLimit-{Limit,Remaining,Reset}`` | seconds |
| GitHub, Okta, X | ``x-ratelimit-{limit,remaining,reset}``, ``x-rate-limit-...`` | seconds, or time since the epoch |
| all | ``Retry-After``, ``retry-after-ms``; ``RetryInfo`` in the body of an error (Google) | seconds, or an HTTP date |

OpenAI, Azure and Anthropic give the time of a full refill: units come back all the time. The others give the end of a
fixed window. Every way to write a time is accepted in each header, because services copy from each other. A date is
read by the clock of the service, if the answer has a ``Date``.

Law: no input raises. What cannot be right is left out, with a reason: negative numbers, limits of 0, dates in the past,
values that contradict each other. -1 means "unknown" (Azure). How long a wait is believed is for the budget to decide,
which knows its windows. This module reads no clock.

Sources: RFC 9110 (Retry-After), draft-ietf-httpapi-ratelimit-headers (versions 3 to 10), and the API references of
OpenAI, Azure OpenAI, Anthropic and GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from enrichers.http.error_bodies import retry_info
from enrichers.http.header_values import (
    Ignored,
    UnknownError,
    WrongError,
    amount,
    date_of,
    duration_of,
    is_number,
    items,
    positive,
    single,
)

AN_HOUR = 3600.0
"""Seconds. Of several hints for a unit, those that end within it go first: most budgets believe no longer ones."""

UNITS = {
    "requests": "calls",
    "tokens": "tokens",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
    "content-bytes": "bytes",
}
"""The units of a budget, by their names in headers."""

NO_WINDOWS = ("concurrent-requests",)
"""Quota units of the IETF draft that are no amounts in a window."""

RETRY_HEADERS = {"retry-after-ms": 0.001, "retry-after": 1.0}
"""Headers that say when to return, the most exact one first, with the seconds of their unit."""

WHAT = ("limit", "remaining", "reset")

FAMILIES = (
    *((unit, [f"x-ratelimit-{what}-{name}" for what in WHAT], True) for name, unit in UNITS.items()),
    *((unit, [f"anthropic-ratelimit-{name}-{what}" for what in WHAT], True) for name, unit in UNITS.items()),
    ("calls", [f"x-ratelimit-{what}" for what in WHAT], False),
    ("calls", [f"x-rate-limit-{what}" for what in WHAT], False),
    ("calls", [f"ratelimit-{what}" for what in WHAT], False),
)
"""Three headers that belong together: of which unit they speak, their names, and whether the reset is a full refill."""

HALF_OF_A_SECOND = 0.5
"""A date of whole seconds was rounded up by so much on average. In a window of a second the whole one would look like a
longer window, of which less comes back in a second."""

_PREFIXES = ("retry-after", "x-ratelimit-", "x-rate-limit-", "ratelimit", "anthropic-ratelimit-")

_EPOCH, _EPOCH_MS = 1e9, 1e12
"""From here on a plain number is a time since the epoch and no wait: 32 years, and 33,000 years."""

Hint = dict[str, Any]
"""The fields of a `Hint` of `asyncio_operator.enricher.hint`: limit, remaining, reset_after, refills, per."""


class Hints(NamedTuple):
    """What an answer says.

    Attributes:
        limits: for each unit of a budget its most restrictive hint.
        retry_after: the seconds after which the service asks to be called again; None if it does not.
        ignored: the headers that were left out.
    """

    limits: Mapping[str, Hint]
    retry_after: float | None
    ignored: Sequence[Ignored]

    @property
    def wait(self) -> float | None:
        """The seconds until a refused request may be repeated: as the service asks, or else until a window ends in
        which nothing is left. None if neither is known."""
        if self.retry_after is not None:
            return self.retry_after
        empty = [hint for hint in self.limits.values() if hint.get("remaining") == 0 and not hint["refills"]]
        return max((hint["reset_after"] for hint in empty), default=None)


NOTHING = Hints({}, None, ())


def read_hints(status: int, headers: Iterable[tuple[str, str]], body: object, now: float) -> Hints:
    """What an answer says about limits.

    Args:
        headers: names and values; a name may occur several times.
        body: the parsed JSON of an error, or None.
        now: the time of day, in seconds since the epoch, for an answer without a ``Date``.
    """
    fields: dict[str, list[str]] = {}
    date = None
    for name, value in headers:
        name = name.lower()
        if name.startswith(_PREFIXES):
            fields.setdefault(name, []).append(value)
        elif name == "date":
            date = value
    if not fields and (status < 400 or body is None):
        return NOTHING
    sent = None if date is None else date_of(date)
    reader = _Reader(fields, now if sent is None else sent)
    retry_after = reader.retry_after(body) if status >= 400 else None
    return Hints(reader.limits(), retry_after, reader.ignored)


class _Reader:
    """Reads the fields of one answer. `now` is the time of the service, in seconds since the epoch."""

    def __init__(self, fields: Mapping[str, Sequence[str]], now: float) -> None:
        self._fields = fields
        self._now = now
        self.ignored: list[Ignored] = []

    def retry_after(self, body: object) -> float | None:
        """Seconds until the service allows another request, from the most exact source that can be right."""
        for name, unit in RETRY_HEADERS.items():
            try:
                asked = self._seconds(name, self._text(name), epochs=False)
            except UnknownError:
                self.ignored.append(Ignored(name, "it is negative"))
            except WrongError as wrong:
                self.ignored.append(wrong.ignored)
            else:
                if asked is not None:
                    return asked * unit
        return retry_info(body)

    def limits(self) -> dict[str, Hint]:
        """For each unit its most restrictive hint."""
        best: dict[str, Hint] = {}
        for unit, hint in (*self._of_families(), *self._of_lists()):
            if unit not in best or _room(hint) < _room(best[unit]):
                best[unit] = hint
        return best

    def _of_families(self) -> Iterator[tuple[str, Hint]]:
        for unit, (limit, remaining, reset), refills in FAMILIES:
            if limit not in self._fields and remaining not in self._fields:
                continue
            try:
                hint = _hint(
                    remaining,
                    positive(limit, self._first(limit)),
                    amount(remaining, self._first(remaining)),
                    self._until_full(reset) if refills else self._seconds(reset, self._text(reset), epochs=True),
                    refills,
                )
            except UnknownError:
                continue
            except WrongError as wrong:
                self.ignored.append(wrong.ignored)
                continue
            if hint:
                yield unit, hint

    def _of_lists(self) -> Iterator[tuple[str, Hint]]:
        """The hints of ``RateLimit`` and ``RateLimit-Policy``, which are lists of RFC 9651."""
        try:
            policies = dict(self._items("ratelimit-policy"))
            states = self._items("ratelimit")
        except WrongError as wrong:
            self.ignored.append(wrong.ignored)
            return
        if any("=" in name for name, _ in states):
            # Drafts 7 and 8: RateLimit: limit=100, remaining=50, reset=30. The policy is named by its limit.
            parts = dict(name.split("=", 1) for name, _ in states if "=" in name)
            states = [(parts.get("limit", ""), {"r": parts.get("remaining"), "t": parts.get("reset")})]
        where = "ratelimit" if states else "ratelimit-policy"
        for name, state in states or [(name, {}) for name in policies]:
            policy = policies.get(name, {})
            unit = policy.get("qu") or "requests"
            if unit in NO_WINDOWS:
                continue
            try:
                hint = _hint(
                    where,
                    positive(where, policy.get("q") or (name if is_number(name) else None)),
                    amount(where, state.get("r")),
                    self._seconds(where, state.get("t"), epochs=False),
                    False,
                    positive("ratelimit-policy", policy.get("w")),
                )
            except UnknownError:
                continue
            except WrongError as wrong:
                self.ignored.append(wrong.ignored)
                continue
            if hint:
                yield UNITS.get(unit, unit.replace("-", "_")), hint

    def _seconds(self, header: str, text: str | None, epochs: bool) -> float | None:
        """Seconds from now: a number, a duration like 6m0s, or a date. With `epochs` a number may be a time of day."""
        if text is None:
            return None
        seconds = duration_of(text)
        if seconds is not None:
            return seconds
        moment = date_of(text)
        if moment is None:
            number = amount(header, text) or 0.0
            if not epochs or number < _EPOCH:
                return number
            moment = number / 1000 if number >= _EPOCH_MS else number
        # Dates have whole seconds, so that a moment that is just now may lie one second back.
        if moment < self._now - 1:
            raise WrongError(header, "it is in the past")
        return max(moment - self._now, 0.0)

    def _until_full(self, header: str) -> float | None:
        """Seconds from now until all units are back, by what is most likely where a date has whole seconds only."""
        text = self._text(header)
        seconds = self._seconds(header, text, epochs=False)
        moment = None if text is None else date_of(text)
        if seconds is None or moment is None or moment != int(moment):
            return seconds
        return max(seconds - HALF_OF_A_SECOND, 0.0)

    def _text(self, header: str) -> str | None:
        return single(header, self._fields.get(header, ()))

    def _first(self, header: str) -> str | None:
        """The same without the windows that drafts before 7 append to a limit: ``100, 100;w=60``."""
        text = self._text(header)
        return None if text is None else re.split("[,;]", text)[0].strip()

    def _items(self, header: str) -> list[tuple[str, Mapping[str, str | None]]]:
        return list(items(header, self._fields.get(header, ())))


def _hint(
    header: str,
    limit: float | None,
    remaining: float | None,
    reset: float | None,
    refills: bool,
    per: float | None = None,
) -> Hint:
    """The fields of a hint that are known; empty if nothing useful is.

    Raises:
        WrongError: they contradict each other.
    """
    if limit is not None and remaining is not None and remaining > limit:
        raise WrongError(header, f"{remaining:g} of {limit:g} cannot remain")
    hint: Hint = {} if limit is None else {"limit": limit}
    # Without the time of the reset it is not known how long the rest must last.
    if remaining is not None and reset is not None:
        hint |= {"remaining": remaining, "reset_after": reset, "refills": refills}
    return hint | {"per": per} if hint and per is not None else hint


def _room(hint: Hint) -> tuple[bool, bool, float, float]:
    """Sorts hints of one unit: what is known to remain for an hour at most first, the least of it, for the longest
    time."""
    if "remaining" in hint:
        reset = hint["reset_after"]
        return False, reset > AN_HOUR, hint["remaining"], -reset
    return True, False, hint["limit"] / hint.get("per", 60.0), 0.0
