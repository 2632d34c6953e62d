"""What a lookup cache keeps, and for how long: only the options, and nothing that acts on them.

The defaults keep 10,000 answers, some megabytes of usual rows, until newer answers need the room. Without an expiry,
the outside table is assumed not to change while a worker lives. How old an answer may be is a decision that only the
user can make, so there is no default expiry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from asyncio_operator.checks import Duration, flag, lasting, of_kind, one_of, positive_int
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.state.rocksdb_options import RocksDBOptions


@dataclass(frozen=True, slots=True)
class Cache:
    """Answers of an enricher, kept in the Python worker and used again.

    Attributes:
        max_rows: the maximum number of keys, including keys without a row. A full cache drops the least recently used.
        expire_after_write: seconds (or a timedelta) after which an answer is no longer used; None for never.
        expire_after_access: the same, counted from the last use of the answer.
        cache_missing: whether a missing row is cached too.
        missing_ttl: `expire_after_write` for missing rows; None to use `expire_after_write`.
        refresh_after: an answer older than this is used once more and looked up again in the background.
        stale_if_error: if a lookup fails, an expired answer that still exists is used.
        store: "heap" for memory; "rocksdb" for files, which outlive the worker.
        directory: of these files, on a local disk of the worker. Each worker uses a directory inside it.
        rocksdb: limits of memory, log and threads for "rocksdb"; None is the defaults.

    Raises:
        ConfigurationError: a value has the wrong type or range, or two values contradict each other.
    """

    max_rows: int = 10_000
    expire_after_write: Duration | None = None
    expire_after_access: Duration | None = None
    cache_missing: bool = True
    missing_ttl: Duration | None = None
    refresh_after: Duration | None = None
    stale_if_error: bool = False
    store: str = "heap"
    directory: str | Path | None = None
    rocksdb: RocksDBOptions | None = None

    def __post_init__(self) -> None:
        positive_int("max_rows", self.max_rows)
        for name in ("expire_after_write", "expire_after_access", "missing_ttl", "refresh_after"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, lasting(name, value))
        flag("cache_missing", self.cache_missing)
        flag("stale_if_error", self.stale_if_error)
        one_of("store", self.store, ("heap", "rocksdb"))
        if self.missing_ttl is not None and not self.cache_missing:
            raise ConfigurationError(
                f"missing_ttl is {self.missing_ttl}, and cache_missing is False; missing_ttl must be None, "
                "or cache_missing must be True"
            )
        self._check_refresh()
        self._check_directory()

    def _check_refresh(self) -> None:
        for name in ("expire_after_write", "expire_after_access"):
            expiry = getattr(self, name)
            if self.refresh_after is not None and expiry is not None and self.refresh_after >= expiry:
                raise ConfigurationError(
                    f"refresh_after is {self.refresh_after}, and {name} is {expiry}; it must be less, because an "
                    "expired answer cannot be refreshed"
                )

    def _check_directory(self) -> None:
        of_kind("rocksdb", self.rocksdb, RocksDBOptions)
        if self.store == "heap":
            if self.rocksdb is not None:
                raise ConfigurationError(
                    f'rocksdb is {describe(self.rocksdb)}, and store is "heap"; store must be "rocksdb", or rocksdb '
                    "must be None"
                )
            if self.directory is not None:
                raise ConfigurationError(
                    f'directory is {describe(self.directory)}, and store is "heap"; store must be '
                    '"rocksdb", or directory must be None'
                )
        elif not isinstance(self.directory, str | Path) or not str(self.directory) or "\0" in str(self.directory):
            raise ConfigurationError(
                f'directory is {describe(self.directory)}; with store="rocksdb" it must be a path on a disk of the '
                "workers"
            )
        elif re.match(r"~|\w{2,}:", str(self.directory)):
            raise ConfigurationError(
                f"directory is {describe(self.directory)}; it must be a path on a local disk of the workers, such as "
                '"/var/cache/prices"; a URL and a ~ are not supported'
            )
        else:
            object.__setattr__(self, "directory", str(self.directory))
