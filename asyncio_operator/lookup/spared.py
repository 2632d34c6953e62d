"""Spares Python's garbage collector what caches keep on the heap.

Spark's Python worker collects garbage at the end of every task. A collection looks at all objects of the process, and
so at every cached key and answer, although none of them is garbage: beside a million keys it takes half a second. So
they are put aside (`gc.freeze`), and no later collection looks at them. They are still freed as soon as nothing refers
to them. Only cycles among frozen objects are not found. So garbage is collected first, and everything is thawed and
collected again when there are many more keys than the last time, or when a good part of the frozen objects is gone.
"""

from __future__ import annotations

import gc
from typing import Final

LEAST: Final = 10_000
"""Cached keys that are worth it: a collection beside fewer takes some milliseconds."""

GROWTH: Final = 1.5
"""How many times the keys of the last time: so freezing takes about as long as three of the collections that it spares,
however many tasks follow."""


class Spared:
    """What is frozen for the caches of a process."""

    def __init__(self) -> None:
        self._keys = 0
        self._frozen = 0

    def look(self, keys: int) -> None:
        """Freeze, or thaw, if that is worth it. Called at the end of a task.

        Args:
            keys: how many the caches of the process keep on the heap.
        """
        if self._keys and keys < max(LEAST, self._keys / 2):
            gc.unfreeze()
            self._keys = 0
        # A key has two objects or more, so by then the cache has replaced a half of its keys at most.
        replaced = self._keys and self._frozen - gc.get_freeze_count() >= self._keys
        if replaced or keys >= max(LEAST, GROWTH * self._keys):
            # What the task that ends now leaves behind is found the next time.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            self._keys, self._frozen = keys, gc.get_freeze_count()
