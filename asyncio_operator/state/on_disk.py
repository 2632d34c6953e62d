"""The classes that need RocksDB, loaded on first use: programs without state on disk need no rocksdict."""

from __future__ import annotations

from typing import Any

from asyncio_operator.lazy import member


def rocksdb_class(name: str) -> Any:
    """The class of this name in `asyncio_operator.state.rocksdb`.

    Raises:
        ConfigurationError: rocksdict is not installed.
    """
    return member("asyncio_operator.state.rocksdb", name, "rocksdict", "rocksdb")
