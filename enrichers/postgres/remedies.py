"""What to do about a column of a type that Spark does not have, or that cannot be a key: words that users can copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enrichers.postgres.statement import identifier
from enrichers.postgres.types import PgType, column_of


def remedy(
    table: Sequence[str] | None, key: Sequence[str], types: Mapping[str, PgType], unusable: Sequence[str]
) -> str:
    """The end of a message.

    Args:
        table: the parts of its name; None for a query.
        types: those of all columns that were wanted, by name.
        unusable: the columns that have no counterpart, or cannot be looked up.
    """
    remedies = []
    added = [name for name in unusable if name not in key]
    others = [name for name in types if name not in unusable and name not in key]
    if added:
        if others:
            remedies.append(f"choose the other columns, with columns={others!r}")
        named = " (with the types of the other columns that you want)" if others else ""
        remedies.append(f"let the server cast it, with columns={dict.fromkeys(added, 'string')!r}{named}")
    as_text = {name: f"{identifier(name)}::text" for name in unusable}
    if table is not None:
        remedies.append(f"cast it in a query, with query={casting(table, key, types, unusable)!r}")
    elif len(added) < len(unusable):
        selected = ", ".join(f"{sql} AS {identifier(name)}" for name, sql in as_text.items())
        found = " AND ".join(f"{as_text[name]} = ANY (${key.index(name) + 1})" for name in unusable if name in key)
        remedies.append(f"cast it in the query, where it is selected and where it is compared: {selected}, {found}")
    else:
        selected = ", ".join(f"{sql} AS {identifier(name)}" for name, sql in as_text.items())
        remedies.append(f"cast it in the query, as in {selected}")
    return ", or ".join(remedies)


def casting(table: Sequence[str], key: Sequence[str], types: Mapping[str, PgType], unusable: Sequence[str]) -> str:
    """A query with the same result as the table, in which unusable columns are cast to text."""
    selected, compared, parameters = [], [], []
    for name, kind in types.items():
        column = column_of(kind)
        as_text = name in unusable or column is None or (name in key and column.key is None)
        selected.append(f"{identifier(name)}::text AS {identifier(name)}" if as_text else identifier(name))
    for number, name in enumerate(key, 1):
        column = None if name in unusable else column_of(types[name])
        # Keys of an enum are compared as text, so that a label that it does not have is a miss.
        plain = column.key if column and column.key and column.key.element == "{0}" else None
        compared.append(identifier(name) + ("" if plain else "::text"))
        parameters.append((plain.array if plain else "${0}::text[]").format(number))
    if len(key) == 1:
        found = f"{compared[0]} = ANY ({parameters[0]})"
    else:
        found = f"({', '.join(compared)}) IN (SELECT * FROM unnest({', '.join(parameters)}))"
    return f"SELECT {', '.join(selected)} FROM {identifier(*table)} WHERE {found}"
