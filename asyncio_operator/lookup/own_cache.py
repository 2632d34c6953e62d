"""The cache of a `Lookup`, which it shares with no other, and which follows the clock of its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncio_operator.clock import wall
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.policies.cache import Cache

if TYPE_CHECKING:
    import pyarrow as pa


async def open_own_cache(
    options: Cache, owner: str, clock: Callable[[], float] | None, schema: pa.Schema
) -> LookupCache:
    """Opens the cache of a `Lookup`, in a thread. The arguments are those of `open_cache`."""
    # A cache on disk needs the time of day. Start from it and add the loop's time, which tests can set.
    now = clock_of(asyncio.get_running_loop())
    offset = wall() - now()
    stamps = clock or (lambda: now() + offset)
    opening = asyncio.ensure_future(asyncio.to_thread(open_cache, options, owner, stamps, schema))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_discard)
        raise


def _discard(opening: asyncio.Task[LookupCache]) -> None:
    """Close a cache whose caller was cancelled while it was opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
