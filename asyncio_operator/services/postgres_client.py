"""The one place that connects to PostgreSQL: for the driver's questions, for lookups, and for coordinators of budgets.

Between this process and the server may be a pooler, such as PgBouncer, that gives each transaction to any session that
is free. So nothing that is sent from here, or by asyncpg, may stay in a session of a pooler: other clients use it next.
`Session.own` says whose session it is.

A connection is usable when it has answered a first statement. The time to connect limits both, because a server may
accept a client and then be silent.

Here alone errors of asyncpg, and of the connection below it, become errors of this package. `CAUSES` gives, for the
SQLSTATE of an error (the longest prefix wins), what happened and whether the same call may succeed later. A failing
batch is split until the key stands alone, where a single key may be to blame; of the others, a message names no key.
Errors of the server are matched by SQLSTATE only, because its texts are translated.

Some errors come before the first statement: of options of the connection string, TLS, files. For a wrong option at
start-up the server uses the same SQLSTATE as for a wrong name in a statement. The difference is its severity, FATAL,
and the option's name in its text, which is not translated. asyncpg sends unknown options to the server as settings, and
raises errors of the operating system for a missing file.

Sources: PostgreSQL documentation, "Database Connection Control Functions" and appendix "PostgreSQL Error Codes";
asyncpg's connect_utils.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import asyncpg

from asyncio_operator.errors import ConfigurationError, EnricherError
from asyncio_operator.hints import did_you_mean
from asyncio_operator.services import causes
from asyncio_operator.services.causes import Cause, StatementTimeoutError, TooLargeError, caused, own_words
from asyncio_operator.services.postgres_dsn import OWN_SESSION, options_of, secrets_of

FIRST = f"""
    SELECT CASE WHEN context = 'user' AND reset_val = '0' THEN pg_catalog.set_config(name, '2000', false) END
    FROM pg_catalog.pg_settings
    WHERE name = 'client_connection_check_interval' AND {OWN_SESSION}
"""
"""Returns no row behind a pooler.

In a session of our own it makes the server check every two seconds whether its client still exists, and end the
statement if not: a killed process does not close its connection properly. Since PostgreSQL 14. A value that an
administrator has set stays, and so does one that the user may not set.
"""


class ConnectingLoop:
    """The event loop, as asyncpg uses it while it connects.

    asyncpg asks for TLS through a protocol with a future, `on_data`. If it is cancelled before it waits for that
    future, no task does, and asyncio logs the error that the end of the connection puts into it. So a connection that
    fails, or is cancelled, takes its future with it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    async def create_connection(self, factory: Callable[[], Any], *address: Any, **options: Any) -> Any:
        futures: list[asyncio.Future[Any]] = []

        def make() -> Any:
            protocol = factory()
            if hasattr(protocol, "on_data"):
                futures.append(protocol.on_data)
            return protocol

        try:
            return await self.loop.create_connection(make, *address, **options)
        except BaseException:
            for future in futures:
                future.cancel()
            raise


class Session(asyncpg.Connection):  # type: ignore[misc]
    """A connection that leaves nothing in a session that others use. `own` says whether every statement runs in one
    session, which no other client uses; it is False behind a pooler. Only where it is True may a statement set
    something for its session."""

    own = True

    _server_caps: Any

    def __init__(self, protocol: Any, transport: Any, loop: ConnectingLoop, *more: Any) -> None:
        super().__init__(protocol, transport, loop.loop, *more)

    async def start(self) -> None:
        """Get the answer to a first statement, and learn from it whose session it is."""
        # On some systems a server cannot check its client, and refuses the setting.
        with contextlib.suppress(asyncpg.PostgresError):
            self.own = await self.execute(FIRST.format(process=self.get_server_pid())) != "SELECT 0"
        if not self.own:
            # asyncpg would switch jit off to ask for types, and on again, perhaps in the session of another client.
            self._server_caps = self._server_caps._replace(jit=False)

    def _get_unique_id(self, prefix: str) -> str:
        """The name of a prepared statement. asyncpg numbers them, alike in every process.

        Behind a pooler such a number could name the statement of another client, whose rows would be taken for the
        answer. A name that occurs once is an error there.
        """
        return f"__asyncio_operator_{prefix}_{uuid4().hex}__"


