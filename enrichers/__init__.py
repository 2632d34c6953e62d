"""Enrichers: one module for each kind of outside system, all with the contract `Enricher`.

Each is loaded on first use, so importing this package needs no library. Using an enricher whose libraries are not
installed raises an error that names the extra to install. Nothing here knows Spark, and only public names of
`asyncio_operator` are used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.enricher import failed_import, not_installed

if TYPE_CHECKING:
    from enrichers.blocking import BlockingEnricher
    from enrichers.function import FunctionEnricher, enricher
    from enrichers.http import HttpEnricher, OAuth2
    from enrichers.models import EmbeddingEnricher, ModelEnricher
    from enrichers.postgres import PostgresEnricher
    from enrichers.redis import RedisEnricher
    from enrichers.sql import SqlEnricher
    from enrichers.table import TableEnricher

__all__ = [
    "BlockingEnricher",
    "EmbeddingEnricher",
    "Enricher",
    "FunctionEnricher",
    "HttpEnricher",
    "ModelEnricher",
    "OAuth2",
    "PostgresEnricher",
    "RedisEnricher",
    "SqlEnricher",
    "TableEnricher",
    "enricher",
]

# The module of each name, and the extra that it needs. With the libraries of `spark`, any DataFrame can be enriched.
_LOADED_LATER = {
    "BlockingEnricher": ("enrichers.blocking", "spark"),
    "EmbeddingEnricher": ("enrichers.models", "http"),
    "FunctionEnricher": ("enrichers.function", "spark"),
    "HttpEnricher": ("enrichers.http", "http"),
    "ModelEnricher": ("enrichers.models", "http"),
    "OAuth2": ("enrichers.http", "http"),
    "PostgresEnricher": ("enrichers.postgres", "postgres"),
    "RedisEnricher": ("enrichers.redis", "redis"),
    "SqlEnricher": ("enrichers.sql", "sql"),
    "TableEnricher": ("enrichers.table", "spark"),
    "enricher": ("enrichers.function", "spark"),
}


def _loaded(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _LOADED_LATER[name]
    try:
        return getattr(import_module(module), name)
    except (ModuleNotFoundError, ConfigurationError) as error:
        missing = failed_import(error)
        if missing is not None and missing.name == "pyarrow":
            problem = not_installed(name, "pyarrow", extra)
        elif isinstance(error, ConfigurationError):
            problem = error
        else:
            raise
    if _is_for_all():
        problem = ConfigurationError(
            f"{problem}. `from enrichers import *` imports all enrichers, so it needs all extras: import only the "
            "names that you use"
        )
    raise problem from missing


if not TYPE_CHECKING:  # A type checker that sees `__getattr__` accepts every name.
    __getattr__ = _loaded


def _is_for_all() -> bool:
    """Whether the import system calls, for ``from enrichers import *``. Only a variable of its frame shows that."""
    return sys._getframe(2).f_locals.get("recursive") is True
