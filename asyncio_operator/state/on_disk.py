"""The classes that need RocksDB, loaded on first use: programs without state on disk need no rocksdict."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asyncio_operator.errors import ConfigurationError

NAMES = ("RocksDBCachingPriorityQueueSet", "RocksDBSnapshot", "RocksDBStateBackend")


def rocksdb_class(name: str) -> Any:
    """The class of this name, one of `NAMES`.

    Raises:
        ConfigurationError: rocksdict is not installed.
    """
    try:
        return getattr(import_module("asyncio_operator.state.rocksdb"), name)
    except ImportError as error:
        if error.name != "rocksdict":
            raise
        raise ConfigurationError(
            f"{name} needs the package rocksdict, which is not installed: pip install 'asyncio-operator[rocksdb]'"
        ) from error
