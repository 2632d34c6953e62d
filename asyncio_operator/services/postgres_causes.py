"""The one place where errors of asyncpg, and of the connection below it, become errors of this package.

`CAUSES` gives, for the SQLSTATE of an error (the longest prefix wins), what happened and whether the same call may
succeed later. A failing batch is split until the key stands alone, where a single key may be to blame; of the others, a
message names no key. Errors of the server are matched by SQLSTATE only, because its texts are translated. No frame of
asyncpg stays with an error: its variables hold the password, and some tools log variables.

Some errors come before the first statement: of options of the connection string, TLS, files. For a wrong option at
start-up the server uses the same SQLSTATE as for a wrong name in a statement. The difference is its severity, FATAL,
and the option's name in its text, which is not translated. asyncpg sends unknown options to the server as settings, and
raises errors of the operating system for a missing file.

Sources: PostgreSQL documentation, "Database Connection Control Functions" and appendix "PostgreSQL Error Codes";
asyncpg's connect_utils.
"""

from __future__ import annotations

import os
import re
import ssl

import asyncpg

from asyncio_operator.errors import ConfigurationError, EnricherError
from asyncio_operator.hints import did_you_mean
from asyncio_operator.services import causes
from asyncio_operator.services.causes import Cause, StatementTimeoutError, TooLargeError, caused, own_words
from asyncio_operator.services.postgres_dsn import options_of, secrets_of

POOLER = "below the statement, as behind a pooler that keeps no prepared statements: set statement_cache_size=0"

UNSENT = Cause("a text of its rows cannot be sent as UTF-8", any_key=False)
"""Keys that the database cannot hold are misses, and no error."""

TOO_MANY = Cause("the server has too many connections", retryable=True, overload=True)

CAUSES = {
    "": Cause("the server answered with an error", any_key=False),
    "08": Cause("the server closed the connection", retryable=True),
    "08P01": Cause("the server, or a pooler before it, reports a violation of the protocol", retryable=True),
    "22": Cause("the server cannot take a value", any_key=False),
    "22003": Cause("a value that is computed for its rows is out of range", any_key=False),
    "22012": Cause("what is computed for its rows divides by zero", any_key=False),
    "22021": UNSENT,
    "22P05": UNSENT,
    "25006": Cause("the server is read-only, as after a failover", retryable=True),
    "25P03": Cause("the server closed the connection", retryable=True),
    "25P04": Cause("the server closed the connection", retryable=True),
    "26000": Cause(f"the session has changed {POOLER}"),
    "28": Cause("the server refuses the credentials"),
    "3D": Cause("there is no such database"),
    "40": Cause("the server rolled the transaction back", retryable=True),
    "40002": Cause("a constraint was violated", any_key=False),
    "42": Cause("the server refuses the statement"),
    "42P05": Cause(f"the session has changed {POOLER}"),
    "42501": Cause("the privileges do not suffice"),
    "53": Cause("the server is out of resources", retryable=True),
    "53300": TOO_MANY,
    "54": Cause("the statement or its result is larger than the server allows", any_key=False, kind=TooLargeError),
    "55P03": Cause("the server could not get a lock", retryable=True),
    "57014": Cause(
        "the server cancelled the query, at its statement_timeout or by an order",
        retryable=True,
        kind=StatementTimeoutError,
    ),
    "57P": Cause("the server closed the connection", retryable=True),
    "57P03": Cause("the server is starting or shutting down", retryable=True),
    "57P04": Cause("the database was dropped"),
    "58": Cause("the server has a system error", retryable=True),
    "58P01": Cause("a file that the query reads does not exist", any_key=False),
    "72": Cause("the server has removed old rows that the statement had to read (snapshot too old)", retryable=True),
    "XX": Cause("the server has an internal error", retryable=None, any_key=False),
}

NO_DSN = Cause("there is no connection string", retryable=None)
NOT_REACHABLE = Cause("the server is not reachable", retryable=True)
NO_SUCH_SERVER = Cause("no server matches target_session_attrs in the dsn", retryable=True)
NO_ANSWER = Cause("the server did not answer in time", retryable=True, kind=StatementTimeoutError)
LOST = Cause("the connection was lost", retryable=True)
UNREADABLE = Cause("the key or its rows cannot be converted", any_key=False)

NOT_UNDERSTOOD = Cause("the dsn is not understood")
NO_TLS = Cause("the server speaks no SSL (TLS), which sslmode in the dsn demands; leave it out if that is intended")
UNVERIFIED = Cause("the server's certificate does not verify against sslrootcert of the dsn, or is not for its host")
TLS_FAILED = Cause("TLS failed; see sslrootcert, sslcert and sslkey in the dsn, and the server's log")

