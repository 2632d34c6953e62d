"""Which columns of a DataFrame are the key: the columns that `on` names, in the order of the key's parts.

An enricher's key schema decides the order and the types. Without a key schema the order of `on` is used. Names are
resolved as in Spark: the case of letters is ignored if that is not ambiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql.types import StructType

from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.spark.types import check_key_types
from asyncio_operator.suggestions import did_you_mean

On = str | Sequence[str] | Mapping[str, str]
"""A column, a list of columns, or a mapping of columns to the enricher's key columns."""


def key_positions(schema: StructType, enricher: Enricher, on: On) -> tuple[int, ...]:
    """The positions of the key columns in the DataFrame, in the order of the key's parts.

    Raises:
        ConfigurationError: `on` does not name the key columns, or their types can never match.
    """
    known = enricher.key_schema()
    if known is not None and not isinstance(known, pa.Schema):
        raise ConfigurationError(
            f"{describe(enricher)}.key_schema() returned {describe(known)}; it must return a pyarrow.Schema or None"
        )
    names = _key_columns(schema, on, known, enricher)
    if known is not None and len(names) != len(known):
        raise ConfigurationError(
            f"on has {len(names)} columns, {names}; the enricher's key has {len(known)}: {known.names}"
        )
    positions = tuple(position_of(schema, name) for name in names)
    check_key_types([schema.fields[i] for i in positions], known, describe(enricher))
    return positions


def _key_columns(schema: StructType, on: On, known: pa.Schema | None, enricher: Enricher) -> list[str]:
    """The columns of the DataFrame that `on` names, in the order of the key's parts."""
    if isinstance(on, Mapping) and all(isinstance(name, str) for pair in on.items() for name in pair):
        return _mapped(schema, on, known, enricher)
    if isinstance(on, str):
        return [on]
    if not (isinstance(on, Sequence) and on and all(isinstance(name, str) for name in on)):
        raise ConfigurationError(
            f"on is {describe(on)}; it must be the name of a column, a list of names, or a mapping of names to the "
            "enricher's key columns"
        )
    return list(known.names if known is not None and sorted(on) == sorted(known.names) else on)


def _mapped(schema: StructType, on: Mapping[str, str], known: pa.Schema | None, enricher: Enricher) -> list[str]:
    if known is None:
        raise ConfigurationError(
            f"on maps to key columns, but {describe(enricher)} does not name its key columns; give a list of columns"
        )
    parts = {part: column for column, part in on.items()}
    if set(parts) != set(known.names) or len(parts) != len(on):
        is_reversed = set(on) == set(known.names) and set(parts) <= set(schema.names) and len(parts) == len(on)
        raise ConfigurationError(
            f"on maps to {list(on.values())}; it must map columns of the DataFrame to the enricher's key columns "
            f"{known.names}, each once" + (f". It is the wrong way round; write on={parts!r}" if is_reversed else "")
        )
    return [parts[name] for name in known.names]


def position_of(schema: StructType, name: str, argument: str = "on") -> int:
    """The position of the column with this name. If no name is equal, the case of letters is ignored.

    Raises:
        ConfigurationError: no column matches, or more than one; the message names the argument.
    """
    if not isinstance(name, str):
        raise ConfigurationError(f"{argument} is {describe(name)}; it must be the name of a column")
    positions = [i for i, field in enumerate(schema.fields) if field.name == name]
    if not positions:
        positions = [i for i, field in enumerate(schema.fields) if field.name.lower() == name.lower()]
    if len(positions) == 1:
        return positions[0]
    if positions:
        raise ConfigurationError(
            f"{argument} names {name!r}, which is the name of more than one column: rename one of them"
        )
    raise ConfigurationError(
        f"{argument} names {name!r}, which is not a column of the DataFrame; {did_you_mean(name, schema.names)}"
    )
