"""Converts errors of SQLAlchemy, and of the driver below it, to errors of this package. No other module does.

What an error means is looked up in this order: the error number of MySQL and MariaDB; whether SQLAlchemy found the
connection lost; the name of SQLite's error code; the SQLSTATE, of drivers that have one; the class of the error, which
is the same for all drivers. Drivers put errors of the statement into the class of lost connections, and the reverse, so
the class comes last. What is not known may be of one key (law X14): only errors that are known to be of the server, the
connection or the statement fail a whole batch. The words of an error are the driver's: SQLAlchemy's own text repeats
the statement and its keys.
"""

from __future__ import annotations

import re
from sqlite3 import Error as SqliteError

from sqlalchemy import exc

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.services import causes
from asyncio_operator.services.causes import Cause, StatementTimeoutError, TooLargeError, caused, own_words
from asyncio_operator.services.secrets import Secrets

NO_URL = Cause("there is no URL", retryable=None)
LOST = Cause("the connection was lost", retryable=True)
NOT_REACHABLE = Cause("the server is not reachable", retryable=True)
NO_ANSWER = Cause("the server did not answer in time", retryable=True, kind=StatementTimeoutError)
CANCELLED = Cause(
    "the server cancelled the statement, at its limit or on request", retryable=True, kind=StatementTimeoutError
)
LOCKED = Cause("the server could not get a lock", retryable=True)
ROLLED_BACK = Cause("the server rolled the statement back", retryable=True)
FULL = Cause("the server has too many connections", retryable=True, overload=True)
BUSY = Cause("the server cannot answer now", retryable=True)
CREDENTIALS = Cause("the server refuses the credentials")
NO_DATABASE = Cause("there is no such database")
PRIVILEGES = Cause("the privileges do not suffice")
STATEMENT = Cause("the server refuses the statement")
VALUE = Cause("the server cannot take a value", any_key=False)
TOO_LARGE = Cause("the statement is larger than the server allows", any_key=False, kind=TooLargeError)
DAMAGED = Cause("the database cannot be read")
UNREADABLE = Cause("the key or its rows cannot be converted", any_key=False)
UNKNOWN = Cause("the server answered with an error", retryable=None, any_key=False)
CHARSET = Cause("the character set of the column cannot hold the key", any_key=False)
NOT_UTF8 = Cause(
    "a text of its rows is not UTF-8; select it in a query as bytes, or, if it was written in LATIN1, as in "
    "convert_from(convert(convert_to(v, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'UTF8') AS v",
    any_key=False,
)
BYTES = Cause(
    "a text of its rows is not UTF-8; select it in a query as bytes, as in CAST(v AS BLOB) AS v", any_key=False
)
READ_ONLY = Cause("the server is read-only, as after a failover", retryable=True)
FULL_DISK = Cause("the server has no space left", retryable=True)

MYSQL = {
    1040: FULL,
    **dict.fromkeys((1044, 1045, 1130, 1251, 1524, 1698, 1820, 1862, 3118, 3159, 3955, 4151), CREDENTIALS),
    1049: NO_DATABASE,
    **dict.fromkeys(
        (1042, 1043, 1053, 1077, 1079, 1080, 1152, *range(1154, 1162), 1184, 1927, 2006, 2013, 2055, 4031), LOST
    ),
    **dict.fromkeys((1142, 1143, 1227, 1370), PRIVILEGES),
    **dict.fromkeys((1153, 1301, 2020), TOO_LARGE),
    **dict.fromkeys((1203, 1226), FULL),
    **dict.fromkeys((1205, 3572), LOCKED),
    **dict.fromkeys((1020, 1180, 1213, 1412, 1613, 1614), ROLLED_BACK),
    **dict.fromkeys((1015, 1016, 1023, 1024, 1030, 1037, 1038, 1041, 1047, 1135, 1206, 1637, 3032), BUSY),
    **dict.fromkeys((1290, 1792, 1836), READ_ONLY),
    **dict.fromkeys((1021, 1114), FULL_DISK),
    1129: Cause("the server refuses this machine after too many failed connections", retryable=True),
    **dict.fromkeys((1267, 1270, 1271, 1977, 3854), CHARSET),
    **dict.fromkeys((1139, 1242, 1264, 1265, 1292, 1300, 1365, 1366, 1367, 1411, 1441, 1690), VALUE),
    **dict.fromkeys((1317, 1969, 3024), CANCELLED),
    **dict.fromkeys((1054, 1064, 1109, 1146, 1193, 1305, 1356), STATEMENT),
    **dict.fromkeys((2002, 2003, 2005, 2026), NOT_REACHABLE),
}
"""Causes by the error number of MySQL, MariaDB and their client library. The server's texts are translated."""

SQLITE = {
    "SQLITE_BUSY": LOCKED,
    "SQLITE_LOCKED": LOCKED,
    "SQLITE_PROTOCOL": LOCKED,
    "SQLITE_INTERRUPT": CANCELLED,
    "SQLITE_NOMEM": BUSY,
    "SQLITE_FULL": FULL_DISK,
    "SQLITE_READONLY": READ_ONLY,
    "SQLITE_IOERR": Cause("the database cannot be read", retryable=True),
    "SQLITE_CANTOPEN": Cause("the file of the database cannot be opened"),
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_NOTADB": DAMAGED,
    "SQLITE_TOOBIG": TOO_LARGE,
    "SQLITE_SCHEMA": ROLLED_BACK,
    "SQLITE_PERM": PRIVILEGES,
    "SQLITE_AUTH": PRIVILEGES,
}
"""Causes by the name of SQLite's error code; the longest name that begins that of an error."""

