"""Suggestions for a name that does not exist. This module does not know where names come from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 30
"""The maximum number of names listed if none is similar."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not among `names`: the most similar names, or else all names.

    Case is ignored in the comparison: ``did you mean 'Year'?``. If no name is similar, the names are listed in their
    order: ``there are year, seats``.
    """
    known = list(dict.fromkeys(names))
    folded: dict[str, list[str]] = {}
    for other in known:
        folded.setdefault(other.casefold(), []).append(other)
    near = folded.get(name.casefold()) or [
        other for match in difflib.get_close_matches(name.casefold(), folded) for other in folded[match]
    ]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    more = f", and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"there are {', '.join(known[:SHOWN])}{more}" if known else "there are none"
