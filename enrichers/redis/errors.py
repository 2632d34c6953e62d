"""The one place where errors of redis-py, and of the connection below it, become errors of this package.

`CAUSES` is read from top to bottom: the first class that an error is of says what happened, whether the same command
may succeed later, and whether any other key would have had the same answer.
"""

from __future__ import annotations

import ssl
from typing import NamedTuple

from redis import exceptions

from asyncio_operator import ConfigurationError, EnricherError
from enrichers.redis.url import without_secrets


class Cause(NamedTuple):
    """What an error means; `retryable` is None where that is not known."""

    text: str
    retryable: bool | None
    any_key: bool = True
    overload: bool = False


CREDENTIALS = Cause("the server refuses the credentials", retryable=False)
CLUSTER = Cause("the server is one of a cluster, and the enricher asks one server only", retryable=False)
WAITING = Cause("the server cannot answer yet", retryable=True)

CAUSES: tuple[tuple[type[BaseException], Cause], ...] = (
    (ConfigurationError, Cause("there is no URL", retryable=None)),
    (exceptions.AuthenticationError, CREDENTIALS),
    (exceptions.AuthorizationError, CREDENTIALS),
    (exceptions.AuthenticationWrongNumberOfArgsError, CREDENTIALS),
    (exceptions.BusyLoadingError, WAITING),
    (exceptions.ClusterDownError, WAITING),
    (exceptions.TryAgainError, WAITING),
    (exceptions.AskError, CLUSTER),
    (exceptions.ClusterCrossSlotError, CLUSTER),
    (exceptions.TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (exceptions.ConnectionError, Cause("the connection was lost, or the server is not reachable", retryable=True)),
    (TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (OSError, Cause("the server is not reachable", retryable=True)),
    (exceptions.ResponseError, Cause("the server refuses the command", retryable=False, any_key=False)),
    (Exception, Cause("the answer cannot be read", retryable=None, any_key=False)),
)

CODES = {
    "WRONGTYPE": Cause("the value is of another type of Redis", retryable=False, any_key=False),
    "NOPERM": Cause("the permissions do not suffice", retryable=False),
    "WRONGPASS": CREDENTIALS,
    "NOAUTH": CREDENTIALS,
    "BUSY": WAITING,
    "LOADING": WAITING,
    "MASTERDOWN": WAITING,
}
"""By the first word of an answer that has no class of its own."""

CERTIFICATE = Cause("the certificate of the server does not verify", retryable=False)
CROWDED = Cause("the server has too many clients", retryable=True, overload=True)


def cause_of(error: BaseException) -> Cause:
    """What happened."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ssl.SSLCertVerificationError):
            return CERTIFICATE
        inner = inner.__cause__ or inner.__context__
    text = str(error)
    if "max number of clients" in text:
        return CROWDED
    if isinstance(error, exceptions.NoPermissionError):
        return CODES["NOPERM"]._replace(any_key="key" not in text)
    code = text.partition(" ")[0]
    if isinstance(error, exceptions.ResponseError) and code in CODES:
        return CODES[code]
    return next(cause for kind, cause in CAUSES if isinstance(error, kind))


def lookup_error(error: Exception, subject: str, key: str, url: str) -> EnricherError:
    """The error of a lookup. `subject` names the enricher, `key` what was asked for, `url` what must not be shown."""
    cause = cause_of(error)
    own = " ".join(str(error).split())
    told = without_secrets(own, url)
    detail = f" ({told if len(told) <= 300 else told[:297] + '...'})" if told else f" ({type(error).__name__})"
    raised = EnricherError(
        f"{subject}{'' if cause.any_key else f', {key}'}: {cause.text}{detail}",
        retryable=cause.retryable,
        overload=cause.overload,
        any_key=cause.any_key,
    )
    raised.__cause__ = error if told == own else None
    raised.__suppress_context__ = True
    return raised
