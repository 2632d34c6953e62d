"""Any coroutine function as an enricher: the shortest way to a source that has an async client.

    @enricher("temperature double, wind double")
    async def weather(key): ...

The function gets a key and returns a mapping, a sequence of mappings, or None. It replaces the enricher's `lookup`, so
there is no second coroutine per key. It is sent to the workers by cloudpickle. So it must not capture a client: write
an `Enricher` with `open` and `close`, which make one client per worker. A blocking call in the function stops all other
lookups on its loop: use `BlockingEnricher` for that.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.enricher import (
    Found,
    as_schema,
    describe,
    flag,
    function_name,
    gives_coroutines,
    is_idempotent,
    takes,
)
from enrichers.names import Weigh, weigh_with

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.enricher import StructType

Lookup = Callable[[Any], Awaitable[Found]]


class FunctionEnricher(Enricher):
    """An enricher made from a coroutine function.

    Args:
        async_function: ``async def f(key)``. It returns a mapping from column names to values, a sequence of such
            mappings, or None for a miss. Anything else, or an error, is a failure of the key. A key is one value, or,
            if `on` of `enrich` names several columns, one tuple in their order.
        schema: the columns that a found row adds, as a `pyarrow.Schema`, a Spark DDL string or a `StructType`.
        weigh: under a budget: a function of the list of keys of a call, here always one, which returns what the call
            is likely to weigh, such as ``{"tokens": 1300}``. It gets an empty list for the least that any call weighs.
        idempotent: whether two calls for a key have the effect of one. Spark may run any task twice, and with it the
            function; so leave it True unless the function changes something that no other call should change again.

    Raises:
        ConfigurationError: the function is not a coroutine function, or another argument is wrong.
    """

    def __init__(
        self,
        async_function: Lookup,
        schema: pa.Schema | str | StructType,
        *,
        weigh: Weigh | None = None,
        idempotent: bool = True,
    ) -> None:
        if inspect.isasyncgenfunction(async_function):
            raise ConfigurationError(
                f"async_function is {describe(async_function)}, an asynchronous generator; return a list of rows"
            )
        if not gives_coroutines(async_function):
            raise ConfigurationError(
                f"async_function is {describe(async_function)}; it must be an `async def` function of one argument, "
                "the key. Pass an ordinary function to BlockingEnricher, and wrap one that returns an awaitable in an "
                "`async def` that awaits it"
            )
        takes("async_function", async_function, "the key: one value, or a tuple if `on` names several columns")
        weigh_with(self, weigh)
        self._schema = as_schema(schema)
        self._weigh = weigh
        self.idempotent = flag("idempotent", idempotent) and is_idempotent(async_function) and self.idempotent
        # The function itself, not a method that calls it: one coroutine less for each key.
        self.lookup = async_function  # type: ignore[assignment,method-assign]

    async def lookup(self, key: Any) -> Found:
        """The row of a key, as the function returns it. Each instance has its function in this place."""
        raise NotImplementedError

    def schema(self) -> pa.Schema:
        """The columns that a found row adds."""
        return self._schema

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionEnricher):
            return NotImplemented
        same = (self.lookup, self._weigh, self.idempotent) == (other.lookup, other._weigh, other.idempotent)
        return same and bool(self._schema.equals(other._schema))

    def __hash__(self) -> int:
        return hash((self.lookup, tuple(self._schema.names)))

    def __repr__(self) -> str:
        return f"FunctionEnricher({function_name(self.lookup)}, {', '.join(self._schema.names)})"


def enricher(
    schema: pa.Schema | str | StructType, *, weigh: Weigh | None = None, idempotent: bool = True
) -> Callable[[Lookup], FunctionEnricher]:
    """A decorator that makes a `FunctionEnricher` from an ``async def f(key)``. It needs no Spark session.

    Args:
        schema, weigh, idempotent: as those of `FunctionEnricher`.

    Raises:
        ConfigurationError: the schema is wrong, or left out, as in ``@enricher`` without parentheses.
    """
    if callable(schema):
        raise ConfigurationError(
            f"schema is the function {function_name(schema)}; the columns come first, as in @enricher('price double')"
        )
    parsed = as_schema(schema)
    return lambda async_function: FunctionEnricher(async_function, parsed, weigh=weigh, idempotent=idempotent)