_STATEMENT = re.compile(
    r"^(no such (table|column|function|collation sequence|module|index|view)|ambiguous column name|near \".*\": syntax "
    r"error|incomplete input|unrecognized token|wrong number of arguments to function|row value misused|sub-select "
    r"returns)",
    re.DOTALL,
)
"""What SQLite says of a statement that it refuses. Its code SQLITE_ERROR is also that of malformed JSON in a row, and
its texts are not translated."""

STATES = {
    "08": LOST,
    "22": VALUE,
    "22021": NOT_UTF8,
    "28": CREDENTIALS,
    "3D": NO_DATABASE,
    "40": ROLLED_BACK,
    "25006": READ_ONLY,
    "42": STATEMENT,
    "42000": UNKNOWN,  # of ODBC: also for errors that a row raises
    "42501": PRIVILEGES,
    "53": BUSY,
    "53300": FULL,
    "55P03": LOCKED,
    "57": BUSY,
    "57014": CANCELLED,
    "53100": FULL_DISK,
    "HY000": UNKNOWN,
    "HYT00": NO_ANSWER,
    "HYT01": NO_ANSWER,
}
"""Causes by SQLSTATE; the longest beginning of an error's."""

CLASSES: tuple[tuple[type[BaseException], Cause], ...] = (
    (ConfigurationError, NO_URL),
    (TimeoutError, NO_ANSWER),
    (ConnectionAbortedError, LOST),
    (OSError, NOT_REACHABLE),
    (exc.InterfaceError, LOST),
    (exc.ProgrammingError, STATEMENT),
    (exc.NotSupportedError, STATEMENT),
    (exc.DataError, VALUE),
    (exc.IntegrityError, VALUE),
    (exc.InternalError, Cause("the server has an internal error", retryable=None, any_key=False)),
    (exc.TimeoutError, NO_ANSWER),
    (exc.DisconnectionError, LOST),
    (exc.DBAPIError, UNKNOWN),
)

_PARAMETERS = re.compile("too many SQL variables")


def cause_of(error: BaseException) -> Cause:
    """The cause of an error."""
    driver = _of_driver(error)
    number = driver.args[0] if driver.args else None
    if isinstance(error, exc.DBAPIError):
        if type(number) is int and number in MYSQL:
            return MYSQL[number]
        if error.connection_invalidated:
            return LOST
    if isinstance(driver, SqliteError):
        name = getattr(driver, "sqlite_errorname", None) or ""
        if _PARAMETERS.search(str(driver)):
            return TOO_LARGE
        if _STATEMENT.search(str(driver)):
            return STATEMENT
        if str(driver).startswith("Could not decode to UTF-8"):
            return BYTES
        if name == "SQLITE_ERROR":
            return VALUE
        known = [code for code in SQLITE if name.startswith(code)]
        return SQLITE[max(known, key=len)] if known else UNREADABLE
    if isinstance(error, exc.DBAPIError):
        if type(number) is int and number >= 1000:
            return UNKNOWN
        if error.statement is None and isinstance(error, exc.OperationalError | exc.InterfaceError):
            return BUSY  # while it connected, which no key can spoil
    state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None) or number
    if isinstance(state, str) and len(state) == 5:
        found = [STATES[state[:length]] for length in (5, 2) if state[:length] in STATES]
        if found:
            return found[0]
    return next((cause for kind, cause in CLASSES if isinstance(error, kind) or isinstance(driver, kind)), UNREADABLE)


def _of_driver(error: BaseException) -> BaseException:
    """The error of the driver, below those of SQLAlchemy and of its adapters."""
    below = error.orig if isinstance(error, exc.StatementError) else None
    below = error if below is None else below
    while below.__cause__ is not None and not (
        isinstance(below, SqliteError) or hasattr(below, "sqlstate") or type(below.args[:1] and below.args[0]) is int
    ):
        below = below.__cause__
    return below


def is_lost(error: BaseException) -> bool:
    """Whether an error says that its connection was lost, so that another connection may work."""
    return cause_of(error) is LOST


def lookup_error(error: Exception, subject: str, keys: str, secrets: Secrets) -> EnricherError:
    """The error of a lookup. `subject` names the enricher and its source, `keys` the keys that were asked for."""
    driver = _of_driver(error)
    shown = driver if isinstance(driver, Exception) else error
    # Whether the error came from the database, and not from its client.
    number = driver.args[0] if driver.args else None
    if type(number) is int:
        # MySQL and MariaDB: numbers from 2000 to 2999 are those of the client library.
        answered = number >= 1000 and number // 1000 != 2
    else:
        state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
        answered = isinstance(driver, SqliteError) or (isinstance(state, str) and state[:2] not in ("08", "HY"))
    return causes.lookup_error(
        shown, cause_of(error), subject, secrets, key=keys, words=_words(shown), answered=answered
    )


def source_error(error: Exception, subject: str, secrets: Secrets, remedy: str = "") -> ConfigurationError:
    """The error of asking a source for its columns, on the driver."""
    driver = _of_driver(error)
    message = f"{subject}: {cause_of(error).text}{own_words(driver, secrets, _words(driver))}{remedy}"
    return caused(ConfigurationError(message), driver, secrets)


def _words(error: BaseException) -> str:
    """An error's own words. Those of MySQL follow its number."""
    match error.args:
        case [int(number), str(words), *_]:
            return f"{words}, error {number}"
    return str(error)
