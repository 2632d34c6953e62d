"""Options that a face of the library has not: what is in their place, or which was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.suggestions import did_you_mean

IN_ENRICH = {
    "cache": "enrich keeps answers",
    "status_column": "enrich tells of every row what became of it",
}
"""What other faces have not."""


def refuse_unknown(
    face: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Check that a face has all the options that it is given.

    Raises:
        ConfigurationError: there is one that it has not.
    """
    options = list(known)
    for name in given:
        if name not in options:
            raise ConfigurationError(
                f"{name!r} is not an option of {face}; {(elsewhere or {}).get(name) or did_you_mean(name, options)}"
            )
