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
from collections.abc import Callable, Iterable
from typing import NamedTuple

from asyncio_operator.budget.terms import Json
from asyncio_operator.budget.usage import LARGEST_AMOUNT, Hint
from asyncio_operator.errors import describe
from asyncio_operator.policies.retry import LONGEST_WAIT

SHORTEST_REFILL = 1e-3
"""Seconds. A shorter one is none."""

MOST_UNITS = 64
"""Units that caps are kept for. A source that names others all the time must not fill the state of the budget."""

SETTLED = 1.0
"""Seconds after which a hint may say that more is left than the cap holds."""

ROUNDED = 1.0
"""Seconds by which a source may round its reset up."""

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


class Own(NamedTuple):
    """What the budget itself knows of a unit, by one of its limits.

    Attributes:
        most: units in a window.
        per: seconds of the window.
        since: the units that have started since a time, or may have.
    """

    most: float
    per: float
    since: Callable[[float], float]


def is_known(hint: Json, own: Iterable[Own], now: float) -> bool:
    """Whether a limit of the budget already keeps what the source says: what the source counts has started here.

    A fixed window ends at its reset, and so began a window before. What has started here since then is counted here
    until the reset, or longer. Of a source that refills, all that is counted here may still be missing there.
    """
    if not hint.keys() >= {"limit", "remaining", "reset_after"}:
        return False
    counted, reset = hint["limit"] - hint["remaining"], hint["reset_after"]
    for one in own:
        longest = max(reset, hint.get("per", 0.0))
        if hint["limit"] < one.most or longest > one.per + min(ROUNDED, one.per / 2):
            continue
        begin = now - one.per if hint.get("refills") else now + reset - ROUNDED - one.per
        if counted <= hint["limit"] - one.most + one.since(begin):
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


def hear(caps: Json, unit: str, hint: Json, outstanding: float, now: float, own: Iterable[Own] = ()) -> None:
    """A source said this of a unit.

    Args:
        hint: the fields of a `Hint` that are not None, as JSON.
        outstanding: units that are granted and did not start.
        own: what the budget itself counts in the unit.
    """
    reset: float = hint["reset_after"] if "reset_after" in hint else hint.get("per", 0.0)
    shown = {name: value for name, value in hint.items() if name in ("limit", "remaining", "reset_after")}
    if unit not in caps and len(caps) >= MOST_UNITS:
        del caps[min(caps, key=lambda one: caps[one]["heard"])]
    cap = caps.setdefault(unit, {"left": None, "until": 0.0, "since": 0.0, "drop": -1.0})
    cap["hint"], cap["heard"], cap["shown_until"] = shown, now, now + reset
    _learn(cap, hint, now)
    if "remaining" not in hint:
        return
    if is_known(hint, own, now):
        if now - cap["since"] > SETTLED:
            cap["left"] = None
        return
    # Permits that were granted before are used up first.
    left = hint["remaining"] - outstanding
    if left < available(caps, unit, now) or now - cap["since"] > SETTLED:
        if left < 0:
            # More than is left: workers give their permits back, and get others.
            cap["drop"], left = now, hint["remaining"]
        refills = hint.get("refills") and hint.get("limit", 0) > hint["remaining"] and reset >= SHORTEST_REFILL
        cap["rate"] = (hint["limit"] - hint["remaining"]) / reset if refills else 0.0
        cap["most"] = hint["limit"] if refills else left
        cap["left"], cap["since"], cap["at"], cap["until"] = left, now, now, now + reset
        cap["limit"], cap["next"] = hint.get("limit"), max(reset, hint.get("per", 0.0), cap.get("next", 0.0))


def _learn(cap: Json, hint: Json, now: float) -> None:
    """Note the limit of the source, and the length of its window, if the hint tells them."""
    limit, known = hint.get("limit"), cap.get("learned")
    if limit is None:
        return
    if known is not None and known[0] == limit:
        known[2] = now
    per = hint.get("per")
    if per is None and hint.get("refills") and "remaining" in hint:
        missing = limit - hint["remaining"]
        if missing >= NEARLY_ALL * limit:
            per = hint["reset_after"] * limit / missing
            if known is not None and known[0] == limit:
                # An answer that was on its way for long tells a shorter time.
                per = max(per, known[1])
    if per:
        cap["learned"] = [limit, per, now]
    elif known is not None and known[0] != limit:
        del cap["learned"]


def lowered(caps: Json, unit: str, rate: float, per: float, burst: float, now: float) -> tuple[float, float]:
    """The rate and the burst of a limit of the budget, or less if the source allows less in such a time."""
    learned = caps[unit].get("learned") if unit in caps else None
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


def pause(hint: Json) -> float:
    """The seconds for which nothing may start because of a unit that the budget has no limit for."""
    if hint.get("remaining", 1) > 0:
        return 0.0
    reset: float = hint.get("reset_after", 0.0)
    # Where units come back all the time, there will be some soon.
    return min(reset, 1.0) if hint.get("refills") else reset


def available(caps: Json, unit: str, now: float) -> float:
    """The units that may be granted now; infinity without a cap."""
    cap = caps.get(unit)
    if cap is None or cap["left"] is None:
        return math.inf
    if now >= cap["until"]:
        # The next window holds no more than the last, until the source says something else.
        if not cap["limit"] or now >= cap["until"] + cap["next"]:
            return math.inf
        if not cap["rate"]:
            limit: float = cap["limit"]
            return limit
    left: float = min(cap["most"], cap["left"] + cap["rate"] * (now - cap["at"]))
    return left


def take(caps: Json, unit: str, units: float, now: float) -> None:
    """Units were granted."""
    left = available(caps, unit, now)
    if left < math.inf:
        cap = caps[unit]
        if now >= cap["until"] and not cap["rate"]:
            cap["until"], cap["limit"], cap["most"] = cap["until"] + cap["next"], None, left
        cap["left"], cap["at"] = left - units, now


def dropped(caps: Json, since: float, now: float) -> list[str]:
    """The units whose permits a worker must give back that was heard last at `since`."""
    return [unit for unit, cap in caps.items() if since <= cap["drop"] and now < cap["until"]]
