"""Converts errors of redis-py, and of the connection below it, to errors of this package. No other module does.

`CAUSES` is searched from top to bottom. The first class that matches says what happened, whether the same command may
succeed later, and whether every other key would have got the same answer.
"""

from __future__ import annotations

import ssl

from redis import exceptions

from asyncio_operator.errors import ConfigurationError, EnricherError
from asyncio_operator.services import causes
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.redis_client import secrets_of
from asyncio_operator.services.secrets import chain

CREDENTIALS = Cause(
    "the server refuses the credentials: check user and password of the URL, as in redis://user:password@host, or "
    "redis://:password@host for the user that is called default, both percent-encoded"
)
NO_PASSWORD = Cause(
    "the server refuses the credentials: it wants a password and got none; the URL takes it, percent-encoded, as in "
    "redis://:password@host, or redis://user:password@host"
)
NO_PERMISSION = Cause("the permissions do not suffice")
NEEDLESS = Cause(
    "the server refuses the credentials: it has no password for the user that is called default; leave it out of the "
    "URL, or name another user, as in redis://user:password@host"
)
CLUSTER = Cause("the server is one of a cluster: set cluster=True, or ask the cluster's own endpoint")
NO_CLUSTER = Cause("the server is not one of a cluster, or its user may not run CLUSTER SLOTS: leave out cluster=True")
WAITING = Cause("the server cannot answer yet", retryable=True)
NO_WRITES = Cause("the server takes no writes now", retryable=True)

CAUSES: tuple[tuple[type[BaseException], Cause], ...] = (
    (ConfigurationError, Cause("there is no URL", retryable=None)),
    (exceptions.AuthenticationError, CREDENTIALS),
    (exceptions.AuthorizationError, CREDENTIALS),
    (exceptions.AuthenticationWrongNumberOfArgsError, CREDENTIALS),
    (exceptions.BusyLoadingError, WAITING),
    (exceptions.ClusterDownError, WAITING),
    (exceptions.TryAgainError, WAITING),
    (exceptions.RedisClusterException, WAITING),
    (exceptions.AskError, CLUSTER),
    (exceptions.ClusterCrossSlotError, CLUSTER),
    (exceptions.TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (exceptions.ConnectionError, Cause("the connection was lost, or the server is not reachable", retryable=True)),
    (TimeoutError, Cause("the server did not answer in time", retryable=True)),
    (OSError, Cause("the server is not reachable", retryable=True)),
    (exceptions.ResponseError, Cause("the server refuses the command", any_key=False)),
    (Exception, Cause("the answer cannot be read", retryable=None, any_key=False)),
)

CODES = {
    "WRONGTYPE": Cause("the value is of another type of Redis", any_key=False),
    "NOPERM": NO_PERMISSION,
    "WRONGPASS": CREDENTIALS,
    "NOAUTH": NO_PASSWORD,
    "BUSY": WAITING,
    "LOADING": WAITING,
    "MASTERDOWN": WAITING,
}
"""Causes by the first word of an answer that has no error class of its own."""

CERTIFICATE = Cause("the certificate of the server does not verify")

# Versions of redis-py map error codes to different classes, and servers wrap the errors of scripts in different ways.
# The server's words are the same in all versions.
WORDS = {
    "READONLY ": NO_WRITES,
    "against a read only replica": NO_WRITES,  # in a script, since Redis 7
    "command not allowed when used memory": NO_WRITES,
    "MISCONF ": NO_WRITES,
    "NOREPLICAS ": NO_WRITES,
    "called with the client already authenticated": NO_PASSWORD,
    "Authentication required": NO_PASSWORD,
    # In a script, by Redis up to 6 and by later ones.
    "The user executing the script can't": NO_PERMISSION,
    "ACL failure in script": NO_PERMISSION,
    "without any password configured": NEEDLESS,
    "no password is set": NEEDLESS,
    "Cluster mode is not enabled": NO_CLUSTER,
    "max number of clients": Cause("the server has too many clients", retryable=True, overload=True),
}
"""Causes by words of an answer that say more than its class."""


def cause_of(error: BaseException) -> Cause:
    """The cause of an error."""
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in chain(error)):
        return CERTIFICATE
    if isinstance(error, exceptions.RedisClusterException) and error.__cause__ is not None:
        return cause_of(error.__cause__)
    text = str(error)
    for words, cause in WORDS.items():
        if words in text:
            return cause
    if isinstance(error, exceptions.NoPermissionError):
        return CODES["NOPERM"]._replace(any_key="key" not in text)
    code = text.partition(" ")[0]
    if isinstance(error, exceptions.ResponseError) and code in CODES:
        return CODES[code]
    return next(cause for kind, cause in CAUSES if isinstance(error, kind))


def lookup_error(error: Exception, subject: str, key: str, url: str) -> EnricherError:
    """The error of a lookup. `subject` names the enricher, `key` the keys. Secrets of `url` are hidden."""
    answered = isinstance(error, exceptions.ResponseError)
    return causes.lookup_error(error, cause_of(error), subject, secrets_of(url), key=key, answered=answered)
