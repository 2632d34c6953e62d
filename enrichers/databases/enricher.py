"""`DatabaseEnricher`: what the enrichers of databases have in common.

On the driver it asks the database once for the names and types of a table or a query. This description is sent to the
workers, which need no such question. `open` makes the connections of a worker, which are never sent. For each batch
nothing runs here but the look at what `open` has made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import describe as shown
from asyncio_operator.enricher import did_you_mean, shown_type
from enrichers.databases.pool import Pool
from enrichers.names import Keys, names_of, opened, shown_keys
from enrichers.threads import run_in_thread


class Description(Protocol):
    """What a worker must know of the source."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of a row."""

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns. A null type is open."""

    def canonical(self, keys: Sequence[Any]) -> Sequence[Any]:
        """See `key_kinds.canonical_keys`."""


D = TypeVar("D", bound=Description)
C = TypeVar("C", bound=Pool[Any])
L = TypeVar("L")


class DatabaseEnricher(Enricher, Generic[D, C, L]):
    """Rows of a table or a query.

    Type arguments: the description; the connections of a worker; what else a lookup needs, made once by `open`.
    """

    _kind: ClassVar[str]
    """The name of the class, in messages."""

    table: Any
    key: Any
    columns: Any
    query: str | None
    pool_size: int
    _description: D | None
    _runtime: tuple[C, L] | None

    @abstractmethod
    async def _describe(self) -> D:
        """Ask the database. Every error is a `ConfigurationError`."""

    @abstractmethod
    async def _connect(self, description: D) -> tuple[C, L]:
        """What the lookups of a worker need."""

    @abstractmethod
    def _source(self) -> str:
        """The table or the query, for messages."""

    @property
    def max_calls(self) -> int:  # type: ignore[override]
        """One statement runs on a connection at a time."""
        return self.pool_size

    def schema(self) -> pa.Schema:
        """The columns of a found row, with the types that the documentation lists. The first call asks the server."""
        return self._described().schema

    def key_schema(self) -> pa.Schema:
        """The key columns, in the order of a key's parts. The first call asks the server."""
        return self._described().key_schema

    async def open(self) -> None:
        """Make the pool. It connects at the first lookup.

        Raises:
            ConfigurationError: a function for the connection string or the URL returns none in this process, or the
                driver is not installed.
        """
        await DatabaseEnricher.close(self)  # Of an earlier call of `open`.
        if self._description is None:
            self._settle(await self._asked())
        self._set("_runtime", await self._connect(self._described()))

    async def close(self) -> None:
        """Close the connections, within seconds. Does nothing if none is open."""
        runtime = self._runtime
        self._set("_runtime", None)
        if runtime is not None:
            await runtime[0].close()

    def _opened_for_all(self) -> tuple[C, L]:
        """What the lookups of a worker need, to read the whole table.

        Raises:
            ConfigurationError: the enricher has a query, which cannot run without keys.
        """
        if self.query is not None:
            raise ConfigurationError(f"{self._subject()}: a query takes keys; to load all rows, name a table or a view")
        return self._opened()

    def _opened(self) -> tuple[C, L]:
        return opened(self._runtime, self)

    def _described(self) -> D:
        if self._description is None:
            # Its words say all; the frames of a loop in another thread would bury them.
            self._settle(run_in_thread(self._asked, self._kind.removesuffix("Enricher").lower()))
        return self._description  # type: ignore[return-value]

    async def _asked(self) -> D | ConfigurationError:
        """What the database says about the table or the query, or an error without frames: they hold secrets."""
        try:
            return await self._describe()
        except ConfigurationError as error:
            return error.with_traceback(None)

    def _settle(self, asked: D | ConfigurationError) -> None:
        if isinstance(asked, ConfigurationError):
            raise asked
        self._set("_description", asked)

    def _canonical(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The canonical keys, aligned with `keys`. None for a key that no row can have."""
        described = self._described()
        try:
            return described.canonical(keys)
        except (TypeError, ValueError) as error:
            problem = f"{self._about(keys)}: {error}; the key is {shown_columns(described.key_schema)}"
        raise EnricherError(problem, retryable=False)

    def _subject(self) -> str:
        return f"{self._kind}({self._source()})"

    def _about(self, keys: Keys) -> str:
        return f"{self._subject()}, {shown_keys(keys)}"

    def _shown(self, address: str) -> str:
        columns = "" if self.columns is None else f", columns={self._shown_columns()!r}"
        return f"{self._kind}({address}, {self._source()}, key={[*self.key]!r}{columns})"

    def _shown_columns(self) -> Any:
        """The argument `columns` as it was given."""
        return [*self.columns]

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None}


def check_table_or_query(table: object, query: object) -> None:
    """Check that one of them is given, and that a query is text."""
    if (table is None) == (query is None):
        raise ConfigurationError(f"table is {shown(table)} and query is {shown(query)}; give exactly one of them")
    if query is not None and not (isinstance(query, str) and query.strip()):
        raise ConfigurationError(f"query is {shown(query)}; it must be SQL")


MAX_PRECISION = 38  # of Spark's decimals
FREE_SCALE = 18  # where the database does not say: what Spark itself takes for decimals of unknown size


def decimal_size(precision: int | None, scale: int) -> tuple[int, int]:
    """Precision and scale of Spark's decimal for a column, which may have more digits, or a negative scale."""
    if precision is None:
        return MAX_PRECISION, FREE_SCALE
    digits_before, digits_after = max(precision - scale, 0), max(scale, 0)
    if digits_before + digits_after <= MAX_PRECISION:
        return max(digits_before + digits_after, 1), digits_after
    return MAX_PRECISION, min(digits_after, FREE_SCALE)


def table_name(table: object) -> tuple[str, ...]:
    """The parts of a table's name; text is split at its first dot."""
    return names_of("table", tuple(table.split(".", 1)) if isinstance(table, str) else table, repeated=True)


def added_columns(subject: str, names: Sequence[str], key: Sequence[str], columns: Any) -> Any:
    """The argument `columns`; by default the columns of the source that are not in the key."""
    added = columns or tuple(name for name in names if name not in key)
    if not added:
        raise ConfigurationError(
            f"{subject}: it has no column besides the key; name the ones you want, as in columns={[*key]!r}"
        )
    return added


def check_columns(subject: str, names: Sequence[str], needed: Collection[str]) -> None:
    """Check that the source has the columns that are needed, each once."""
    for name in needed:
        if name not in names:
            raise ConfigurationError(f"{subject}: there is no column {name!r}; {did_you_mean(name, names)}")
        if names.count(name) > 1:
            raise ConfigurationError(
                f"{subject}: the result has {names.count(name)} columns {name!r}; name them apart with AS"
            )


def shown_query(query: str) -> str:
    """A query for messages: on one line, cut."""
    return f"query={shown(' '.join(query.split()), 80)}"


def shown_columns(schema: pa.Schema) -> str:
    """Names and types of columns, for messages. A decimal of more digits than Spark's is that of a numeric."""
    return ", ".join(
        f"{field.name} {'numeric' if pa.types.is_decimal256(field.type) else shown_type(field.type)}"
        for field in schema
    )
