"""What is checked when a `FakeService` is made."""

from __future__ import annotations

from collections.abc import Mapping

from asyncio_operator.checks import flag, number, one_of, plain_function, positive_int
from asyncio_operator.errors import ConfigurationError, describe


def check_arguments(
    rows: object,
    latency: object,
    errors: object,
    rates: Mapping[str, float],
    rate_limit: object,
    batch: object,
    handler: object,
    waits: Mapping[str, object],
    retry_after_date: object,
) -> None:
    """Check the arguments of a `FakeService`.

    Args:
        rates: shares of the faults that are no status, by their names.
        waits: other seconds, by their names; None: none.

    Raises:
        ConfigurationError: an argument has the wrong type or value.
    """
    if rows is not None and not isinstance(rows, Mapping):
        raise ConfigurationError(
            f'rows is {describe(rows)}; it must be a mapping of keys to rows, such as {{"JFK": {{"city": "New York"}}}}'
        )
    if callable(latency):
        plain_function("latency", latency, "a function", "a random.Random")
    else:
        number("latency", latency, "of seconds that is not negative, or a function", lambda seconds: seconds >= 0)
    given = {} if errors is None else errors
    if not (isinstance(given, Mapping) and all(isinstance(status, int) and 100 <= status < 600 for status in given)):
        raise ConfigurationError(
            f"errors is {describe(errors)}; it must be a mapping of statuses to shares, such as {{503: 0.1}}"
        )
    shares = {f"errors[{status}]": share for status, share in given.items()} | dict(rates)
    for fault, share in shares.items():
        number(fault, share, "between 0 and 1: how often it happens", lambda share: 0 <= share <= 1)
    if sum(shares.values()) > 1:
        raise ConfigurationError(f"the shares of faults are {shares}; their sum must be at most 1")
    for name, wait in waits.items():
        if wait is not None:
            number(name, wait, "of seconds that is not negative", lambda seconds: seconds >= 0)
    flag("retry_after_date", retry_after_date)
    one_of("batch", batch, ("map", "list"))
    if rate_limit is not None:
        positive_int("rate_limit", rate_limit, ", or None")
    if handler is not None and not callable(handler):
        raise ConfigurationError(
            f"handler is {describe(handler)}; it must be a function of a FakeRequest, which may be `async`"
        )


def check_paths(name: str, paths: object) -> None:
    """Check a mapping from units to dotted paths, or None.

    Raises:
        ConfigurationError: it is something else; `name` is the argument.
    """
    if paths is None:
        return
    if not isinstance(paths, Mapping) or not all(
        isinstance(one, str) and one for pair in paths.items() for one in pair
    ):
        raise ConfigurationError(
            f"{name} is {describe(paths)}; it must be a mapping from units to paths into JSON, such as "
            '{"tokens": "usage.total_tokens"}'
        )
