"""The functions `weigh` of users, which enrichers take in place of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import describe, gives_coroutines, takes

Weigh = Callable[[Sequence[Any]], Mapping[str, float]]


def check_weigh(weigh: Weigh | None) -> None:
    """Check that a function can weigh a list of keys.

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
