"""Bids in the proportions of Nexmark's generator, and the keys of its query 13.

Query 13 joins each bid with a bounded side input by ``auction mod 10,000``. Nexmark reads the side input from a file;
here a service has it, and a key takes a request. The proportions are those of the published generator: of 50 events one
is a person, three are auctions, and 46 are bids. Half of the bids are for the hot auction, which changes with every
hundredth auction. The others are for one of the last hundred auctions, or for one of the next ten.

What differs: there are bids only, without their channel, URL and filling; the random numbers are Python's, from a seed;
and the time goes on by a tenth of a millisecond with each event.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EVENTS = PERSONS + AUCTIONS + BIDS

HOT = 100
"""Every hundredth auction is hot, and every hundredth person."""

IN_FLIGHT, ACTIVE, LEAD, FIRST = 100, 1_000, 10, 1_000
"""Auctions and persons that bids are for, those that do not exist yet, and the first number of both."""

KEYS = 10_000
"""Rows of the side input."""


@dataclass(frozen=True, slots=True)
class Bid:
    """A bid: the numbers of its auction and bidder, its price in cents, and its time in milliseconds."""

    auction: int
    bidder: int
    price: int
    time: float

    @property
    def key(self) -> int:
        """The key of its row in the side input."""
        return self.auction % KEYS


def bids(count: int, seed: int = 0) -> list[Bid]:
    """The first bids."""
    drawn = random.Random(seed)
    made: list[Bid] = []
    event = 0
    while len(made) < count:
        epoch, place = divmod(event, EVENTS)
        if place >= PERSONS + AUCTIONS:
            auction = AUCTIONS * epoch + AUCTIONS - 1
            hot = drawn.randrange(2) > 0
            auction = auction // HOT * HOT if hot else _near(drawn, auction, IN_FLIGHT)
            hot = drawn.randrange(4) > 0
            bidder = epoch // HOT * HOT + 1 if hot else _near(drawn, epoch, ACTIVE)
            price = round(10 ** (6 * drawn.random()) * 100)
            made.append(Bid(FIRST + auction, FIRST + bidder, price, event / 10))
        event += 1
    return made


def _near(drawn: random.Random, last: int, span: int) -> int:
    """One of the last, or one of those that come soon."""
    return drawn.randint(max(last - span, 0), last + LEAD)
