"""The cache of answers, over a state backend: in memory, or on disk, where answers outlive the process.

An answer is an entry of keyed state with time to live, stamped with the time at which it was written. Every lifetime
(of a row, of a miss, of a fresh answer, since the last use) is a view of such stamps. The rule of expiry is that of
State TTL. The answers are in the order of their use, which in memory is that of a dictionary. On disk
(`cache_directories`) memory does not depend on the number of keys: the order is on disk too.

Laws: a broken cache never makes a lookup fail. The cache logs once that it could not read or write an answer, and the
key is looked up. Nothing here belongs to an event loop. All callers get the same answer object; the one that passes it
to a user makes a copy.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from asyncio_operator.arrow.key_identity import identity, storable
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.descriptors import StateTtlConfig, ValueStateDescriptor
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.state.layout import Stored
from asyncio_operator.state.serializers import NULL, BuiltinSerializer
from asyncio_operator.state.ttl import LivingEntries

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend
    from asyncio_operator.state.heap_backend import HeapValueTable

logger = logging.getLogger("asyncio_operator.cache")

FOREVER: Final = 1e12  # Seconds: 30,000 years.
SWEPT = 2  # Every write checks this many of the least recently used entries: twice as many as it adds.
Slot = Any  # What tells keys apart in the tables of a cache: the bytes of a key on disk, its `identity` in memory.


class AnswerSerializer(BuiltinSerializer):
    """The built-in serialiser without the copy: cached answers are never changed, so memory holds them as they are."""

    name = "answers-1"

    def serialize(self, value: Any) -> bytes:
        answer = getattr(value, "answer", None)  # Rows of a table (`ColumnAnswers`) are stored as mappings.
        return super().serialize(value if answer is None else answer())

    def keep(self, value: Any) -> Any:
        return NULL if value is None else value

    def kept(self, value: Any) -> Any:
        return None if value is NULL else value


class AnyCache(ABC):
    """What every cache has, whatever the form of its answers.

    Attributes:
        has_objects: whether keys and answers in memory have an object each.
        known: the places (`KnownAnswers`) that are asked for answers that are not here, before calls are made.
        noted: by the names of journals, the keys whose answers each has (`NotedKeys`).
        now: gives the time in milliseconds.
        row_life, miss_life: milliseconds for which a row and a miss are used after they came.
        idle_life: milliseconds for which both are used after their last use.
        fresh_life: milliseconds after which an answer is refreshed.
    """

    has_objects = True
    now: Callable[[], int]

    def __init__(self, options: Cache) -> None:
        self.options = options
        self.known: Sequence[Any] = ()
        self.noted: dict[str, Any] = {}
        times = (
            options.expire_after_write,
            options.expire_after_write if options.missing_ttl is None else options.missing_ttl,
            options.expire_after_access,
            options.refresh_after,
        )
        self.row_life, self.miss_life, self.idle_life, self.fresh_life = [
            StateTtlConfig(FOREVER if one is None else one).milliseconds for one in times
        ]

    @abstractmethod
    def __len__(self) -> int:
        """The number of keys in the cache, expired ones included."""

    @abstractmethod
    def close(self) -> None:
        """Release files and memory. A second call does nothing."""

    @property
    def lives(self) -> tuple[int, int]:
        """Milliseconds for which a task remembers rows and misses, for what this cache has dropped to make room, or
        does not take (law L13): an answer is not used longer than here, and not beyond the time of its refresh."""
        longest = min(self.fresh_life, self.idle_life)
        return min(self.row_life, longest), min(self.miss_life, longest)


class LookupCache(AnyCache):
    """The answers of one specification, in memory. Keys are canonical (`key_identity`).

    Args:
        backend: used by this cache only.
    """

    def __init__(self, options: Cache, backend: StateBackend) -> None:
        super().__init__(options)
        self._told: set[str] = set()
        self._attach(backend)

    def _attach(self, backend: StateBackend) -> None:
        """Uses the answers in a backend."""
        options = self.options
        self._backend = backend
        self.now = backend.now
        self._written = self._lives("answers", options.expire_after_write)
        self._codec = self._written.codec
        self._miss = self._codec.encode(None)
        self._used = None if options.expire_after_access is None else self._lives("used", options.expire_after_access)
        times = (options.expire_after_write, options.expire_after_access, options.missing_ttl)
        self._expire = times != (None, None, None)
        self._take_order()
        self._load = self._written.table.get_slot
        # Law L4: a worker that was killed between a write and the removal that follows leaves a key too many.
        self._shrink(options.max_rows)

    # -- the order of use

    def _take_order(self) -> None:
        """Take the order, and the functions that give the slot of a key and count a use."""
        # A table on the heap takes anything that can be hashed for a slot, so no key has to be written as bytes.
        self._slot: Callable[[Any], Slot] = identity
        self._entries = cast("HeapValueTable", self._written.table).in_order()
        self._count_use: Callable[[Slot], object] = self._entries.move_to_end

    def __len__(self) -> int:
        return len(self._entries)

    def _put(self, slot: Slot, stored: Stored, used: Stored | None) -> None:
        """Write an answer, and when it was used if that is kept. Counts as a use."""
        if self._used is not None:
            self._used.table.put_slot(slot, used)
        self._entries[slot] = stored
        self._entries.move_to_end(slot)

    def _remove(self, slot: Slot) -> None:
        self._entries.pop(slot, None)
        if self._used is not None:
            self._used.table.delete(slot, b"")

    def _oldest(self) -> Slot:
        """The least recently used slot; None if there is none."""
        return next(iter(self._entries), None)

    def _shrink(self, most: int) -> None:
        """Remove the least recently used slots above a number."""
        for _ in range(len(self._entries) - most):
            slot, _answer = self._entries.popitem(last=False)
            if self._used is not None:
                self._used.table.delete(slot, b"")

    # -- reading and writing

    def get(self, key: Any) -> Any:
        """The answer for a key, None for a miss, or ABSENT if the cache has no live answer. Counts as a use."""
        try:
            slot = self._slot_of(key)
            stored = self._load(slot)
            if stored is None:
                return ABSENT
            now, (written, answer) = self.now(), self._codec.split(stored)
            if self._is_expired(written, answer, now) or (self._used is not None and not self._use(slot, now)):
                # Law L6: with `stale_if_error` the expired answer has to be here if the lookup fails.
                if not self.options.stale_if_error:
                    self._remove(slot)
                return ABSENT
            self._count_use(slot)
            return self._codec.decode(answer)
        except Exception as error:
            self._fail("cannot be read", key, error)
            return ABSENT

    def is_old(self, key: Any) -> bool:
        """Whether the cache has an answer for a key that is due to be refreshed."""
        stored = self._stored(key)
        return stored is not None and self._codec.split(stored)[0] + self.fresh_life <= self.now()

    def stale(self, key: Any) -> Any:
        """The answer for a key, expired or not, if `stale_if_error` allows it; else, or without one, ABSENT."""
        stored = self._stored(key) if self.options.stale_if_error else None
        return ABSENT if stored is None else self._codec.decode(self._codec.split(stored)[1])

    def holds(self, key: Any) -> bool:
        """Whether there is an answer for a key, expired or not."""
        return self._stored(key) is not None

    def came(self, key: Any) -> float:
        """When the answer for a key came, in seconds since the epoch; now, if there is none."""
        stored = self._stored(key)
        return (self.now() if stored is None else self._codec.split(stored)[0]) / 1000

    def _slot_of(self, key: Any) -> Any:
        return self._slot(storable(key) if type(key) is tuple else key)

    def put(self, key: Any, answer: Any, age: int = 0) -> None:
        """Store the answer for a key, as `AnswerCheck` returns it. `age` is what it has in milliseconds."""
        try:
            if answer is None and not self.options.cache_missing:
                # An older answer, kept for `stale_if_error` or being refreshed, is known to be wrong now.
                self._remove(self._slot_of(key))
                return
            if type(key) is not str and type(key) is not int:
                # Both stores refuse the same keys.
                serialize_key(storable(key))
            slot = self._slot_of(key)
            now = self.now()
            stored = self._codec.stamp(now - age, self._codec.encode(answer))
            used = None if self._used is None else self._used.codec.stamp(now, self._used.codec.encode(True))
            self._put(slot, stored, used)
            self._make_room(now)
        except Exception as error:
            self._fail("cannot be kept", key, error)

    def close(self) -> None:
        if not self._backend.closed:
            self._entries.clear()
            self._backend.close()

    def _lives(self, name: str, seconds: Any) -> LivingEntries:
        # Without a clean-up of its own: an entry may only go together with its place in the order of use.
        ttl = StateTtlConfig(FOREVER if seconds is None else seconds, cleanup=())
        descriptor = ValueStateDescriptor(name, serializer=AnswerSerializer(), ttl=ttl)
        lives = self._backend.value_state(descriptor).entries
        assert isinstance(lives, LivingEntries)
        return lives

    def _is_expired(self, written: int, answer: Stored, now: int) -> bool:
        """Whether the lifetime of an answer since it was written is over."""
        return written + (self.miss_life if answer == self._miss else self.row_life) <= now

    def _stored(self, key: Any) -> Any:
        try:
            return self._load(self._slot_of(key))
        except Exception as error:
            self._fail("cannot be read", key, error)
            return None

    def _use(self, slot: Slot, now: int) -> bool:
        """Whether the key was used recently enough. If so, records this use."""
        assert self._used is not None
        table, codec = self._used.table, self._used.codec
        stored = table.get_slot(slot)
        if stored is None or self._used.is_over(stored, now):
            return False
        written, used = codec.split(stored)
        # Within a millisecond the stamp is the same, and no write is needed.
        if written != now:
            table.put_slot(slot, codec.stamp(now, used))
        return True

    def _make_room(self, now: int, written: int = 1) -> None:
        """Remove the least recently used answers above the limit, then expired ones among the next `SWEPT` for each
        that was written."""
        self._shrink(self.options.max_rows)
        if self.options.stale_if_error or not self._expire:
            return
        # The least recently used ones are the most likely to have expired. A fixed number bounds the time of a write.
        for _ in range(SWEPT * written):
            slot = self._oldest()
            if slot is None:
                return
            stored = self._load(slot)
            if stored is not None and not self._is_expired(*self._codec.split(stored), now):
                used = None if self._used is None else self._used.table.get_slot(slot)
                if self._used is None or (used is not None and not self._used.is_over(used, now)):
                    return
            self._remove(slot)

    def _fail(self, what: str, key: Any, error: Exception) -> None:
        """Log once that an answer could not be read, or kept."""
        if what not in self._told:
            self._told.add(what)
            logger.warning(
                "the answer for key %s %s in its cache: %s; such keys are looked up every time; this is logged once",
                describe(key),
                what,
                describe_error(error),
            )
