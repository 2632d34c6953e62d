"""`RedisEnricher`: rows from values or hashes in Redis, many keys per command.

A template makes a name in Redis from a key. `enrichers.typed` converts values to rows. A lookup that passes its
deadline is cancelled from outside. Nothing is cached here. The URL is used to connect, and never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from asyncio_operator import ConfigurationError, Enricher, EnricherError, ResultError
from asyncio_operator.enricher import Found, as_schema, describe, duration, flag, one_of, positive_int, shown_type
from asyncio_operator.services.redis_client import URL, Url, check_cluster_url, lookup_error, secrets_of
from asyncio_operator.services.secret_source import shown_source
from enrichers.names import names_of, opened
from enrichers.redis.connections import ClusterConnections, Connections
from enrichers.redis.key_names import Names, is_written_in_one_way
from enrichers.scalars import JSON, TEXT, scalar
from enrichers.span_attributes import database
from enrichers.typed import MisfitError, NoColumnError, json_decoder, row_converter

if TYPE_CHECKING:
    from asyncio_operator.enricher import StructType


KINDS = ("json", "hash", "string")

Convert = Callable[[Any], Found]

LOOKED_AT = 4_000
"""How many bytes of a value that is not JSON are searched for secrets before its beginning is shown."""

SHOWN = 40
"""The number of characters of that beginning."""

REMEDY = "change its type in schema=, or take it as a string, and convert it in Spark"


class NotJsonError(Exception):
    """A value is not JSON. The message says why."""


@dataclass(frozen=True, init=False, repr=False)
class RedisEnricher(Enricher):
    """Rows from one Redis server or a cluster, or from servers with the same protocol.

    Args:
        url: ``redis://user:password@host:port/database``, ``rediss://`` for TLS, or a function without arguments that
            returns the URL. `open` calls the function, and so does every new connection, in a thread. A string is sent
            to the workers inside the job; a function keeps the password out of the job.
        schema: the columns that a found row adds, as a `pyarrow.Schema`, a Spark DDL string or a `StructType`.
        key_template: the name in Redis, with ``{key}`` instead of the key.
        key: names of the parts of a composite key, in order. The template then contains them: ``{origin}:{hour}``.
        kind: the kind of value. "json": an object, or an array of objects for several rows. "hash": a hash of Redis,
            whose fields have the names of the columns. "string": one value, for a schema of one column.
        pool_size: maximum number of connections of one worker. 4 by default: a few keep a Python process busy with
            batches.
        max_batch: maximum number of keys in one command. 500 by default: the server runs no other command meanwhile.
        connect_timeout: seconds, or a timedelta, to make a connection, and for a function to return the URL. In a
            cluster also for a node to answer, after which it is taken for lost.
        cluster: whether the URL leads to a node, or the endpoint, of a cluster. The nodes are asked at the same time.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    url: Url
    key_template: str
    key: tuple[str, ...]
    kind: str
    pool_size: int
    max_batch: int
    connect_timeout: float
    cluster: bool
    _schema: pa.Schema
    _runtime: tuple[Connections, Convert, Names] | None = field(compare=False)

    def __init__(
        self,
        url: Url,
        *,
        schema: pa.Schema | str | StructType,
        key_template: str = "{key}",
        key: str | Sequence[str] = "key",
        kind: Literal["json", "hash", "string"] = "json",
        pool_size: int = 4,
        max_batch: int = 500,
        connect_timeout: float | timedelta = 10.0,
        cluster: bool = False,
    ) -> None:
        URL.check_source(url)
        if flag("cluster", cluster) and isinstance(url, str):
            check_cluster_url(url)
        one_of("kind", kind, KINDS)
        columns = as_schema(schema)
        if kind == "string" and len(columns) != 1:
            raise ConfigurationError(f'schema has {len(columns)} columns; with kind="string" it must have one')
        row_converter(columns, JSON if kind == "json" else TEXT)
        values = {
            "url": url,
            "key_template": key_template,
            "key": names_of("key", key, words=True),
            "kind": kind,
            "pool_size": positive_int("pool_size", pool_size),
            "max_batch": positive_int("max_batch", max_batch),
            "connect_timeout": duration("connect_timeout", connect_timeout),
            "cluster": cluster,
            "_schema": columns,
            "_runtime": None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        Names(key_template, self.key)

    @property
    def max_calls(self) -> int:  # type: ignore[override]
        """One batch is on a connection at a time."""
        return self.pool_size

    def schema(self) -> pa.Schema:
        """The columns that a found row adds."""
        return self._schema

    def key_schema(self) -> pa.Schema:
        """The names of the parts of a key. Their type is open: any type that can be a part of a name."""
        return pa.schema([(name, pa.null()) for name in self.key])

    def check_keys(self, keys: pa.Schema) -> None:
        """Refuse types whose values can be written in several ways.

        Raises:
            ConfigurationError: a column has such a type.
        """
        for column in keys:
            if not is_written_in_one_way(column.type):
                raise ConfigurationError(
                    f"key column {column.name!r} is {shown_type(column.type)}, which can be written in several ways: "
                    f"cast it to a string as it is written in the names of {self!r}, or to bigint if it has whole "
                    "numbers (integers, dates and binary are taken too)"
                )

    async def open(self) -> None:
        """Make the client. It connects at the first lookup.

        Raises:
            ConfigurationError: a function for the URL returns none in this process.
        """
        await RedisEnricher.close(self)  # Of an earlier call of `open`.
        make = ClusterConnections if self.cluster else Connections
        connections = make(self.url, size=self.pool_size, connect_timeout=self.connect_timeout)
        await connections.open()
        object.__setattr__(self, "_runtime", (connections, self._conversion(), Names(self.key_template, self.key)))

    def call_attributes(self) -> dict[str, str | int]:
        """With OpenTelemetry: the server, and the command."""
        url = "" if self._runtime is None else self._runtime[0].url
        return database("redis", url, "HGETALL" if self.kind == "hash" else "MGET")

    async def close(self) -> None:
        """Close the connections, within seconds. Does nothing if none is open."""
        runtime = self._runtime
        object.__setattr__(self, "_runtime", None)
        if runtime is not None:
            await runtime[0].close()

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for keys, aligned with them, from one command or pipeline.

        Raises:
            EnricherError: `retryable` if the connection or the server is the cause; otherwise one of the keys may be.
        """
        connections, convert, naming = opened(self._runtime, self)
        names = self._named(naming, keys)
        if not names:
            return [None] * len(keys)
        ask = connections.hashes if self.kind == "hash" else connections.values
        try:
            values = await ask([*names.values()])
        except Exception as error:
            problem = lookup_error(error, repr(self), f"key {describe(keys[0])}", connections.url)
        else:
            found = {
                key: self._answer(connections, convert, key, value) for key, value in zip(names, values, strict=True)
            }
            return [found.get(key) for key in keys]
        raise problem

    def _answer(self, connections: Connections, convert: Convert, key: Any, value: Any) -> Found:
        if not value and (value is None or self.kind == "hash"):
            return None
        try:
            if isinstance(value, Exception):
                raise value
            return convert(value)
        except (ValueError, ArithmeticError, RecursionError) as error:
            remedy = ""
            if isinstance(error, MisfitError):
                is_named = not isinstance(error, NoColumnError)
                remedy = f"; {REMEDY}" if is_named else "; give columns in schema= the names of the fields"
            problem: EnricherError = ResultError(f"{self!r}, key {describe(key)}: {error}{remedy}")
            problem.__cause__ = error
        except NotJsonError as error:
            beginning = " ".join(value[:LOOKED_AT].decode("utf-8", "replace").split())
            shown = f"; it begins with {secrets_of(connections.url).show(beginning, SHOWN)}" if beginning else ""
            problem = EnricherError(
                f'{self!r}, key {describe(key)}: the value is not JSON ({error}){shown}; kind="string" takes a value '
                'as it is, kind="hash" reads a hash',
                retryable=False,
            )
        except Exception as error:
            problem = lookup_error(error, repr(self), f"key {describe(key)}", connections.url)
        raise problem

    def _named(self, names: Names, keys: Sequence[Any]) -> dict[Any, bytes]:
        """The names of keys, without keys that cannot have one."""
        try:
            return {key: name for key, name in zip(keys, names.of_many(keys), strict=True) if name is not None}
        except EnricherError as error:
            problem = EnricherError(f"{self!r}: {error}", retryable=False)
        raise problem

    def _conversion(self) -> Convert:
        """The function that converts a value to rows."""
        to_row = row_converter(self._schema, JSON if self.kind == "json" else TEXT)
        if self.kind == "string":
            return _of_one_column(self._schema.field(0), to_row)
        if self.kind == "hash":
            # Names that are not UTF-8 are escaped: no column has such a name.
            return lambda value: to_row({n.decode("utf-8", "backslashreplace"): item for n, item in value.items()})

        # Made once, because making it takes as long as reading a small object.
        decode = json_decoder(self._schema)

        def from_json(value: bytes) -> Found:
            try:
                parsed = decode(value.decode())
            except (ValueError, ArithmeticError, RecursionError) as error:
                # Without the error as its cause, because that contains the whole value.
                raise NotJsonError(f"{type(error).__name__}: {error}") from None
            if isinstance(parsed, list):
                return [to_row(row) for row in parsed]
            return None if parsed is None else to_row(parsed)

        return from_json

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_runtime": None}

    def __repr__(self) -> str:
        cluster = ", cluster" if self.cluster else ""
        return f"RedisEnricher({shown_source(self.url)}{cluster}, {self.kind} at {self.key_template!r})"


def _of_one_column(field: pa.Field, to_row: Convert) -> Convert:
    """The same as `to_row` for plain values, in less time: nothing but the value can be wrong."""
    name, convert = field.name, scalar(field.type, TEXT)
    if convert is None:
        return lambda value: to_row({name: value})

    def from_text(value: Any) -> Found:
        try:
            converted = convert(value)
        except (ValueError, ArithmeticError):
            converted = None
        # A misfit, or a null, which the column may not allow: its error names the column.
        return {name: converted} if converted is not None else to_row({name: value})

    return from_text
