"""What a lookup cache keeps, and for how long: only the options, and nothing that acts on them.

The defaults keep 100,000 answers, as many as a task remembers without a cache, until newer answers need the room. With
fewer, the task still remembers what the cache drops (law L13), but the next task does not. Without an expiry,
the outside table is assumed not to change while a worker lives. How old an answer may be is a decision that only the
user can make, so there is no default expiry.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from asyncio_operator.checks import Duration, flag, gives_coroutines, lasting, must_be, of_kind, positive_int, takes
from asyncio_operator.errors import ConfigurationError, describe, function_name, shown_address
from asyncio_operator.state.rocksdb_options import RocksDBOptions

SCHEMES = ("redis://", "rediss://", "unix://")

_STORES = (
    '"heap" | "rocksdb" | the address of a Redis, as in "redis://user:password@host:6379/0" | a function without '
    "arguments that returns such an address"
)


@dataclass(frozen=True, slots=True, repr=False)
class Cache:
    """Answers of an enricher, kept in the Python worker and used again.

    Attributes:
        max_rows: the maximum number of keys, including keys without a row. A full cache drops the least recently used.
            It does not bound a Redis, which has limits of its own.
        expire_after_write: seconds (or a timedelta) after which an answer is no longer used; None for never.
        expire_after_access: the same, counted from the last use of the answer.
        cache_missing: whether a missing row is cached too. A task remembers it for `remember` seconds anyway.
        missing_ttl: `expire_after_write` for missing rows; None to use `expire_after_write`.
        refresh_after: an answer older than this is used once more and looked up again in the background.
        stale_if_error: if a lookup fails, an expired answer that still exists is used.
        store: "heap" for memory; "rocksdb" for files, which outlive the worker; an address such as
            ``redis://user:password@host:6379/0`` for memory and, behind it, a Redis that all workers and jobs share. A
            function that returns the address keeps a password out of the job. With an address `expire_after_write` is
            required, and `expire_after_access` is not possible.
        directory: of these files, on a local disk of the worker. Each worker uses a directory inside it.
        rocksdb: limits of memory, log and threads for "rocksdb"; None is the defaults.

    Raises:
        ConfigurationError: a value has the wrong type or range, or two values contradict each other.
    """

    max_rows: int = 100_000
    expire_after_write: Duration | None = None
    expire_after_access: Duration | None = None
    cache_missing: bool = True
    missing_ttl: Duration | None = None
    refresh_after: Duration | None = None
    stale_if_error: bool = False
    store: str | Callable[[], str] = "heap"
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
        self._check_store()
        if self.missing_ttl is not None and not self.cache_missing:
            raise ConfigurationError(
                f"missing_ttl is {self.missing_ttl}, and cache_missing is False; missing_ttl must be None, "
                "or cache_missing must be True"
            )
        for name in ("expire_after_write", "expire_after_access"):
            expiry = getattr(self, name)
            if self.refresh_after is not None and expiry is not None and self.refresh_after >= expiry:
                raise ConfigurationError(
                    f"refresh_after is {self.refresh_after}, and {name} is {expiry}; it must be less, because an "
                    "expired answer cannot be refreshed"
                )
        of_kind("rocksdb", self.rocksdb, RocksDBOptions)
        if self.store != "rocksdb":
            store = "a Redis" if self.is_shared else '"heap"'
            for name in ("rocksdb", "directory"):
                value = getattr(self, name)
                if value is not None:
                    raise ConfigurationError(
                        f'{name} is {describe(value)}, and store is {store}; store must be "rocksdb", or {name} must '
                        "be None"
                    )
        elif not isinstance(self.directory, str | Path) or not str(self.directory) or "\0" in str(self.directory):
            raise ConfigurationError(
                f'directory is {describe(self.directory)}; with store="rocksdb" it must be a path on a disk of the '
                "workers"
            )
        elif re.match(r"~|\w{2,}:", str(self.directory)):
            allowed = 'a path on a local disk of the workers, such as "/var/cache/prices"'
            raise must_be("directory", self.directory, f"{allowed}; a URL and a ~ are not supported")
        else:
            object.__setattr__(self, "directory", str(self.directory))

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: repr(value) for name, value in values.items() if name != "store"}
        shown["store"] = shown_address(self.store) if self.is_shared else repr(self.store)
        return f"Cache({', '.join(f'{name}={shown[name]}' for name in values)})"

    @property
    def is_shared(self) -> bool:
        """Whether `store` is a server that workers share, or a function that returns its address."""
        return self.store not in ("heap", "rocksdb")

    def _check_store(self) -> None:
        store = self.store
        if callable(store):
            if gives_coroutines(store):
                raise ConfigurationError(f"store is {function_name(store)}, an `async def`; it must be {_STORES}")
            takes("store", store)
        elif not isinstance(store, str):
            raise must_be("store", store, _STORES)
        elif store not in ("heap", "rocksdb") and not store.startswith(SCHEMES):
            # Any other text may be a misspelt address with a password.
            is_word = re.fullmatch("[A-Za-z]{1,20}", store)
            shown = repr(store) if is_word else "another text (not shown, it may hold a password)"
            raise ConfigurationError(f"store is {shown}; it must be {_STORES}")
        if self.is_shared and self.expire_after_write is None:
            raise ConfigurationError(
                "expire_after_write is None, and store is a Redis, where answers would stay for ever; it must be a "
                "time, such as 3600"
            )
        if self.is_shared and self.expire_after_access is not None:
            raise ConfigurationError(
                f"expire_after_access is {self.expire_after_access}, and store is a Redis, which is not asked for an "
                "answer that is in memory; it must be None: use expire_after_write"
            )