async def connect(
    dsn: str,  # Where to connect to.
    seconds: float | None,  # For all of it; None: no limit.
    application: str,  # What the server calls the client, unless the DSN says that.
    *,
    # Prepared statements that it keeps; with 0 no statement has a name, so that each is right behind every pooler.
    statement_cache_size: int = 0,
    kind: type[Session] = Session,
    command_timeout: float | None = None,  # Seconds for each statement; None: no limit.
) -> Any:
    """A new connection of the class `kind` that has answered a first statement."""
    settings = {} if "application_name" in options_of(dsn) else {"application_name": application}
    async with asyncio.timeout(seconds):
        session: Any = await asyncpg.connect(
            dsn,
            timeout=seconds,
            server_settings=settings,
            statement_cache_size=statement_cache_size,
            max_cacheable_statement_size=0,
            command_timeout=command_timeout,
            connection_class=kind,
            loop=ConnectingLoop(asyncio.get_running_loop()),
        )
        try:
            await session.start()
        except BaseException:
            session.terminate()
            raise
    return session


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
        "the server cancelled the query, at its statement_timeout or on request",
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
    state = getattr(error, "sqlstate", None)
    match error:
        case asyncpg.ClientConfigurationError():
            return NOT_UNDERSTOOD
        # With TLS 1.3 a client learns only after the handshake that its certificate was refused.
        case asyncpg.ConnectionDoesNotExistError() if "ALERT" in str(getattr(error.__cause__, "reason", "")):
            return TLS_FAILED
        case asyncpg.PostgresError() if state in POOLER_STATES and POOLER_IS_FULL.search(str(error)):
            return TOO_MANY
        case asyncpg.PostgresError() if (option := _option(error, dsn)) is not None:
            return option
        case _ if isinstance(state, str):
            return next(CAUSES[state[:length]] for length in range(len(state), -1, -1) if state[:length] in CAUSES)
        case ConfigurationError():
            return NO_DSN
        case TimeoutError():
            return NO_ANSWER
        case ConnectionAbortedError():  # by the pool
            return LOST
        case ssl.SSLCertVerificationError():
            return UNVERIFIED
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():
            return NOT_REACHABLE
        case ssl.SSLError():
            return TLS_FAILED
        case ConnectionError() if "rejected SSL upgrade" in str(error):
            return NO_TLS
        case OSError():
            if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError | IsADirectoryError):
                options = options_of(dsn)
                for name in FILES:
                    path = options.get(name)
                    if path and not (os.path.isfile(path) and os.access(path, os.R_OK)):
                        return Cause(
                            f"{name} in the dsn is {path!r}, which this process cannot read; it must be on every "
                            "machine"
                        )
            return NOT_REACHABLE
        case asyncpg.TargetServerAttributeNotMatched():
            return NO_SUCH_SERVER
        case asyncpg.InterfaceError() | asyncpg.InternalClientError():
            return LOST
    return UNREADABLE


def _option(error: asyncpg.PostgresError, dsn: str) -> Cause | None:
    severity = getattr(error, "severity_en", None) or getattr(error, "severity", None)
    if severity != "FATAL" or error.sqlstate not in OPTION_STATES:
        return None
    for name in options_of(dsn).keys() - OPTIONS:
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)):
            # Many connection strings have options that only libpq has.
            remedy = f"asyncpg has others: {did_you_mean(name, sorted(OPTIONS))}"
            if name == "connect_timeout":
                remedy = "use the argument connect_timeout"
            return Cause(
                f"the option {name!r} of the dsn is unknown to asyncpg, which sent it as a setting, and the server "
                f"refuses that; {remedy}"
            )
    return None
