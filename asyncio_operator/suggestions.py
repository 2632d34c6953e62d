"""What somebody who wrote a name that is not there may have meant. Knows nothing of where names come from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 30
"""Names that are listed at most where none is near."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message on a name that is not among `names`: the nearest of them, or all where none is near.

    Upper and lower case count as near: ``did you mean 'Year'?``. Far names are listed as they come:
    ``there are year, seats``.
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
