"""`Enricher`, the class that the author of an enricher implements: one source of rows, looked up by key.

An enricher is a specification until `open` is called. It is made on the driver, pickled, and opened in every Python
worker, on the loop that runs its lookups. Clients and pools that `open` makes stay out of the pickle. An enricher knows
nothing of Spark, caches, retries or limits: its caller handles them.

An enricher needs only names of `asyncio_operator` and of this module:

| name | what it is for |
| --- | --- |
| `Enricher`, `Row`, `Found` | the contract, and the types of its answers |
| `canonical_key` | the canonical value of a key: equal for all spellings of the same key |
| `key_values`, `key_family` | canonical keys of an Arrow column; which types have equal keys; load pyarrow |
| `KeyIndex` | finds the rows of a table by their keys, in columns; loads pyarrow and numpy |
| `exact_decimal`, `fit_decimals`, `decimals_fit`, `cast_table` | numbers as decimals, without loss; load pyarrow |
| `as_schema` | the columns, from a `pyarrow.Schema`, Spark DDL text or a `StructType`; loads pyarrow on first use |
| `shown_type`, `spark_type` | a type of Arrow in messages, and in Spark's DDL; load pyarrow |
| `StructType` | for annotations: a Spark `StructType`, without PySpark |
| `positive_int`, `natural`, `duration`, `flag`, `one_of` | check an option, with the messages of all other options |
| `gives_coroutines`, `is_idempotent` | whether a function is a coroutine function; may be called twice for one effect |
| `takes` | checks that a function accepts its arguments, which the message names |
| `describe`, `function_name` | for messages: a value, cut if it is long; a function, without captured values |
| `did_you_mean` | for messages: the most similar of the existing names |
| `time_left` | the seconds until the running lookup is cancelled, for a source that accepts a time limit |
| `settle`, `billed`, `hint`, `Hint` | under a budget: what a lookup weighed and cost, and limits of the source |
| `verdict`, `keep_verdict` | what an error says of a further call, for an error that is made of it |
| `first_of` | the first error in a group, which shows the group in messages |
| `named_options` | makes a function name the option that was meant, if it does not have the given one |
| `missing_here` | the module or environment variable that this process lacks, if an error says so |
| `annotate` | what a lookup says about its call, for the span of that call in OpenTelemetry |
| `CANCEL_TIMEOUT` | the seconds within which a cancelled lookup must end; a longer one is reported as hung |
| `CLOSE_TIMEOUT` | the seconds that `close` waits for connections; `close` has time for three such waits |
| `failed_import`, `needs`, `not_installed` | an error's failed import; an import, an error that say what to install |
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import (
    duration,
    flag,
    gives_coroutines,
    is_idempotent,
    natural,
    one_of,
    plain_function,
    positive_int,
    takes,
)
from asyncio_operator.clock import time_left
from asyncio_operator.errors import (
    ConfigurationError,
    EnricherError,
    ResultError,
    describe,
    first_of,
    function_name,
    keep_verdict,
    verdict,
)
from asyncio_operator.hints import did_you_mean, failed_import, missing_here, named_options, needs, not_installed
from asyncio_operator.lazy import lazy
from asyncio_operator.policies.retry import Retry
from asyncio_operator.policies.shutdown import CANCEL_TIMEOUT, CLOSE_TIMEOUT
from asyncio_operator.quota.usage import Hint, billed, hint, settle
from asyncio_operator.telemetry.annotations import Attributes, annotate

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.decimals import cast_table, decimals_fit, exact_decimal, fit_decimals
    from asyncio_operator.arrow.key_arrays import key_values
    from asyncio_operator.arrow.key_fit import key_family
    from asyncio_operator.arrow.key_identity import canonical_key
    from asyncio_operator.arrow.key_index import KeyIndex
    from asyncio_operator.arrow.schema import StructType, as_schema
    from asyncio_operator.arrow.type_names import shown_type, spark_type

__all__ = [
    "CANCEL_TIMEOUT",
    "CLOSE_TIMEOUT",
    "Enricher",
    "Found",
    "Hint",
    "KeyIndex",
    "Row",
    "StructType",
    "annotate",
    "as_schema",
    "billed",
    "canonical_key",
    "cast_table",
    "decimals_fit",
    "describe",
    "did_you_mean",
    "duration",
    "exact_decimal",
    "failed_import",
    "first_of",
    "fit_decimals",
    "flag",
    "function_name",
    "gives_coroutines",
    "hint",
    "is_idempotent",
    "keep_verdict",
    "key_family",
    "key_values",
    "missing_here",
    "named_options",
    "natural",
    "needs",
    "not_installed",
    "one_of",
    "positive_int",
    "settle",
    "shown_type",
    "spark_type",
    "takes",
    "time_left",
    "verdict",
]

Row = Mapping[str, Any]
Found = Row | Sequence[Row] | None

NO_LOOKUP = (
    "has no lookup of its own; write `async def lookup(self, key)`, `lookup_columns`, or a `lookup_many` that does not "
    "call `super().lookup_many`; `lookup_rows` alone is not enough"
)
"""What is wrong with an enricher that implements neither method."""


class Enricher(ABC):
    """A source of rows by key.

    A key is one value, or a tuple in the order of the key columns. A found row is a mapping from the names of `schema`
    to values. A missing field is null, and a field without a column is ignored.

    A class writes `schema`, and `lookup`, `lookup_many` or both: each has a default that calls the other. A class that
    writes `lookup_columns` needs none of them: then nothing else is called but its `lookup_rows`.
    """

    in_memory: bool = False
    """Whether `lookup_columns` answers from the memory of its process, and awaits nothing. Then all keys of a batch of
    rows are asked at once, again in every batch: to remember an answer would cost more."""

    max_batch: int = 1
    """The maximum number of keys that `lookup_many` or `lookup_columns` takes at once."""

    default_retry: Retry | None = None
    """When failed lookups are repeated if the caller does not say it with ``retry=``; None: never."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that a found row adds. Called once, on the driver. It may query the source."""

    def key_schema(self) -> pa.Schema | None:
        """The names and types of the key columns, in the order of a key's parts, or None if any key is accepted.

        A part of unknown type has the type null: it is matched by its name, and any type is accepted. If its field has
        the metadata ``{"sent_as": "text"}``, a column of fractions is a warning: 7 would be sent as 7.0.
        """
        return None

    def check_keys(self, keys: pa.Schema) -> None:
        """Check the caller's key columns on the driver, before a job runs: their names and types, in the order of a
        key's parts. By default all types are accepted that match `key_schema`.

        Raises:
            ConfigurationError: no key of such a type can be looked up. The message names the column and a remedy.
        """

    def table_size(self) -> int | None:
        """About how many rows the table has, if the source can say so at once; None: unknown. `plan` asks for it on the
        driver."""
        return None

    def join_program(self, on: Sequence[str]) -> str | None:
        """A Spark program, as text, that reads the whole table and joins it with `df`, without secrets; None: there is
        none. `on` names the columns of `df`, in the order of a key's parts."""
        return None

    max_calls: int | None = None
    """How many calls one open enricher runs at the same time, if it limits them itself, as a pool of connections or
    threads does; None: as many as its caller starts. `plan` computes with it."""

    def __repr__(self) -> str:
        """The enricher's name in messages. Override it if a class has several sources, and show no secret."""
        return type(self).__qualname__

    optional_keys: Sequence[str] = ()
    """The parts of a key, among several, that may be null: a null in them is a value, and no miss (law L1)."""

    idempotent: bool = True
    """Whether a lookup may be made twice at the same time for one answer, as a hedged call is. It is False for a source
    in which a lookup changes something. Its lookups are then not made ahead of the rows that Spark takes."""

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        """Under a budget: what one call for these keys is likely to weigh, by unit, such as ``{"tokens": 1300}``.

        Calls and keys are counted without it. It must return at once, and knows nothing but the keys: without keys it
        returns what a call weighs at least. By default a call weighs nothing else. `settle` replaces the estimate when
        the answer says more.
        """
        return {}

    def journal_identity(self) -> str | None:
        """Which answers these are, for a journal, in a line without secrets. A journal is used only by enrichers that
        say the same. None: the class and the options say it, as `Journal` describes."""
        return None

    def call_attributes(self) -> Attributes:
        """With OpenTelemetry: the attributes that the spans of all calls have in common, by the names of its semantic
        conventions, such as ``{"db.system.name": "postgresql"}``. Asked of the open enricher, once for a run.

        `annotate` adds those of one call.
        """
        return {}

    async def open(self) -> None:
        """Make clients, on the loop that runs the lookups. Called once, before the first lookup."""

    async def close(self) -> None:
        """Release everything that `open` made. Called once, after the last lookup, also if `open` failed."""

    async def lookup(self, key: Any) -> Found:
        """The row of a key, a sequence of rows, or None for no row. By default the answer of `lookup_many`.

        Raises:
            EnricherError: the source could not answer.
            ResultError: `lookup_many` gave no sequence of one answer.
        """
        answers = await self.lookup_many([key])
        try:
            [answer] = answers
        except (TypeError, ValueError) as error:
            given = len(answers) if isinstance(answers, Sequence) else describe(answers)
            raise ResultError(
                f"{describe(self)}.lookup_many gave {given} for 1 key; it must give a sequence with one answer for each"
            ) from error
        return answer

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for up to `max_batch` keys, aligned with them. By default it runs one `lookup` per key, all at
        the same time.

        For a class that has `lookup_columns` alone it gives the rows of that.

        Raises:
            EnricherError: the source could not answer.
            TypeError: the class has no `lookup` either.
        """
        # The two defaults would call each other for ever.
        if getattr(self.lookup, "__func__", None) is Enricher.lookup:
            if self.lookup_columns is None:
                raise TypeError(f"{type(self).__qualname__} {NO_LOOKUP}")
            # Imported here: it loads pyarrow, which a class that answers in columns has loaded.
            from asyncio_operator.arrow.answer_tables import AnswerTables, ask

            tables = AnswerTables(self.key_schema(), self.schema(), optional=optional_parts(self))
            return (await ask(self, tables, keys)).answers()
        lookups = [asyncio.ensure_future(self.lookup(key)) for key in keys]
        try:
            return await asyncio.gather(*lookups)
        except BaseException:
            for lookup in lookups:
                lookup.cancel()
            await asyncio.wait(lookups)
            raise

    async def send(self, key: Any, row_id: str) -> None:
        """Make the call of `asyncio_operator.spark.send` for one row: what it returns is not read. By default `lookup`.

        Args:
            row_id: names the row, the same in all attempts and runs: a service that remembers it does a call once.

        Raises:
            EnricherError: the row was not sent. With ``retryable=False`` the service says no for good.
        """
        await self.lookup(key)

    async def probe(self, key: Any) -> Found:
        """One lookup, for notebooks: opens the enricher, looks up a key, and closes it. None if the key has a null."""
        from asyncio_operator.arrow.key_identity import canonical_optional

        if (key := canonical_optional(key, optional_parts(self))) is None:
            return None
        # As every caller does: an enricher may learn its columns there, and block.
        await asyncio.to_thread(self.schema)
        own = copy(self)  # This one may be in use, and keeps its client.
        try:
            await own.open()
            return await own.lookup(key)
        except ExceptionGroup as group:
            raise EnricherError.of(group) from group
        finally:
            await own.close()

    def try_lookup(self, key: Any) -> Found:
        """The same as `probe`, and waits for the answer. It may be called where a loop is running, as in a notebook."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self.probe(key))).result()

    lookup_columns: Callable[[pa.Array], Awaitable[pa.Table]] | None = None
    """Written as ``async def lookup_columns(self, keys: pyarrow.Array) -> pyarrow.Table`` by a class that answers in
    columns, without a Python object per value.

    Keys are distinct and not null: an array of the type of `key_schema` (of the caller's column, where that says null
    or None), or a struct array for several key columns. A key that does not fit the type is a miss and is not asked.
    The table holds the key columns, under the names of `key_schema` (else those of the caller's columns), and all
    columns of `schema`, of exactly these types, in any order; other columns are ignored. A column that is both stands
    once. A key without a row is a miss. Several rows of a key keep their order.
    """

    def respell(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Written, besides `lookup_columns`, by a class whose keys may be written in other types of Python than those
        of `key_schema`. Called with the keys of a call that do not fit it; returns the same keys, aligned, in types
        that may fit. Keys that still do not fit are misses. Keys of a DataFrame can only be refused: their types stay.

        Raises:
            EnricherError: a key is of a type that no key has, or the source may have it and its type cannot hold it.
        """
        return keys

    lookup_rows: Callable[[pa.Array], Awaitable[tuple[pa.Table, Any, Any]]] | None = None
    """Written, besides `lookup_columns`, by a class that is `in_memory` and has its rows in one table, as ``async def
    lookup_rows(self, keys: pyarrow.Array) -> tuple[pyarrow.Table, rows, positions]``. Tasks call it instead of
    `lookup_columns` unless they have a cache, retries, limits, a status column or a trace. No row is then copied twice.

    Keys are as for `lookup_columns`, but not distinct: a key may come several times. The table has all columns of
    `schema`, of exactly these types. `rows` are the numbers of the found rows in it, and `positions` the position of
    the key of each of them in `keys`, in ascending order: what `KeyIndex.find` returns. Return the same table object as
    long as the rows are up to date, because what is computed of a table is kept with it.
    """


def optional_parts(enricher: Enricher) -> tuple[int, ...]:
    """The positions of the parts of a key that may be null."""
    if not enricher.optional_keys:
        return ()
    key_schema = enricher.key_schema()
    names = [] if key_schema is None else key_schema.names
    for name in enricher.optional_keys:
        if name not in names:
            raise ConfigurationError(
                f"{describe(enricher)}: {name!r} is optional, but not a part of the key; {did_you_mean(name, names)}"
            )
    return tuple(i for i, name in enumerate(names) if name in enricher.optional_keys) if len(names) > 1 else ()


def require_enricher(enricher: object) -> None:
    """Check that an object is an enricher and that its methods are asynchronous.

    Raises:
        ConfigurationError: it is not, or one of them is not.
    """
    if isinstance(enricher, type) and issubclass(enricher, Enricher):
        raise ConfigurationError(f"enricher is the class {enricher.__name__}; pass an object of it")
    if not isinstance(enricher, Enricher):
        remedy = '; put @enricher("column type, ...") before the function' if inspect.isfunction(enricher) else ""
        raise ConfigurationError(f"enricher is {describe(enricher)}; it must be an Enricher{remedy}")
    for name in ("open", "close", "lookup", "lookup_many", "lookup_columns", "lookup_rows", "send"):
        method = getattr(enricher, name)
        if inspect.isroutine(method) and not inspect.iscoroutinefunction(method):
            raise ConfigurationError(
                f"{describe(enricher)}.{name} is an ordinary function; it must be `async def {name}`"
            )
    plain_function(f"{describe(enricher)}.weigh", enricher.weigh, "a method of a list of keys", "the list of keys")
    flag(f"{describe(enricher)}.idempotent", enricher.idempotent)
    kind = type(enricher)
    if (kind.lookup, kind.lookup_many, kind.lookup_columns) == (Enricher.lookup, Enricher.lookup_many, None):
        raise ConfigurationError(f"{describe(enricher)} {NO_LOOKUP}")
    positive_int(f"{describe(enricher)}.max_batch", enricher.max_batch)
    if enricher.max_calls is not None:
        positive_int(f"{describe(enricher)}.max_calls", enricher.max_calls)
    if enricher.lookup_rows is not None and (enricher.lookup_columns is None or not enricher.in_memory):
        raise ConfigurationError(
            f"{describe(enricher)} has lookup_rows, which is for an enricher in memory: it needs in_memory = True and "
            "lookup_columns"
        )


_PYARROW = ("pyarrow", "spark")

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.arrow.decimals": "cast_table decimals_fit exact_decimal fit_decimals",
            "asyncio_operator.arrow.key_arrays": "key_values",
            "asyncio_operator.arrow.key_fit": "key_family",
            "asyncio_operator.arrow.key_index": "KeyIndex",
            "asyncio_operator.arrow.schema": "StructType as_schema",
            "asyncio_operator.arrow.type_names": "shown_type spark_type",
            "asyncio_operator.arrow.key_identity": "canonical_key",
        },
        needs={
            f"asyncio_operator.arrow.{one}": _PYARROW
            for one in ("decimals", "key_arrays", "key_fit", "key_index", "schema", "type_names")
        },
    )
