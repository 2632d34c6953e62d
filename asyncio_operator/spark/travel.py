"""Whether something can travel to the workers."""

from __future__ import annotations

from pyspark.cloudpickle import cloudpickle

from asyncio_operator.errors import ConfigurationError, describe_error


def require_portable(what: str, travels: object) -> None:
    """Check that something can be pickled; the message calls it `what`.

    Raises:
        ConfigurationError: it cannot.
    """
    try:
        cloudpickle.dumps(travels)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be pickled, so it cannot travel to the workers: {describe_error(error)}. "
            "Make clients, locks and sessions in its open(), and let its functions capture plain values only"
        ) from None
