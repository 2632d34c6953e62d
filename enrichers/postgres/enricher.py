"""`PostgresEnricher`: rows of a table, or of a query, by key, many keys in one statement.

On the driver it asks the server once for names and types, and builds the statement. The statement is sent to the
workers, which need no such query. Pools of workers are never sent. A lookup that passes its deadline is cancelled from
outside. Nothing is retried or cached here. The connection string is used to connect, and never shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import pyarrow as pa

from asyncio_operator import ConfigurationError, EnricherError, ResultError
from asyncio_operator.enricher import Found, decimals_fit, duration, function_name, natural, positive_int
from asyncio_operator.enricher import describe as shown
from asyncio_operator.services.causes import TooLargeError, own_words
from asyncio_operator.services.postgres_client import lookup_error, source_error
from asyncio_operator.services.postgres_dsn import DSN, Dsn, location, secrets_of
from enrichers.databases.enricher import DatabaseEnricher, check_table_or_query, shown_columns, shown_query, table_name
from enrichers.names import names_of, shown_keys
from enrichers.postgres.arrow_keys import AskedKeys, asked_keys
from enrichers.postgres.casts import Chosen, chosen_of
from enrichers.postgres.columns import AmbiguousError, first_misfit, from_rows, key_at, unpack
from enrichers.postgres.connections import Connections, ask
from enrichers.postgres.describe import Selection, describe
from enrichers.postgres.diagnosis import (
    UnheldError,
    accepts,
    changed_types,
    uncast_value,
    unheld_texts,
    unreadable_text,
)
from enrichers.postgres.statement import Collect, Statement, identifier, make_collect
from enrichers.span_attributes import database
from enrichers.threads import run_in_thread
from enrichers.typed import MisfitError

MOST_AS_ROWS = 50
"""The number of keys up to which an answer in columns is made of rows. Up to then that takes less time: client and
server together need the same for some 40 keys with 40 columns, and for some 100 keys with 8."""


@dataclass(frozen=True, repr=False)
class PostgresEnricher(DatabaseEnricher[Statement, Connections, Collect]):
    """Rows from PostgreSQL.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, or a function without arguments that returns it. The
            function is called in a thread, for every new connection and once by `open`. A string is sent to the workers
            inside the job; a function keeps the password out of the job.
        table: a table or view: a name, ``"schema.table"``, or a sequence of parts that are taken as they are.
        key: the key column, or a list of key columns.
        columns: the columns to add; by default all except the key columns. Or a mapping: what each result column is
            made of, a type of Spark, ``{"n": "double"}``, or a column and a type, ``{"made": "created_at timestamp"}``.
            The server casts the column to that type.
        query: SQL instead of `table`. It takes one array per key column (``$1``, ``$2``, ...). Its result must contain
            the key columns too, with unchanged keys. Several rows of a key keep its order.
        pool_size: maximum number of connections of one worker. 4 by default: a few keep a Python process busy with
            batches, and all workers of all executors share the server's `max_connections`, 100 by default.
        max_batch: maximum number of keys in one statement. 1,000 by default: above a few hundred, the time per key does
            not fall any more, but a failed batch costs more.
        connect_timeout: seconds, or a timedelta, to make a connection, and for a function to return the dsn; 0: only
            the lookup's own deadline.
        statement_cache_size: prepared statements that a connection keeps; 0 for a PgBouncer in transaction mode that
            cannot keep them.

    Raises:
        ConfigurationError: an argument is wrong. `schema` and `key_schema` raise it if the server cannot be reached, or
            does not have the table or a column.
    """

    _kind = "PostgresEnricher"

    dsn: Dsn
    _: KW_ONLY
    table: str | Sequence[str] | None = None
    key: str | Sequence[str] | None = None
    columns: Sequence[str] | Mapping[str, str] | Chosen | None = None
    query: str | None = None
    pool_size: int = 4
    max_batch: int = 1000
    connect_timeout: float | timedelta = 10.0
    statement_cache_size: int = 100
    _description: Statement | None = field(default=None, init=False, compare=False)
    _runtime: tuple[Connections, Collect] | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        DSN.check_source(self.dsn)
        check_table_or_query(self.table, self.query)
        self._set("table", None if self.table is None else _table(self.table))
        self._set("key", names_of("key", self.key))
        self._set("columns", None if self.columns is None else chosen_of(self.columns, self.key or ()))
        self._set("connect_timeout", duration("connect_timeout", self.connect_timeout))
        positive_int("pool_size", self.pool_size)
        positive_int("max_batch", self.max_batch)
        natural("statement_cache_size", self.statement_cache_size)

    def table_size(self) -> int | None:
        """The rows of the table as PostgreSQL's statistics have them; None for a query, or before ANALYZE."""
        if self.table is None:
            return None
        sql = "SELECT reltuples::bigint FROM pg_catalog.pg_class WHERE oid = to_regclass($1)"
        name = identifier(*self.table)

        async def ask_size() -> Any:
            dsn = await DSN.get(self.dsn, self._connect_timeout())
            return await ask(dsn, self._connect_timeout(), lambda connection: connection.fetchval(sql, name))

        try:
            rows = run_in_thread(ask_size, "postgres")
        except Exception:  # The size is a hint: a plan does without it.
            return None
        return rows if rows is not None and rows > 0 else None

    def join_program(self, on: Sequence[str]) -> str | None:
        """A program that reads the table by JDBC. User and password come from the environment."""
        if self.table is None or not isinstance(self.dsn, str):
            return None
        server = database("postgresql", self.dsn, "SELECT")
        host, port = server.get("server.address", "localhost"), server.get("server.port", 5432)
        host = "localhost" if str(host).startswith("/") else host
        url = f"jdbc:postgresql://{host}:{port}/{server.get('db.namespace', 'postgres')}"
        keys = self.key if isinstance(self.key, tuple) else ()
        same = " & ".join(f"(df[{mine!r}] == table[{theirs!r}])" for mine, theirs in zip(on, keys, strict=True))
        return (
            "import os\nfrom pyspark.sql import functions as F\n"
            f"table = spark.read.jdbc({url!r}, {identifier(*self.table)!r}, properties={{\n"
            '    "driver": "org.postgresql.Driver",\n'
            '    "user": os.environ["PGUSER"], "password": os.environ["PGPASSWORD"]})\n'
            f'joined = df.join(F.broadcast(table), {same}, "left")'
        )

    def call_attributes(self) -> dict[str, str | int]:
        """With OpenTelemetry: the server, the database and the table."""
        return database("postgresql", self._opened()[0].dsn, "SELECT", ".".join(self.table or ()))

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for keys, aligned with them, from one statement.

        Raises:
            EnricherError: `retryable` if the connection or the server is the cause; otherwise one of the keys may be.
        """
        connections, collect = self._opened()
        statement = self._described()
        canonical = self._canonical(keys)
        found: dict[Any, Any] = {}
        while (call := statement.call(canonical)) is not None:
            try:
                records = await self._fetch(connections, *call, keys)
            except UnheldError as error:
                canonical = [None if error.holds(key) else one for key, one in zip(keys, canonical, strict=True)]
                continue
            collect(records, found, self._refuse_guarded)
            break
        else:
            return [None] * len(keys)
        answers = [*map(found.get, canonical)]
        if None in found or len(answers) - answers.count(None) < len(found):
            self._refuse_strangers(found.keys() - {key for key in canonical if key is not None})
        return answers

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        """The rows of keys as Arrow columns: those of `schema`, and the key columns that are not among them.

        A key without a row does not occur. Several rows of a key keep the order of a query. Values that Python cannot
        hold, such as a date after 9999, are in the table. See `columns` for what becomes Python objects.

        Args:
            keys: an array of the type of the key column; for several, a struct array of their types.

        Raises:
            EnricherError: see `lookup_many`.
        """
        statement = self._described()
        asked = self._asked_keys(statement, keys)
        while len(asked):
            try:
                return asked.respelled(await self._unspelled(statement, asked))
            except UnheldError as error:
                asked = asked.without(error.texts)
        return statement.answer.empty_table()

    def respell(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The keys as the server writes them, such as a UUID as text.

        Raises:
            EnricherError: a key cannot be compared with its column, or its column can hold it and `key_schema` cannot.
        """
        statement = self._described()
        canonical = self._canonical(keys)
        for key, one in zip(keys, canonical, strict=True):
            if one is not None:
                self._check_held(statement, key, one if len(statement.key) > 1 else (one,))
        return [key if one is None else one for key, one in zip(keys, canonical, strict=True)]

    async def rows(self) -> pa.Table:
        """Every row of the table that has a key, as Arrow columns, from one statement: for a whole table in memory.

        The key columns come first, then the other columns of `schema`.

        Raises:
            ConfigurationError: the enricher has a query, which cannot run without keys.
            EnricherError: see `lookup_many`.
        """
        connections, _ = self._opened_for_all()
        statement = self._described()
        table = None
        if statement.whole_packed:
            table = await self._unpacked(statement, statement.whole_packed, (), ())
        if table is None:
            records = await self._fetch(connections, statement.whole, (), ())
            table = self._table_of(statement, records, None, may_decline=False)
        assert table is not None
        return table.select(list(dict.fromkeys([*statement.key_schema.names, *statement.answer.names])))

    async def _unspelled(self, statement: Statement, asked: AskedKeys) -> pa.Table:
        """The answer with the keys as the server writes them."""
        table = None
        if len(asked) <= MOST_AS_ROWS or not statement.packed:
            table = await self._in_rows(statement, asked, may_decline=bool(statement.packed))
        if table is None and statement.packed:
            parameters = asked.literals() if statement.takes_literals else statement.arrays(asked.values())
            table = await self._unpacked(statement, statement.packed, parameters, asked)
        if table is None:
            table = await self._in_rows(statement, asked, may_decline=False)
        return table

    def _asked_keys(self, statement: Statement, keys: pa.Array) -> AskedKeys:
        try:
            return asked_keys(keys, statement.key_schema, [part.column for part in statement.key])
        except ValueError as error:
            problem = f"{self._subject()}: {error}; the key is {shown_columns(statement.key_schema)}"
        raise EnricherError(problem, retryable=False, any_key=True)

    async def _unpacked(
        self, statement: Statement, sql: str, parameters: Sequence[Any], asked: AskedKeys | tuple[()]
    ) -> pa.Table | None:
        """The answer from a statement with a result in columns, or None if only rows can hold it."""
        connections, _ = self._opened()
        tables, record, misfit = [], None, None
        try:
            for record in await self._fetch(connections, sql, parameters, asked):
                tables.append(unpack(record, statement.answer))
        except (TooLargeError, AmbiguousError):
            return None
        except MisfitError as error:
            misfit = error
        if misfit is None:
            return pa.concat_tables(tables) if tables else statement.answer.empty_table()
        assert record is not None
        key = key_at(misfit.row, record, statement.answer, statement.key_schema.names)
        if len(asked) and (key is None or misfit.path not in statement.schema.names):
            return self._refuse_strangers({misfit.value})
        return self._refuse(key, misfit)

    async def _in_rows(self, statement: Statement, asked: AskedKeys, *, may_decline: bool) -> pa.Table | None:
        """The answer from the statement for rows. If it may decline: None if Python cannot hold a key or a value."""
        connections, _ = self._opened()
        keys = asked.values()
        if may_decline and None in keys:
            return None
        call = statement.call(keys)
        records = await self._fetch(connections, *call, asked) if call else []
        return self._table_of(statement, records, keys, may_decline=may_decline)

    def _table_of(
        self, statement: Statement, records: Sequence[Any], keys: Sequence[Any] | None, *, may_decline: bool
    ) -> pa.Table | None:
        """The table of a result in rows. `keys` are the only ones that it may have."""
        for record in records if statement.guarded else ():
            if record[-1] is not None:
                return None if may_decline else self._refuse_guarded(statement.key_of(record), record[-1])
        try:
            return from_rows(records, statement.row_type, statement.places)
        except (pa.ArrowException, ArithmeticError) as error:
            strangers = set() if keys is None else {*map(statement.key_of, records)}.difference(keys)
            misfit = None if strangers else first_misfit(records, statement.schema)
            if misfit is not None:
                self._refuse(statement.key_of(records[misfit.row]), misfit)
            problem = (
                f"{self._subject()}: a value does not fit its column as it was when its types were asked for: {error}"
            )
        if strangers:
            self._refuse_strangers(strangers)
        raise ResultError(f"{problem}; start the job again if a column has changed", any_key=True)

    async def _fetch(
        self, connections: Connections, sql: str, parameters: Sequence[Any], keys: Sequence[Any] | AskedKeys
    ) -> Any:
        try:
            return await connections.fetch(sql, *parameters)
        except Exception as error:
            unheld = await unheld_texts(connections.fetch, error, keys)
            if unheld:
                raise UnheldError(unheld) from None
            problem = await self._explained(connections, error, keys)
            problem = problem or lookup_error(error, self._subject(), shown_keys(keys), connections.dsn)
        raise problem

    async def _explained(
        self, connections: Connections, error: Exception, keys: Sequence[Any] | AskedKeys
    ) -> EnricherError | None:
        """The error for a column whose type has changed, or a value that the server does not cast; None for others."""
        statement, state = self._described(), str(getattr(error, "sqlstate", ""))
        if state.startswith("42") and state != "42P05":
            changes = await changed_types(connections.fetch, statement)
            if changes:
                problem = f"{self._subject()}: since the job began {changes}; start the job again"
                return EnricherError(problem, retryable=False, any_key=True)
            if await accepts(connections.fetch, statement):
                return lookup_error(error, self._subject(), shown_keys(keys), connections.dsn, any_key=False)
        elif state.startswith("22") and len(keys) == 1:
            known = keys.values() if isinstance(keys, AskedKeys) else self._canonical(keys)
            kind: type[EnricherError] = EnricherError
            if state in ("22021", "22P05"):
                held, remedy = await unreadable_text(connections.fetch, statement, known)
            else:
                held = await uncast_value(connections.fetch, statement, known)
                remedy, kind = "choose another type in columns, such as 'string'", ResultError
            if held:
                words = own_words(error, secrets_of(connections.dsn))
                return kind(f"{self._about(keys)}: {held}{words}; {remedy}", retryable=False, code=state)
        return None

    def _check_held(self, statement: Statement, key: Any, parts: Sequence[Any]) -> None:
        """Refuse a key that a numeric can hold, and the type of its keys cannot: NaN, infinity, or too many digits."""
        for part, column in zip(parts, statement.key_schema, strict=True):
            if pa.types.is_decimal(column.type) and not decimals_fit([part], column.type):
                scale, digits = column.type.scale, column.type.precision - column.type.scale
                raise EnricherError(
                    f"{self._about([key])}: the numeric column {column.name!r} may hold it, but keys of a lookup are "
                    f"numbers with at most {digits} digits before the point and {scale} after it; "
                    f'pass columns={{"{column.name}": "double"}}, or select the column as text in a query',
                    retryable=False,
                )

    def _refuse_guarded(self, key: Any, problem: str) -> NoReturn:
        """A row with a `problem` (see `statement`)."""
        number, _, value = problem.partition(":")
        field = self._described().answer.field(int(number))
        self._refuse(key, MisfitError(field.name, value, field.type, ""))

    def _refuse(self, key: Any, misfit: MisfitError) -> NoReturn:
        """A row that holds a value that a row of Spark cannot hold."""
        remedies = [f'pass columns={{"{misfit.path}": "double"}}'] * pa.types.is_decimal(misfit.type)
        remedies += ["convert it in a query"]
        remedies += ["leave the column out"] * (misfit.path in self._described().schema.names)
        raise ResultError(
            f"{self._about([] if key is None else [key])}: {misfit.message_with(str)}; {', '.join(remedies[:-1])}, or "
            f"{remedies[-1]}"
        )

    def _refuse_strangers(self, keys: set[Any]) -> NoReturn:
        raise ResultError(
            f"{self._subject()}: the result has rows of keys that were not asked for, such as "
            f"{shown(min(keys, key=repr))}; every row must hold its key exactly as it was given, and none may be null"
        )

    async def _describe(self) -> Statement:
        dsn = await DSN.get(self.dsn, self._connect_timeout())
        subject = f"{self._subject()} at {location(dsn)}"
        selection = Selection(self.table, self.query, self.key, self.columns, subject, dsn)  # type: ignore[arg-type]
        try:
            return await ask(dsn, self._connect_timeout(), lambda connection: describe(connection, selection))
        except ConfigurationError:
            raise
        except Exception as error:
            problem = source_error(error, subject, dsn)
        raise problem

    async def _connect(self, description: Statement) -> tuple[Connections, Collect]:
        timeout = self._connect_timeout()
        # If this process lacks something for the connection string, every lookup would fail.
        await DSN.get(self.dsn, timeout)
        connections = Connections(
            self.dsn,
            self._subject(),
            self.pool_size,
            connect_timeout=timeout,
            statement_cache_size=self.statement_cache_size,
        )
        return connections, make_collect(description)

    def _connect_timeout(self) -> float | None:
        return duration("connect_timeout", self.connect_timeout) or None

    def _shown_columns(self) -> Any:
        pairs = isinstance(self.columns, tuple) and isinstance(self.columns[0], tuple)
        return dict(self.columns) if pairs else super()._shown_columns()  # type: ignore[arg-type]

    def _source(self) -> str:
        return f"table={identifier(*(self.table or ()))}" if self.query is None else shown_query(self.query)

    def __repr__(self) -> str:
        return self._shown(shown(location(self.dsn)) if isinstance(self.dsn, str) else function_name(self.dsn))


LONGEST_NAME = 63
"""Bytes of a name in PostgreSQL, as it is built everywhere (NAMEDATALEN)."""


def _table(table: object) -> tuple[str, ...]:
    names = table_name(table)
    for name in names:
        if len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
            raise ConfigurationError(
                f"table has the part {shown(name)} of more than {LONGEST_NAME} bytes, which PostgreSQL would cut, "
                "and so take for another table: give the name as the server has it"
            )
    return names