OPTIONS = {
    *("host", "port", "dbname", "database", "user", "password", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslnegotiation", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
}
"""Options that asyncpg uses itself. It sends all others to the server."""

FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

OPTION_STATES = {"08P01", "22023", "42501", "42601", "42704", "55P02"}
"""States for an option that is unknown (08P01 is PgBouncer's), has an invalid value, or may not be set."""

POOLER_STATES = {"08P01", "XX000"}
POOLER_IS_FULL = re.compile(
    r"\(max_(db_|user_)?client_conn|too many clients|max clients? (connections )?reached", re.IGNORECASE
)
"""Messages of poolers at their limit (PgBouncer, Supavisor): in English, with SQLSTATEs that have another meaning."""


def lookup_error(error: Exception, subject: str, keys: str, dsn: str, *, any_key: bool | None = None) -> EnricherError:
    """The error of a lookup. `subject` names the enricher and its source, `keys` the keys that were asked for.
    `any_key` replaces what is usual for the SQLSTATE."""
    # An error that asyncpg makes itself, as for a lost connection, has a SQLSTATE too, and no severity.
    answered = getattr(error, "severity", None) is not None
    cause = cause_of(error, dsn)
    if any_key is not None:
        cause = cause._replace(any_key=any_key)
    return causes.lookup_error(error, cause, subject, secrets_of(dsn), key=keys, answered=answered)


def source_error(error: Exception, subject: str, dsn: str, remedy: str = "") -> ConfigurationError:
    """The error of asking a source for its columns, on the driver."""
    secrets = secrets_of(dsn)
    message = f"{subject}: {cause_of(error, dsn).text}{own_words(error, secrets)}{remedy}"
    return caused(ConfigurationError(message), error, secrets)


def cause_of(error: BaseException, dsn: str) -> Cause:
    """The cause of an error on a connection made with `dsn`: the server's, asyncpg's, or the system's."""
    problem = _refused(error, dsn)
    if problem is not None:
        return problem
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return next(CAUSES[state[:length]] for length in range(len(state), -1, -1) if state[:length] in CAUSES)
    match error:
        case ConfigurationError():
            return NO_DSN
        case TimeoutError():
            return NO_ANSWER
        case ConnectionAbortedError():  # by the pool
            return LOST
        case OSError():
            return NOT_REACHABLE
        case asyncpg.TargetServerAttributeNotMatched():
            return NO_SUCH_SERVER
        case asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return LOST
    return UNREADABLE


def _refused(error: BaseException, dsn: str) -> Cause | None:
    """The cause if an error shows that `dsn` cannot connect, or None for another kind of error."""
    match error:
        case asyncpg.ClientConfigurationError():
            return NOT_UNDERSTOOD
        case asyncpg.ConnectionDoesNotExistError():
            # With TLS 1.3 a client learns only after the handshake that its certificate was refused.
            return TLS_FAILED if "ALERT" in str(getattr(error.__cause__, "reason", "")) else None
        case asyncpg.PostgresError():
            if error.sqlstate in POOLER_STATES and POOLER_IS_FULL.search(str(error)):
                return TOO_MANY
            return _option(error, dsn)
        case ssl.SSLCertVerificationError():
            return UNVERIFIED
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
            return None  # the connection was lost
        case ssl.SSLError():
            return TLS_FAILED
        case FileNotFoundError() | NotADirectoryError() | PermissionError() | IsADirectoryError():
            return _file(dsn)
        case ConnectionError() if "rejected SSL upgrade" in str(error):
            return NO_TLS
    return None


def _option(error: asyncpg.PostgresError, dsn: str) -> Cause | None:
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    if severity != "FATAL" or error.sqlstate not in OPTION_STATES:
        return None
    for name in options_of(dsn).keys() - OPTIONS:
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)):
            return Cause(
                f"the option {name!r} of the dsn is none of asyncpg's, which took it for a setting of the server, and "
                f"that does not take it{_instead(name)}"
            )
    return None


def _instead(name: str) -> str:
    """What to do about an option. Many connection strings contain options that only libpq has."""
    if name == "connect_timeout":
        return "; use the argument connect_timeout"
    return f"; asyncpg has others: {did_you_mean(name, sorted(OPTIONS))}"


def _file(dsn: str) -> Cause | None:
    options = options_of(dsn)
    for name in FILES:
        path = options.get(name)
        if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
            return Cause(f"{name} in the dsn is {path!r}, which this process cannot read; it must be on every machine")
    return None
