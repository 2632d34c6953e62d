"""Errors before the first statement: options of the connection string, TLS, files.

For a wrong option at start-up the server uses the same SQLSTATE as for a wrong name in a statement. The difference is
its severity, FATAL, and the option's name in its text, which is not translated. asyncpg sends unknown options to the
server as settings, and raises errors of the operating system for a missing file.

Source: PostgreSQL documentation, "Database Connection Control Functions", "Error Codes"; asyncpg's connect_utils.
"""

from __future__ import annotations

import os
import re
import ssl

import asyncpg

from asyncio_operator.hints import did_you_mean
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.postgres_dsn import options_of

OPTIONS = {
    *("host", "port", "dbname", "database", "user", "password", "passfile", "service", "target_session_attrs"),
    *("sslmode", "sslnegotiation", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
}
"""Options that asyncpg uses itself. It sends all others to the server."""

FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")

OPTION_STATES = {"08P01", "22023", "42501", "42601", "42704", "55P02"}
"""States for an option that is unknown (08P01 is PgBouncer's), has an invalid value, or may not be set."""

TOO_MANY = Cause("the server has too many connections", retryable=True, overload=True)
POOLER_STATES = {"08P01", "XX000"}
POOLER_IS_FULL = re.compile(
    r"\(max_(db_|user_)?client_conn|too many clients|max clients? (connections )?reached", re.IGNORECASE
)
"""Messages of poolers at their limit (PgBouncer, Supavisor): in English, with SQLSTATEs that have another meaning."""

NOT_UNDERSTOOD = Cause("the dsn is not understood")
NO_TLS = Cause("the server speaks no SSL (TLS), which sslmode in the dsn demands; leave it out if that is intended")
UNVERIFIED = Cause("the server's certificate does not verify against sslrootcert of the dsn, or is not for its host")
TLS_FAILED = Cause("TLS failed; see sslrootcert, sslcert and sslkey in the dsn, and the server's log")


def refused(error: BaseException, dsn: str) -> Cause | None:
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
