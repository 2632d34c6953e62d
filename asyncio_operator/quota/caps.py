"""What a source said of its own limits. A hint can only limit further (laws G4 and G5).

Caps are a part of a budget's state: by unit, what is left and until when. A cap of a fixed window holds what the source
said until its reset. A cap that refills (OpenAI: the reset is the time to a full refill) grows all the time. A source's
answers overtake each other, so a hint that says that more is left is believed only if the cap is not new.

A source that counts no more than the budget itself, in windows that are no longer, says nothing new: the budget's own
windows keep its limit too, to the unit, and a cap would only be rougher. Then there is no cap (law G3).

A source may say that its limit is lower than that of the budget. That is learned: the budget's own windows hold what
the source allows, less a little for the journeys of calls, as long as it goes on saying so (`lowered`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from asyncio_operator.errors import describe
from asyncio_operator.policies.retry import LONGEST_WAIT
from asyncio_operator.quota.terms import Json, Rate
from asyncio_operator.quota.usage import LARGEST_AMOUNT, Hint
from asyncio_operator.quota.window import Window

SHORTEST_REFILL = 1e-3  # Seconds. A shorter one is none.

MOST_UNITS = 64
"""Units that caps are kept for. A source that names others all the time must not fill the state of the budget."""

SETTLED = 1.0  # Seconds after which a hint may say that more is left than the cap holds.
ROUNDED = 1.0  # Seconds by which a source may round its reset up.

BELIEVED = 10.0
"""Seconds, at least, for which the limit of a source is kept after an answer has repeated it: longer than most calls
take, and short enough to use a limit that was raised."""

NEARLY_ALL = 0.9
"""The part of its units that a source that refills must miss, before its time to a full refill tells the length of its
window. A source that counts a moving window gives back the last unit after a whole one, however few are missing."""

ALIKE = 1.25
"""A window of the budget that is longer by no more than this factor counts as equal to that of the source, whose length
may have been found from an answer that was on its way for a while."""

JOURNEY = 0.05
"""Seconds by which the journeys of calls differ. A source counts calls when they arrive: at the very limit of a second,
3 to 11 % of the calls of four tasks were refused, and with this part of the window unused at most 4 %."""


@dataclass
class Cap:
    """What the source said of a unit."""

    hint: Json = field(default_factory=dict)  # What it said last of the limit, of what remains, and of the reset.
    heard: float = 0.0  # When it said so, and until when that is shown:
    shown_until: float = 0.0
    learned: list[float] | None = None  # Its limit, the seconds of its window, and when an answer last said so.
    left: float | None = None  # Units that were left at `at`, if they limit anything; grants are taken off.
    at: float = 0.0
    since: float = 0.0  # When the source said so, and until when it holds:
    until: float = 0.0
    rate: float = 0.0  # Units that come back in a second, up to `most`.
    most: float = 0.0
    limit: float | None = None  # The units of the next window, if the source named them, and its seconds:
    next: float = 0.0
    drop: float = -1.0  # When more had been granted than the source said is left.


def is_known(hint: Hint, own: Iterable[Window], now: float) -> bool:
    """Whether a limit of the budget already keeps what the source says: what the source counts has started here.

    A fixed window ends at its reset, and so began a window before. What has started here since then is counted here
    until the reset, or longer. Of a source that refills, all that is counted here may still be missing there.
    """
    limit, remaining, reset = hint.limit, hint.remaining, hint.reset_after
    if limit is None or remaining is None or reset is None:
        return False
    for one in own:
        per = one.limit.per
        if limit < one.most or max(reset, hint.per or 0.0) > per + min(ROUNDED, per / 2):
            continue
        begin = now - per if hint.refills else now + reset - ROUNDED - per
        if limit - remaining <= limit - one.most + one.counted(begin):
            return True
    return False


def problem(hint: Hint, longest: float = LONGEST_WAIT) -> str | None:
    """Why a hint cannot be right, or None."""
    for name in ("limit", "remaining", "reset_after", "per"):
        value = getattr(hint, name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= LARGEST_AMOUNT):
            return f"{name} is {describe(value)}; it must be a number from 0 to {LARGEST_AMOUNT:g}"
    if hint.limit == 0:
        return "the limit is 0"
    if hint.reset_after is not None and hint.reset_after > longest:
        return f"the reset is in {hint.reset_after:g} s; at most {longest:g} s are believed"
    if hint.limit is not None and hint.remaining is not None and hint.remaining > hint.limit:
        return f"{hint.remaining:g} of {hint.limit:g} remain"
    return None


def hear(
    caps: dict[str, Cap], unit: str, hint: Hint, outstanding: float, now: float, own: Iterable[Window] = ()
) -> None:
    """A source said this of a unit, whose windows are `own`, and of which `outstanding` are granted and did not
    start."""
    limit, remaining, per = hint.limit, hint.remaining, hint.per or 0.0
    reset = per if hint.reset_after is None else hint.reset_after
    if unit not in caps and len(caps) >= MOST_UNITS:
        del caps[min(caps, key=lambda one: caps[one].heard)]
    cap = caps.setdefault(unit, Cap())
    said = {"limit": limit, "remaining": remaining, "reset_after": hint.reset_after}
    cap.hint = {name: value for name, value in said.items() if value is not None}
    cap.heard, cap.shown_until = now, now + reset
    _learn(cap, hint, now)
    if remaining is None:
        return
    if is_known(hint, own, now):
        if now - cap.since > SETTLED:
            cap.left = None
        return
    # Permits that were granted before are used up first.
    left = remaining - outstanding
    if left < available(caps, unit, now) or now - cap.since > SETTLED:
        if left < 0:
            # More than is left: workers give their permits back, and get others.
            cap.drop, left = now, remaining
        cap.rate, cap.most = 0.0, left
        if hint.refills and limit is not None and limit > remaining and reset >= SHORTEST_REFILL:
            cap.rate, cap.most = (limit - remaining) / reset, limit
        cap.left, cap.since, cap.at, cap.until = left, now, now, now + reset
        cap.limit, cap.next = limit, max(reset, per, cap.next)


def _learn(cap: Cap, hint: Hint, now: float) -> None:
    """Note the limit of the source, and the length of its window, if the hint tells them."""
    limit, per = hint.limit, hint.per
    if limit is None:
        return
    if cap.learned is not None and cap.learned[0] != limit:
        cap.learned = None
    if per is None and hint.refills and hint.remaining is not None and hint.reset_after is not None:
        missing = limit - hint.remaining
        if missing >= NEARLY_ALL * limit:
            per = hint.reset_after * limit / missing
            if cap.learned is not None:
                # An answer that was on its way for long tells a shorter time.
                per = max(per, cap.learned[1])
    if per:
        cap.learned = [limit, per, now]
    elif cap.learned is not None:
        cap.learned[2] = now


def lowered(caps: dict[str, Cap], given: Rate, now: float) -> tuple[float, float]:
    """The rate and the burst of a limit of the budget, or less if the source allows less in such a time."""
    unit, rate, per, burst = given
    learned = caps[unit].learned if unit in caps else None
    if learned is None:
        return rate, burst
    limit, window, heard = learned
    if now - heard > max(BELIEVED, 2 * window):
        return rate, burst
    part = per / window if per > ALIKE * window else 1.0
    if rate + burst <= limit * part:
        return rate, burst
    # Less than one call is no reason to leave one out.
    spared = limit * min(JOURNEY, JOURNEY / window)
    # One call may always start: a window that holds none would never hear of a higher limit.
    return max(1.0, (limit - spared if spared >= 1 else limit) * part), 0.0


def pause(hint: Hint) -> float:
    """The seconds for which nothing may start because of a unit that the budget has no limit for."""
    if hint.remaining is None or hint.remaining > 0 or hint.reset_after is None:
        return 0.0
    # Where units come back all the time, there will be some soon.
    return min(hint.reset_after, 1.0) if hint.refills else hint.reset_after


def available(caps: dict[str, Cap], unit: str, now: float) -> float:
    """The units that may be granted now; infinity without a cap."""
    cap = caps.get(unit)
    if cap is None or cap.left is None:
        return math.inf
    if now >= cap.until:
        # The next window holds no more than the last, until the source says something else.
        if not cap.limit or now >= cap.until + cap.next:
            return math.inf
        if not cap.rate:
            return cap.limit
    return min(cap.most, cap.left + cap.rate * (now - cap.at))


def take(caps: dict[str, Cap], unit: str, units: float, now: float) -> None:
    """Units were granted."""
    left = available(caps, unit, now)
    if left < math.inf:
        cap = caps[unit]
        if now >= cap.until and not cap.rate:
            cap.until, cap.limit, cap.most = cap.until + cap.next, None, left
        cap.left, cap.at = left - units, now


def dropped(caps: dict[str, Cap], since: float, now: float) -> list[str]:
    """The units whose permits a worker must give back that was heard last at `since`."""
    return [unit for unit, cap in caps.items() if since <= cap.drop and now < cap.until]
