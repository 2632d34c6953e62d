"""How keys become parameters of a query: what a key column holds, and what the query's parameter takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from enrichers.databases.key_kinds import Integers, Kind, Numerics


@dataclass(frozen=True)
class Part:
    """One column of a key: what it holds (`column`), and what the query's parameter takes (`parameter`)."""

    column: Kind
    parameter: Kind

    def usable(self) -> bool:
        """Whether keys of the column can be sent as the parameter."""
        return self.parameter.family in (self.column.family, "text")

    def to_send(self, canonical: Sequence[Any]) -> Sequence[Any]:
        """Parameters for canonical keys, aligned; None for a key that the parameter cannot hold."""
        if self.parameter == self.column or self._is_wider():
            return canonical
        if self.parameter.family == "text" != self.column.family:
            return [None if key is None else as_text(key) for key in canonical]
        return self.parameter.canonical_many(canonical)

    def _is_wider(self) -> bool:
        """Whether whatever the column holds fits the parameter as it is."""
        match self.column, self.parameter:
            case Integers(bits), Integers(wider):
                return bits <= wider
            case Numerics(), Numerics(None):
                return True
        return False


def as_text(key: Any) -> str:
    """A canonical key as text that the server casts back without loss, whatever its settings are."""
    match key:
        case bool():
            return "true" if key else "false"
        case bytes():
            return "\\x" + key.hex()
        case date():
            return key.isoformat()
        case _:
            return str(key)
