"""Freezes long-lived objects (`gc.freeze`), so that Spark's collection after each task skips them: the modules of a
worker, and what its caches have on the heap.

Spark's Python worker collects garbage at the end of every task, and looks at all objects of the process: beside a
million cached keys that takes half a second. So everything is put aside when the first task ends. Frozen objects are
still freed when nothing refers to them; only cycles among them are not found. So everything is thawed, collected and
put aside again when there are many more keys than the last time or many fewer, or when many were replaced.
"""

from __future__ import annotations

import gc
from typing import Final

LEAST: Final = 10_000
"""Cached keys that are worth another time: a collection beside fewer takes some milliseconds."""

GROWTH: Final = 1.5
"""How many times the keys of the last time: all times together take as long as three of the spared collections."""


class Frozen:
    """What is frozen for the caches of a process."""

    def __init__(self) -> None:
        self._keys = 0
        self._frozen = 0

    def look(self, keys: int) -> None:
        """Put everything aside, if that is worth it beside this number of cached keys. Called on the main thread of a
        task, at its end: it may take as long as one collection, which would hold up what runs on the loop."""
        least, most = self._keys / GROWTH, max(LEAST, self._keys) * GROWTH
        # Replaced are as many objects as there were keys. A key has two or more.
        replaced = self._frozen - gc.get_freeze_count() >= self._keys
        if self._frozen and (keys < most if self._keys < LEAST else least < keys < most and not replaced):
            return
        # What the task that ends now leaves behind is found the next time.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._keys, self._frozen = keys, gc.get_freeze_count()


frozen = Frozen()
"""Of this process."""
