"""The caches of a Python worker, one for each specification: an enricher and the options of its cache.

A task leases a cache and returns it. The next task with an equal specification gets it with its answers. Of the caches
that no task leases, the last `UNUSED` are kept. Everything here runs on the loop, so it needs no lock.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict

from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import cache_name, open_cache
from asyncio_operator.policies.cache import Cache

UNUSED = 16
"""The number of unused caches that are kept: more than one query has, and a limit for a notebook with hundreds."""


class Caches:
    """The caches of this process."""

    def __init__(self) -> None:
        self._caches: OrderedDict[str, asyncio.Task[LookupCache]] = OrderedDict()
        self._leases: dict[str, int] = {}

    async def lease(self, owner: str, options: Cache) -> LookupCache:
        """The cache of an owner (`cache_owner` names owners). Return it with `release` and the same arguments.

        Raises:
            ConfigurationError: the cache cannot be opened.
        """
        name = cache_name(owner, options)
        opening = self._caches.get(name)
        if opening is None or _has_failed(opening):
            # In a thread: a disk may be slow, and all tasks of this process share this loop.
            opening = self._caches[name] = asyncio.ensure_future(asyncio.to_thread(open_cache, options, owner))
        self._leases[name] = self._leases.get(name, 0) + 1
        try:
            # Shielded: other tasks may wait for the same opening when this one is cancelled.
            return await asyncio.shield(opening)
        except BaseException:
            self.release(owner, options)
            raise

    def release(self, owner: str, options: Cache) -> None:
        """Return a lease."""
        name = cache_name(owner, options)
        self._leases[name] -= 1
        if self._leases[name]:
            return
        del self._leases[name]
        self._caches.move_to_end(name)
        unused = [other for other in self._caches if other not in self._leases and self._caches[other].done()]
        for other in unused[:-UNUSED]:
            opened = self._caches.pop(other)
            if not _has_failed(opened):
                asyncio.get_running_loop().run_in_executor(None, opened.result().close)

    def forget_all(self) -> None:
        """Forget all caches in a forked child. They belong to the process that opened them."""
        self._caches.clear()
        self._leases.clear()


def _has_failed(opening: asyncio.Task[LookupCache]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)


caches = Caches()

os.register_at_fork(after_in_child=caches.forget_all)
