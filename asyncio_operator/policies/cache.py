"""What a lookup cache keeps, and for how long: the options, and nothing that acts on them.

The defaults keep 10,000 answers, a few megabytes of usual rows, until they make room for others: without an expiry the
outside table is taken for one that does not change while a worker lives. Expiries are a choice of how old an answer may
be, which nobody but the user can make.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.options import Duration, flag, lasting, one_of, positive_int


@dataclass(frozen=True, slots=True)
class Cache:
    """Answers of an enricher, kept in the Python worker and used again.

    Attributes:
        max_rows: keys at most, those without a row among them; when full the least recently used one goes.
        expire_after_write: seconds (or a timedelta) after which an answer is used no more; None for never.
        expire_after_access: the same, counted from when it was last used.
        cache_missing: whether it is kept that there is no row.
        missing_ttl: `expire_after_write` of that; None for the same as of rows.
        refresh_after: an answer older than this is used, and looked up again in the background.
        stale_if_error: when a lookup fails, an expired answer that is still there is used.
        store: "heap", in memory; "rocksdb", in files, where they outlive the worker.
        directory: of these files, on a disk of the worker; each worker uses a directory in it.

    Raises:
        ConfigurationError: a value is wrong.
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
                f"missing_ttl is {self.missing_ttl}, and cache_missing is False; it must be None where no miss is kept"
            )
        self._check_refresh()
        self._check_directory()

    def _check_refresh(self) -> None:
        for name in ("expire_after_write", "expire_after_access"):
            expiry = getattr(self, name)
            if self.refresh_after is not None and expiry is not None and self.refresh_after >= expiry:
                raise ConfigurationError(
                    f"refresh_after is {self.refresh_after}, and {name} is {expiry}; it must be less, or answers "
                    "expire before they are refreshed"
                )

    def _check_directory(self) -> None:
        if self.store == "heap":
            if self.directory is not None:
                raise ConfigurationError(
                    f'directory is {describe(self.directory)}, and store is "heap"; it must be None, or store must be '
                    '"rocksdb"'
                )
        elif not isinstance(self.directory, str | Path) or not str(self.directory) or "\0" in str(self.directory):
            raise ConfigurationError(
                f'directory is {describe(self.directory)}; with store="rocksdb" it must be a path on a disk of the '
                "workers"
            )
        elif re.match(r"~|\w{2,}:", str(self.directory)):
            raise ConfigurationError(
                f"directory is {describe(self.directory)}; it must be a path on a local disk of the workers, such as "
                '"/var/cache/prices": no URL, and no ~, which is not expanded'
            )
        else:
            object.__setattr__(self, "directory", str(self.directory))
