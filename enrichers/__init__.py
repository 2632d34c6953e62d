"""Enrichers: one module per kind of outside system, all behind the contract `Enricher`.

`PostgresEnricher` is loaded when it is first asked for, because it needs asyncpg. Nothing here knows Spark, and of
`asyncio_operator` only public names are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncio_operator import Enricher
from enrichers.function import FunctionEnricher, enricher

if TYPE_CHECKING:
    from enrichers.postgres import PostgresEnricher

__all__ = ["Enricher", "FunctionEnricher", "PostgresEnricher", "enricher"]


def __getattr__(name: str) -> Any:
    if name == "PostgresEnricher":
        from enrichers.postgres import PostgresEnricher

        return PostgresEnricher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
