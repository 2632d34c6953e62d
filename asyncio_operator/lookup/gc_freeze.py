"""Freezes long-lived objects (`gc.freeze`), so that Spark's collection after each task skips them: the modules of a
worker, and what its caches have on the heap.

Spark's Python worker collects garbage at the end of every task. A collection looks at all objects of the process, and
so at every module, and at every cached key and answer, although none of them is garbage: beside a million keys it takes
half a second. So everything is put aside (`gc.freeze`) when the first task ends, and no later collection looks at it.
That takes as long as the collection that follows, which then finds nothing to look at. Frozen objects are still freed
as soon as nothing refers to them. Only cycles among them are not found. So everything is thawed, collected and put
aside again when there are many more keys than the last time or many fewer, and when a good part of them was replaced.
"""

from __future__ import annotations

import gc
from typing import Final

LEAST: Final = 10_000
"""Cached keys that are worth another time: a collection beside fewer takes some milliseconds."""

GROWTH: Final = 1.5
"""How many times the keys of the last time: so all times together take as long as three of the collections that they
spare, however many tasks follow."""


class Frozen:
    """What is frozen for the caches of a process."""

    def __init__(self) -> None:
        self._keys = 0
        self._frozen = 0

    def look(self, keys: int) -> None:
        """Put everything aside, if that is worth it. Called on the main thread of a task, at its end: it may take as
        long as one collection, which would hold up what runs on the loop.

        Args:
            keys: how many the caches of the process keep on the heap.
        """
        least, most = self._keys / GROWTH, max(LEAST, self._keys) * GROWTH
        if self._frozen and (keys < most if self._keys < LEAST else least < keys < most and not self._replaced()):
            return
        # What the task that ends now leaves behind is found the next time.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._keys, self._frozen = keys, gc.get_freeze_count()

    def _replaced(self) -> bool:
        """Whether as many objects are gone as there were keys. A key has two or more."""
        return self._frozen - gc.get_freeze_count() >= self._keys


frozen = Frozen()
"""Of this process."""
