"""`SqlEnricher`: rows of a table, or of a query, from any database with an asynchronous driver for SQLAlchemy.

On the driver it asks the database once for names and types. What it learned is sent to the workers, which need no such
question. Connections of workers are never sent. A lookup that passes its deadline is cancelled from outside. Nothing is
retried or cached here. The URL is used to connect, and never shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from asyncio_operator import ConfigurationError, ResultError
from asyncio_operator.enricher import Found, as_schema, duration, positive_int
from asyncio_operator.enricher import describe as shown
from asyncio_operator.services.secret_source import location, shown_source
from enrichers.databases.enricher import DatabaseEnricher, check_table_or_query, shown_query, table_name
from enrichers.names import names_of, shown_keys
from enrichers.span_attributes import database
from enrichers.sql.causes import CHARSET, cause_of, lookup_error, source_error
from enrichers.sql.column_types import checked
from enrichers.sql.connections import Connections, Database
from enrichers.sql.inspection import Selection, describe
from enrichers.sql.key_select import KEYS, AbsentError, Described, Statement, StrangerError
from enrichers.sql.urls import CONNECT_ARGS, URL, Arguments, Url
from enrichers.typed import MisfitError

if TYPE_CHECKING:
    from asyncio_operator.enricher import StructType


@dataclass(frozen=True, init=False, repr=False)
class SqlEnricher(DatabaseEnricher[Described, Connections, Statement]):
    """Rows from any database that SQLAlchemy reaches through an asynchronous driver.

    Args:
        url: ``dialect+driver://user:password@host:port/database``, as SQLAlchemy has it, or a function without
            arguments that returns it. The function is called in a thread, for every new connection and once by `open`.
            A string is sent to the workers inside the job; a function keeps the password out of the job.
        table: a table or view: a name, ``"schema.table"``, or a sequence of parts that are taken as they are.
        key: the key column, or a list of key columns.
        columns: the columns to add; by default all except the key columns.
        query: a SELECT instead of `table`, with the parameter ``:keys``, as in ``WHERE id IN :keys``. Its result must
            contain the key columns too, with unchanged keys. Several rows of a key keep its order.
        schema: names and types of the columns of the source, the key columns too, as a `pyarrow.Schema`, a `StructType`
            or a Spark DDL string. A query needs it. The columns of a table are in its catalog.
        connect_args: arguments of the driver by name, such as an `ssl.SSLContext`, or a function without arguments that
            returns them. A function keeps them out of the job, and can make objects that cannot be sent.
        pool_size: maximum number of connections of one worker. 4 by default: a few keep a Python process busy with
            batches, and all workers share the server's limit.
        max_batch: maximum number of keys of one call. 500 by default: above, the time per key hardly falls any more.
        connect_timeout: seconds, or a timedelta, to make a connection, and for a function to return; 0: only the
            lookup's own deadline.

    Raises:
        ConfigurationError: an argument is wrong. `schema` and `key_schema` raise it if the database cannot be reached,
            or does not have the table or a column.
    """

    _kind = "SqlEnricher"

    url: Url
    table: tuple[str, ...] | None
    key: tuple[str, ...]
    columns: tuple[str, ...] | None
    query: str | None
    connect_args: Arguments | None = field(hash=False)
    pool_size: int
    max_batch: int
    connect_timeout: float
    _given: pa.Schema | None
    _description: Described | None = field(compare=False)
    _runtime: tuple[Connections, Statement] | None = field(compare=False)

    def __init__(
        self,
        url: Url,
        *,
        table: str | Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        query: str | None = None,
        schema: pa.Schema | str | StructType | None = None,
        connect_args: Arguments | None = None,
        pool_size: int = 4,
        max_batch: int = 500,
        connect_timeout: float | timedelta = 10.0,
    ) -> None:
        URL.check_source(url)
        if connect_args is not None:
            CONNECT_ARGS.check_source(connect_args)
        check_table_or_query(table, query)
        if query is not None:
            parameters = [*sa.text(query).compile().params]
            if parameters != [KEYS]:
                found = ", ".join(f":{name}" for name in parameters) or "none"
                raise ConfigurationError(
                    f"query is {shown(query)}, with the parameters {found}; it must have one, the list of keys, as in "
                    f"WHERE id IN :{KEYS}; a literal colon is written \\:"
                )
            if schema is None:
                raise ConfigurationError(
                    "schema is None; with a query it must name the columns of the result and their types, the key "
                    "columns too, as in schema='id bigint, name string'"
                )
        values = {
            "url": url,
            "table": None if table is None else table_name(table),
            "key": names_of("key", key),
            "columns": None if columns is None else names_of("columns", columns),
            "query": query,
            "connect_args": connect_args,
            "pool_size": positive_int("pool_size", pool_size),
            "max_batch": positive_int("max_batch", max_batch),
            "connect_timeout": duration("connect_timeout", connect_timeout),
            "_given": None if schema is None else checked(as_schema(schema)),
            "_description": None,
            "_runtime": None,
        }
        for name, value in values.items():
            self._set(name, value)

    def call_attributes(self) -> dict[str, str | int]:
        """With OpenTelemetry: the server, the database and the table."""
        url = self._opened()[0].database.url
        return database(sa.make_url(url).get_backend_name(), url, "SELECT", ".".join(self.table or ()))

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for keys, aligned with them, from one statement, or from several if the dialect takes fewer
        parameters.

        Raises:
            EnricherError: `retryable` if the connection or the server is the cause; otherwise one of the keys may be.
        """
        connections, statement = self._opened()
        canonical = self._canonical(keys)
        found: dict[Any, Any] = {}
        for *call, asked in statement.calls(canonical):
            found |= await self._found(connections, statement, call, asked, keys)
        return [*map(found.get, canonical)]

    async def rows(self) -> Sequence[dict[str, Any]]:
        """Every row of the table that has a key, with its key columns, from one statement: for a whole table in memory.

        Raises:
            ConfigurationError: the enricher has a query, which cannot run without keys.
            EnricherError: see `lookup_many`.
        """
        connections, statement = self._opened_for_all()
        found = await self._found(connections, statement, (statement.whole(), {}), None, ())
        keyed = (
            (dict(zip(self.key, key if len(self.key) > 1 else (key,), strict=True)), rows)
            for key, rows in found.items()
        )
        return [{**key, **row} for key, rows in keyed for row in (rows if isinstance(rows, list) else (rows,))]

    async def _found(
        self,
        connections: Connections,
        statement: Statement,
        call: Sequence[Any],
        asked: Sequence[Any] | None,
        keys: Sequence[Any],
    ) -> dict[Any, Any]:
        """The rows of one statement, by canonical key. `asked` are the canonical keys of the statement."""
        try:
            names, records = await connections.fetch(*call)
        except Exception as error:
            if asked is not None and cause_of(error) is CHARSET and (parts := _parts(asked)) is not None:
                # The keys that the character set of the column has are found; the others are misses (law L9).
                found: dict[Any, Any] = {}
                for *again, part in (one for half in parts for one in statement.calls(half)):
                    found |= await self._found(connections, statement, again, part, keys)
                return found
            problem = lookup_error(error, self._subject(), shown_keys(keys), connections.database.secrets)
        else:
            try:
                return statement.collect(names, records, asked)
            except MisfitError as error:
                problem = ResultError(
                    f"{self._subject()}, key {shown(error.row)}: {error.message_with(shown)}; name another type for it "
                    "with schema=, convert it in a query, or leave it out with columns="
                )
            except StrangerError as error:
                problem = ResultError(
                    f"{self._subject()}: the result has a row of the key {shown(error.args[0])}, which was not asked "
                    "for; every row must hold its key exactly as it was given (also in upper and lower case and blanks "
                    "at the end, which many collations ignore), and none may be null"
                )
            except AbsentError as error:
                problem = ResultError(
                    f"{self._subject()}: the result no longer has the column {error.args[0]!r}; start the job again if "
                    "it was renamed",
                    any_key=True,
                )
        raise problem

    async def _describe(self) -> Described:
        database = self._database()
        await database.engine()
        subject = f"{self._subject()} at {location(database.url)}"
        selection = Selection(self.table, self.query, self.key, self.columns, self._given, subject)
        try:
            return await database.ask(lambda connection: describe(connection, selection, database.secrets))
        except ConfigurationError:
            raise
        except Exception as error:
            problem = source_error(error, subject, database.secrets)
        raise problem

    async def _connect(self, description: Described) -> tuple[Connections, Statement]:
        database = self._database()
        await database.engine()
        connections = Connections(database, self._subject(), self.pool_size)
        return connections, Statement(description, self.table, self.query)

    def _database(self) -> Database:
        return Database(self.url, self.connect_args, self.connect_timeout or None)

    def _source(self) -> str:
        return f"table={'.'.join(self.table or ())!r}" if self.query is None else shown_query(self.query)

    def __repr__(self) -> str:
        return self._shown(shown_source(self.url))


def _parts(asked: Sequence[Any]) -> list[Sequence[Any]] | None:
    """The halves of keys; nothing for a single key with a character beyond ASCII; None for any other single key."""
    if len(asked) > 1:
        # Sorted by their last character, because a smaller character set often holds the beginning of a greater one.
        ordered = sorted(asked, key=_last_character)
        middle = len(ordered) // 2
        return [ordered[:middle], ordered[middle:]]
    return [] if asked and _last_character(asked[0]) > "\x7f" else None


def _last_character(key: Any) -> str:
    """The last character, by code point, of the texts of a key."""
    return max(
        "".join(part for part in (key if isinstance(key, tuple) else (key,)) if isinstance(part, str)), default=""
    )
