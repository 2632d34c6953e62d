"""Keys of a cache whose answers a journal has already, in bounded memory: an answer of the cache is written once."""

from __future__ import annotations

from typing import Any, Final

from asyncio_operator.arrow.key_identity import identity

MOST: Final = 500_000
"""Keys of one generation: about 30 MB. A key that is forgotten is written once more, which changes no answer."""


class NotedKeys:
    """The keys that were used last: at least `most` of them, and at most twice as many."""

    def __init__(self, most: int) -> None:
        self._most = min(most, MOST)
        self._new: set[Any] = set()
        self._old: set[Any] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._old - self._new)

    def add(self, key: Any) -> bool:
        """Note that a canonical key is used. Returns whether it is new."""
        name = _name(key)
        if name in self._new:
            return False
        is_new = name not in self._old
        self._new.add(name)
        if len(self._new) >= self._most:
            self._old, self._new = self._new, set()
        return is_new

    def remove(self, key: Any) -> None:
        """Forget a key."""
        name = _name(key)
        self._new.discard(name)
        self._old.discard(name)


def _name(key: Any) -> Any:
    """What is held of a key: of text a hash of 64 bits. If two texts have the same hash, one answer is not written."""
    return hash(key) if type(key) is str else identity(key)
