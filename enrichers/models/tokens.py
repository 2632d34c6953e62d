"""Tokens of requests: what an answer says that they were, what the next one is likely to have, and what they cost.

An estimate is for the length of what is sent, in characters. It is the most that requests of about that length had
lately, so that a spend limit is kept: what was reserved too much is free again with the answer. It is never less than
the least that was seen for exactly that length. Before the first answer a token has four characters, as in English, and
the answer is as long as it may be. Lengths that differ by less than a fifth are one class. For a class without an
answer, the nearest one decides.

It is kept by the enricher of a worker, and not pickled: each worker learns for itself, within its first answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2
from sys import float_info
from typing import Any, NamedTuple

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe

CHARACTERS = 4
"""Of a token, before anything is known."""

REMEMBERED = 50
"""Requests after which a high one is mostly forgotten: enough for a steady estimate, few enough to follow changes."""

MOST_LENGTHS = 10_000
"""Lengths for which the least is kept: less than 2 MB."""

Price = tuple[float, float]
"""Dollars for a million tokens: of what is sent, and of the answer."""


class Tokens(NamedTuple):
    """The tokens of a request: of what is sent, and of the answer."""

    sent: float
    answered: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.sent + self.answered

    def weights(self, price: Price | None) -> dict[str, float]:
        """What they weigh for a budget, in tokens and, with a price, in dollars."""
        weights = {"tokens": self.total}
        if price is not None:
            weights["usd"] = (self.sent * price[0] + self.answered * price[1]) / 1e6
        return weights


class Estimates:
    """Learns how many tokens requests have.

    Args:
        answered: the tokens of an answer about a row, before anything is known.
    """

    def __init__(self, answered: float) -> None:
        self._answered = answered
        self._classes: dict[int, tuple[float, float]] = {}  # tokens for each character, and answered for each row
        self._least: dict[int, Tokens] = {}

    def learn(self, length: int, rows: int, tokens: Tokens) -> None:
        """A request of a length for a number of rows had these tokens."""
        known = self._least.pop(length, tokens)
        if len(self._least) >= MOST_LENGTHS:
            del self._least[next(iter(self._least))]
        self._least[length] = min(known, tokens, key=sum)
        new = (tokens.sent / max(length, 1), tokens.answered / rows)
        sent, answered = self._classes.get(_class(length), new)
        self._classes[_class(length)] = _peak(sent, new[0]), _peak(answered, new[1])

    def estimate(self, length: int, rows: int) -> Tokens:
        """The tokens that a request of this length is likely to have, in whole tokens."""
        if not self._classes:
            return Tokens(ceil(length / CHARACTERS), self._answered * rows)
        near = min(self._classes, key=lambda one: abs(one - _class(length)))
        sent, answered = self._classes[near]
        guess = Tokens(ceil(sent * max(length, 1)), ceil(answered * rows))
        return max(guess, self._least.get(length, guess), key=sum)

    def least(self) -> Tokens:
        """The fewest tokens that any request may have."""
        return min(self._least.values(), key=sum, default=Tokens(1, 0))


def _peak(high: float, new: float) -> float:
    """The most of late: it rises at once and falls slowly."""
    return new if new > high else high + (new - high) / REMEMBERED


def _class(length: int) -> int:
    return round(4 * log2(length + 1))


def tokens_in(answer: Any) -> Tokens | None:
    """The tokens that an answer reports; None if it reports none.

    An answer that says only how many they are together is taken as one whose tokens all cost what those of an answer
    cost, which are the dearer ones.
    """
    usage = answer.get("usage") if isinstance(answer, Mapping) else None
    if not isinstance(usage, Mapping):
        return None
    sent, answered, total = (_number(usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    if sent is None:
        return None if total is None else Tokens(0, total)
    return Tokens(sent, answered if answered is not None else max((total or sent) - sent, 0))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e12:
        return None
    return value


def checked_price(price: object, *, answers: bool) -> Price | None:
    """The price; `answers` says whether answers have tokens that cost something.

    Raises:
        ConfigurationError: it is no price.
    """
    if price is None:
        return None
    given = tuple(price) if isinstance(price, tuple | list) else (price, 0.0) if not answers else ()
    if len(given) == 2 and all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= float_info.max for one in given
    ):
        return float(given[0]), float(given[1])
    form = "(input, output), such as (0.15, 0.6)" if answers else "such as 0.02"
    raise ConfigurationError(f"price is {describe(price)}; it must be dollars for a million tokens: {form}")
