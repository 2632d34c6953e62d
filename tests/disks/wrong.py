"""What a damaged file may lead to, and what is wrong."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Begun:
    """With what a process begins.

    Attributes:
        at: the first operation to do.
        left: what the process before has left, for a work whose operations do not say it; plain values.
    """

    at: int = 0
    left: Any = None


class WrongError(AssertionError):
    """A law is broken."""


class Outcome(Enum):
    """The result of reading everything after a file was damaged."""

    ERROR = "error"  # It names the file or its directory.
    RIGHT = "right"  # Everything is there.
    MISSING = "missing"  # A cache or a journal does not know some answers: they are asked for again.
    OLDER = "older"  # As after an earlier kill: some damage looks like one.
    UNUSED = "unused"  # Nothing reads the file any more.


def difference(found: Mapping[Hashable, Any], wanted: Mapping[Hashable, Any]) -> str:
    """The first difference, cut short."""
    for key in [*wanted, *found]:
        if found.get(key) != wanted.get(key):
            return f"{key!r} is {found.get(key)!r:.200}, and must be {wanted.get(key)!r:.200}"
    return "no difference"
