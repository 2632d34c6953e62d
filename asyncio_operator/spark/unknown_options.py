"""Options that a function of this package does not have: what replaces them, or which one was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.suggestions import did_you_mean

IN_ENRICH = {
    "cache": "enrich keeps answers",
    "status_column": "enrich reports the outcome of each row",
}
"""Options that only `enrich` has."""


def refuse_unknown(
    face: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Check that a function has all options that are passed to it.

    Raises:
        ConfigurationError: it does not have one of them.
    """
    options = list(known)
    for name in given:
        if name not in options:
            raise ConfigurationError(
                f"{name!r} is not an option of {face}; {(elsewhere or {}).get(name) or did_you_mean(name, options)}"
            )
