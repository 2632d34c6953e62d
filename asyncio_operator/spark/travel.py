"""Checks that an object can be sent to the workers."""

from __future__ import annotations

from pyspark.cloudpickle import cloudpickle

from asyncio_operator.errors import ConfigurationError, describe_error


def require_portable(what: str, travels: object) -> None:
    """Check that an object can be pickled. The message calls it `what`.

    Raises:
        ConfigurationError: it cannot be pickled.
    """
    try:
        cloudpickle.dumps(travels)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be pickled, so it cannot be sent to the workers: {describe_error(error)}. "
            "Make clients, locks and sessions in its open(), and let its functions capture only plain values"
        ) from None
