"""What the writer of an enricher implements: one source of rows, looked up by key.

An enricher is a specification until `open` is called: it is made on the driver, pickled, and opened in every Python
worker on the loop that will run it. Whatever `open` makes (clients, pools) stays out of the pickle. It knows nothing of
Spark, of caches, of retries or of limits: those are the business of whoever calls it.

An enricher needs the names of `asyncio_operator` and of this module, and no others:

| name | what it is for |
| --- | --- |
| `Enricher`, `Row`, `Found` | the contract, and the types of its answers |
| `canonical_key` | the one value of all spellings of a key: with it a source finds a key again as rows do |
| `key_values` | the same for a column in Arrow; loads pyarrow |
| `as_schema` | takes the columns as a `pyarrow.Schema` or as Spark DDL text; loads pyarrow when it is first asked for |
| `positive_int`, `natural`, `duration` | check an option, with the words in which all others are checked |
| `gives_coroutines` | whether something is a coroutine function, or an object that is called as one |
| `takes` | checks that a function can be called with so many arguments, and says in words which |
| `describe`, `did_you_mean` | a value in a message, cut where it is long; the nearest of the names that there are |
| `function_name` | a function in a message, without what it has captured or was given before |
| `time_left` | the seconds until the running lookup is cancelled, for a source that can be told a limit |
| `missing_here` | the module or environment variable that this process lacks, if an error says so |
| `CANCEL_TIMEOUT` | the seconds in which a cancelled lookup ends; one that takes longer is reported as hung |
| `CLOSE_TIMEOUT` | the seconds that `close` waits for connections; three such waits are within what `close` may take |
| `failed_import` | the import that failed, if an error is one or was raised from one: never a key's fault |
| `not_installed` | the error that names the library that is missing, and the extra that brings it |
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncio_operator.clock import time_left
from asyncio_operator.environment import failed_import, missing_here, not_installed
from asyncio_operator.errors import describe, function_name
from asyncio_operator.keys import canonical_key
from asyncio_operator.policies.options import duration, gives_coroutines, natural, positive_int, takes
from asyncio_operator.shutdown import CANCEL_TIMEOUT, CLOSE_TIMEOUT
from asyncio_operator.suggestions import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.key_arrays import key_values
    from asyncio_operator.schema import as_schema

__all__ = [
    "CANCEL_TIMEOUT",
    "CLOSE_TIMEOUT",
    "Enricher",
    "Found",
    "Row",
    "as_schema",
    "canonical_key",
    "describe",
    "did_you_mean",
    "duration",
    "failed_import",
    "function_name",
    "gives_coroutines",
    "key_values",
    "missing_here",
    "natural",
    "not_installed",
    "positive_int",
    "takes",
    "time_left",
]

Row = Mapping[str, Any]
Found = Row | Sequence[Row] | None


class Enricher(ABC):
    """A source of rows by key.

    A key is one value, or a tuple in the order of the key columns. A found row is a mapping from the names of `schema`
    to values; absent fields are null, others are ignored.
    """

    max_batch: int = 1
    """How many keys `lookup_many` takes at once."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns that a found row adds. Called once, on the driver; it may ask the source."""

    def key_schema(self) -> pa.Schema | None:
        """The names and types of the key columns, in the order of a key's parts, or None if any key will do.

        A part whose type is unknown has the type null: it is matched by its name, and takes any type.
        """
        return None

    def __repr__(self) -> str:
        """How messages call it; override it where one class stands for several sources, and show no secret."""
        return type(self).__qualname__

    async def open(self) -> None:
        """Make clients, on the loop that will run the lookups. Called once before the first lookup."""

    async def close(self) -> None:
        """Release what `open` made. Called once, after the last lookup, also when `open` failed half-way."""

    @abstractmethod
    async def lookup(self, key: Any) -> Found:
        """The row of a key, a sequence of rows, or None where there is none.

        Raises:
            EnricherError: the source could not answer.
        """

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for up to `max_batch` keys, aligned with them. By default one `lookup` each, concurrently."""
        lookups = [asyncio.ensure_future(self.lookup(key)) for key in keys]
        try:
            return await asyncio.gather(*lookups)
        except BaseException:
            for lookup in lookups:
                lookup.cancel()
            await asyncio.wait(lookups)
            raise


_WITH_PYARROW = {"as_schema": "asyncio_operator.schema", "key_values": "asyncio_operator.key_arrays"}


def __getattr__(name: str) -> Any:
    module = _WITH_PYARROW.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise not_installed(name, "pyarrow", "spark") from error
