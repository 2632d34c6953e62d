"""Enrichers: one module per kind of outside system, all behind the contract `Enricher`.

Those that need a library of their own are loaded when they are first asked for. Nothing here knows Spark, and of
`asyncio_operator` only public names are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncio_operator import Enricher
from enrichers.blocking import BlockingEnricher
from enrichers.function import FunctionEnricher, enricher

if TYPE_CHECKING:
    from enrichers.http import HttpEnricher
    from enrichers.postgres import PostgresEnricher
    from enrichers.redis import RedisEnricher
    from enrichers.table import TableEnricher

__all__ = [
    "BlockingEnricher",
    "Enricher",
    "FunctionEnricher",
    "HttpEnricher",
    "PostgresEnricher",
    "RedisEnricher",
    "TableEnricher",
    "enricher",
]

_LOADED_LATER = {
    "HttpEnricher": "enrichers.http",
    "PostgresEnricher": "enrichers.postgres",
    "RedisEnricher": "enrichers.redis",
    "TableEnricher": "enrichers.table",
}


def __getattr__(name: str) -> Any:
    if name in _LOADED_LATER:
        return getattr(import_module(_LOADED_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
