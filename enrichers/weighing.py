"""The functions `weigh` of users, which enrichers take instead of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import Enricher, describe, gives_coroutines, takes

Weigh = Callable[[Sequence[Any]], Mapping[str, float]]


def weigh_with(enricher: Enricher, weigh: Weigh | None) -> None:
    """Put a function in the place of an enricher's method `weigh`.

    Without a function the method of `Enricher` stays, which the calls of a run can do without.

    Raises:
        ConfigurationError: it is not an ordinary function of one argument.
    """
    if weigh is None:
        return
    if not callable(weigh) or gives_coroutines(weigh):
        raise ConfigurationError(
            f"weigh is {describe(weigh)}; it must be an ordinary function of a list of keys, which returns amounts by "
            'unit, such as {"tokens": 1300}'
        )
    takes("weigh", weigh, "the list of keys")
    object.__setattr__(enricher, "weigh", weigh)  # Some enrichers are frozen.
