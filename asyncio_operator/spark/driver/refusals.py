"""What every face refuses on the driver: an option that it does not have, and an object that cannot be sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark import cloudpickle

from asyncio_operator.errors import ConfigurationError, describe, describe_error
from asyncio_operator.hints import did_you_mean
from asyncio_operator.policies.rate_limit import NO_SCOPE

IN_ENRICH = {
    "as_of": "enrich finds the version of a row's time",
    "cache": "enrich keeps answers",
    "journal": "enrich keeps answers in files: enrich(df, enricher, on=..., journal=Journal(...))",
    "status_column": "enrich reports the outcome of each row",
}
"""Options that only `enrich` has."""


def refuse_unknown(
    face: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Check that a function has all options that are passed to it."""
    options = list(known)
    for name in given:
        if name not in options:
            remedy = (elsewhere or {}).get(name) or NO_SCOPE.get(name) or did_you_mean(name, options)
            raise ConfigurationError(f"{name!r} is not an option of {face}; {remedy}")


def refuse_journal(face: str, journal: object) -> None:
    """Check that no journal is given to a function without one."""
    if journal is not None:
        raise ConfigurationError(
            f"journal is {describe(journal)}, which {face} does not take: known answers are joined with a DataFrame. "
            "Use enrich(df, enricher, on=..., journal=...), and createOrReplaceTempView on its result for SQL"
        )


def require_portable(what: str, travels: object) -> None:
    """Check that an object can be pickled. The message calls it `what`."""
    try:
        cloudpickle.dumps(travels)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be pickled, so it cannot be sent to the workers: {describe_error(error).rstrip('.')}. "
            "Make clients, locks and sessions in its open(), and let its functions capture only plain values"
        ) from None
