"""The cache of answers, over a state backend: in memory, or on disk, where answers outlive the process.

An answer is an entry of keyed state with time to live, stamped with the time at which it was written. Every lifetime
(of a row, of a miss, of a fresh answer, since the last use) is a view of such stamps. The rule of expiry is that of
State TTL. An `Order` knows which answers there are, from the least to the most recently used. For answers in memory it
is a dictionary from keys to slots. On disk (`cache_directories`) memory does not depend on the number of keys: the slot
of a key is computed, and the order is on disk too.

Laws: a broken cache never makes a lookup fail. The cache logs once that it could not read or write an answer, and the
key is looked up. Nothing here belongs to an event loop. All callers get the same answer object; the one that passes it
to a user makes a copy.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Final, Protocol

from asyncio_operator.arrow.key_identity import identities, identity
from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.cells import ABSENT
from asyncio_operator.state.descriptors import ValueStateDescriptor
from asyncio_operator.state.serializers import BuiltinSerializer
from asyncio_operator.state.table import Stored, Table
from asyncio_operator.state.ttl import TtlCells
from asyncio_operator.state.ttl_config import StateTtlConfig

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend

logger = logging.getLogger("asyncio_operator")

FOREVER: Final = 1e12
"""Seconds: 30,000 years."""

HELD = 2
"""Rows in memory for each cached row, from which answers in columns are copied. Then a copy costs as much as the writes
since the last one. Cached rows are the keys, or the rows of the last copy if they are more: a key may have several."""

LEAST_HELD = 2_000
"""The same for a small cache: rows of two calls, which it would otherwise copy again and again."""

SWEPT = 2
"""Every write checks this many of the least recently used entries: twice as many as it adds."""

DAMAGED: Final = " is damaged: "
"""In the message of an error about a damaged directory."""

SPECIFICATION = ValueStateDescriptor("specification")
"""The state of a cache on disk that names the specification of its answers."""


class AnswerSerializer(BuiltinSerializer):
    """The built-in serialiser without the copy: cached answers are never changed, so memory holds them as they are."""

    name = "answers-1"
    copies = False

    def serialize(self, value: Any) -> bytes:
        # Rows of a table (`TableRows`) are stored as mappings.
        answer = getattr(value, "answer", None)
        return super().serialize(value if answer is None else answer())

    def copy(self, value: Any) -> Any:
        return value


class Order(Protocol):
    """Names of keys in the order of their last use. A name is what tells keys apart."""

    @property
    def name(self) -> Callable[[Any], Any]:
        """Gives the name of a key."""

    @property
    def get(self) -> Callable[[Any], bytes | None]:
        """Gives the slot of a name; None if there is no answer. With a slot there may be none either."""

    @property
    def use(self) -> Callable[[Any], None]:
        """Counts a use of a name that is there."""

    @property
    def close(self) -> Callable[[], None]:
        """Releases memory, and writes what is not on disk."""

    def __len__(self) -> int: ...

    def put(self, name: Any, slot: bytes, answer: Stored, used: Stored | None) -> None:
        """Writes the answer of a slot, and when it was used if that is kept. Counts as a use of its name."""

    def remove(self, name: Any) -> None:
        """Removes a name and what was put for it, if the name is there."""

    def oldest(self) -> Any:
        """The least recently used name; None if there is none."""


class OrderInMemory:
    """An order that ends with the process.

    Args:
        backend: of both tables.
        answers: the table of the answers.
        used: the table of when they were used, if that is kept.
    """

    def __init__(self, backend: StateBackend, answers: Table, used: Table | None) -> None:
        self._answers, self._used = answers, used
        self._put_answer = answers.put_slot
        self._slots: OrderedDict[Any, bytes] = OrderedDict()
        self.name = identity
        self.get = self._slots.get
        self.use = self._slots.move_to_end
        self.close = self._slots.clear

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, name: Any, slot: bytes, answer: Stored, used: Stored | None) -> None:
        self._put_answer(slot, answer)
        if self._used is not None:
            self._used.put_slot(slot, used)
        self._slots[name] = slot
        self._slots.move_to_end(name)

    def remove(self, name: Any) -> None:
        slot = self._slots.pop(name, None)
        if slot is not None:
            self._answers.delete(slot, b"")
            if self._used is not None:
                self._used.delete(slot, b"")

    def oldest(self) -> Any:
        return next(iter(self._slots), None)


class LookupCache:
    """The answers of one specification. Keys are canonical (`keys`).

    Attributes:
        refreshes: whether old answers are refreshed.

    Args:
        make_order: makes the order of use, for a backend, the table of the answers, and that of their uses.
        backend: used by this cache only. It also holds the name that `cache_directories` writes.
        release: closes the backend. Called once, when the cache is closed.
        renew: closes a damaged backend and returns an empty one in its place. Called once.
    """

    def __init__(
        self,
        options: Cache,
        backend: StateBackend,
        make_order: Callable[[StateBackend, Table, Table | None], Order] = OrderInMemory,
        release: Callable[[], None] | None = None,
        renew: Callable[[], StateBackend] | None = None,
    ) -> None:
        self._options = options
        self._make_order = make_order
        self._release = release or backend.close
        self._renew = renew
        self._told: set[str] = set()
        self.refreshes = options.refresh_after is not None
        self._attach(backend)

    def _attach(self, backend: StateBackend) -> None:
        """Uses the answers in a backend."""
        options = self._options
        self._backend = backend
        self._now = backend.now
        self._written = self._cells("answers", options.expire_after_write)
        self._codec = self._written.codec
        self._load = self._written.table.get_slot
        self._miss = self._codec.encode(None)
        self._missing = self._view(options.missing_ttl)
        self._fresh = self._view(options.refresh_after)
        self._used = None if options.expire_after_access is None else self._cells("used", options.expire_after_access)
        used = None if self._used is None else self._used.table
        other_times = (options.expire_after_access, options.missing_ttl, options.refresh_after)
        self._in_memory = self._make_order is OrderInMemory
        self._table: Any = None
        self._held = self._copied = 0
        self._in_bulk = self._in_memory and not any(time is not None for time in other_times)
        self._order = self._make_order(backend, self._written.table, used)
        self._name, self._slot_of, self._count_use = self._order.name, self._order.get, self._order.use
        # Law L4: a worker that was killed between a write and the removal that follows leaves a key too many.
        while len(self._order) > options.max_rows:
            self._order.remove(self._order.oldest())

    def __len__(self) -> int:
        """The number of keys in the cache, expired ones included."""
        return len(self._order)

    def get(self, key: Any) -> Any:
        """The answer for a key, None for a miss, or ABSENT if the cache has no live answer. Counts as a use."""
        try:
            name = self._name(key)
            slot = self._slot_of(name)
            if slot is None:
                return ABSENT
            stored = self._load(slot)
            if stored is None:
                return ABSENT
            codec, now = self._codec, self._now()
            if self._life(stored).is_over(stored, now) or (self._used is not None and not self._use(slot, now)):
                # Law L6: with `stale_if_error` the expired answer has to be here if the lookup fails.
                if not self._options.stale_if_error:
                    self._order.remove(name)
                return ABSENT
            self._count_use(name)
            return codec.decode(codec.unstamp(stored))
        except Exception as error:
            self._fail("cannot be read", key, error)
            return ABSENT

    def get_many(self, keys: Sequence[Any], absent: Any) -> list[Any]:
        """The answers of `get` for keys, `absent` in place of ABSENT."""
        if not self._in_bulk:
            return [absent if (answer := self.get(key)) is ABSENT else answer for key in keys]
        # In memory, with one lifetime and no time of use: no step has a Python function for each key.
        names = identities(keys)
        slots: Any = map(self._slot_of, names)
        stored = list(map(self._load, slots))  # In memory there is no entry for None.
        answers = self._written.living(stored, absent)
        hits = [answer is not absent for answer in answers]
        deque(map(self._count_use, compress(names, hits)), maxlen=0)
        if stored.count(None) < hits.count(False):
            # Expired ones: `get` removes them.
            for key, one, hit in zip(keys, stored, hits, strict=True):
                if one is not None and not hit:
                    self.get(key)
        return answers

    def is_old(self, key: Any) -> bool:
        """Whether the cache has an answer for a key that is due to be refreshed."""
        stored = self._stored(key)
        return stored is not None and self._fresh.is_over(stored, self._now())

    def stale(self, key: Any) -> Any:
        """The answer for a key, expired or not, if `stale_if_error` allows it; else, or without one, ABSENT."""
        stored = self._stored(key) if self._options.stale_if_error else None
        return ABSENT if stored is None else self._codec.decode(self._codec.unstamp(stored))

    def put(self, key: Any, answer: Any) -> None:
        """Store the answer for a key, as `AnswerCheck` returns it."""
        if answer is None and not self._options.cache_missing:
            # An older answer, kept for `stale_if_error` or being refreshed, is known to be wrong now.
            self._discard(key)
            return
        try:
            self._backend.set_current_key(key)
            slot, name = self._backend.require_slot(), self._name(key)
            now = self._now()
            stored = self._codec.stamp(now, self._codec.encode(answer))
            used = None if self._used is None else self._used.codec.stamp(now, self._used.codec.encode(True))
            self._order.put(name, slot, stored, used)
            self._make_room(now)
            if self._in_memory and hasattr(answer, "table"):
                self._hold(answer.table)
        except Exception as error:
            self._fail("cannot be kept", key, error)

    def _hold(self, table: Any) -> None:
        """Note a table with rows of answers in columns. All of it stays in memory while one of its rows is cached."""
        if table is not self._table:
            # Once for a call: while its answers are written, each copy would leave its table in memory all the same.
            if self._held > HELD * max(len(self._order), self._copied, LEAST_HELD):
                self._compact()
            self._table = table
            self._held += table.num_rows

    def _compact(self) -> None:
        """Copy the answers in columns into a table of their own."""
        # Imported here: it loads pyarrow, which made these answers.
        from asyncio_operator.arrow.table_rows import compacted

        codec, table = self._codec, self._written.table
        entries = [(slot, stored, codec.unstamp(stored)) for slot, _, stored in table.entries()]
        in_columns = [entry for entry in entries if hasattr(entry[2], "table")]
        copies = compacted([answer for _, _, answer in in_columns])
        for (slot, stored, _), copy in zip(in_columns, copies, strict=True):
            table.put_slot(slot, codec.stamp(codec.timestamp(stored), copy))
        self._held = self._copied = sum(copy.count for copy in copies)

    def close(self) -> None:
        """Release files and memory. A second call does nothing."""
        if self._backend.closed:
            return
        try:
            self._order.close()
        except StateError as error:
            logger.warning(
                "the cache could not write which answers were used last, so it may drop others first: %s",
                describe_error(error),
            )
        self._release()

    def _discard(self, key: Any) -> None:
        """Forget a key."""
        try:
            self._order.remove(self._name(key))
        except Exception as error:
            self._fail("cannot be removed", key, error)

    def _cells(self, name: str, seconds: Any) -> TtlCells:
        # Without a clean-up of its own: an entry may only go together with its place in the order of use.
        ttl = StateTtlConfig(FOREVER if seconds is None else seconds, cleanup=())
        cells = self._backend.cells(
            ValueStateDescriptor(name, serializer=AnswerSerializer(), ttl=ttl), ValueStateDescriptor
        )
        assert isinstance(cells, TtlCells)
        return cells

    def _view(self, seconds: Any) -> TtlCells:
        """A view of the answers with another lifetime. None: the lifetime since the write."""
        if seconds is None:
            return self._written
        ttl = StateTtlConfig(seconds, cleanup=())
        return TtlCells("answers", self._backend, self._written.table, self._codec, ttl)

    def _life(self, stored: Any) -> TtlCells:
        """The lifetime of an answer."""
        return self._missing if self._codec.unstamp(stored) == self._miss else self._written

    def _stored(self, key: Any) -> Any:
        try:
            slot = self._slot_of(self._name(key))
            return None if slot is None else self._load(slot)
        except Exception as error:
            self._fail("cannot be read", key, error)
            return None

    def _use(self, slot: bytes, now: int) -> bool:
        """Whether the key was used recently enough. If so, records this use."""
        assert self._used is not None
        table, codec = self._used.table, self._used.codec
        stored = table.get_slot(slot)
        if stored is None or self._used.is_over(stored, now):
            return False
        # Within a millisecond the stamp is the same, and no write is needed.
        if codec.timestamp(stored) != now:
            table.put_slot(slot, codec.stamp(now, codec.unstamp(stored)))
        return True

    def _make_room(self, now: int) -> None:
        """Remove the least recently used answers above the limit, then expired ones among the next `SWEPT`."""
        order = self._order
        while len(order) > self._options.max_rows:
            order.remove(order.oldest())
        if self._options.stale_if_error:
            return
        # The least recently used ones are the most likely to have expired. A fixed number bounds the time of a write.
        for _ in range(SWEPT):
            name = order.oldest()
            slot = None if name is None else self._slot_of(name)
            if slot is None or not self._is_over(slot, now):
                return
            order.remove(name)

    def _is_over(self, slot: bytes, now: int) -> bool:
        stored = self._load(slot)
        if stored is None or self._life(stored).is_over(stored, now):
            return True
        if self._used is None:
            return False
        used = self._used.table.get_slot(slot)
        return used is None or self._used.is_over(used, now)

    def _fail(self, what: str, key: Any, error: Exception) -> None:
        """Clears a damaged cache, once: a disk that damages it again is not worth another attempt."""
        if self._renew is not None and DAMAGED in str(self._written.table.error(error)):
            renew, self._renew = self._renew, None
            try:
                self._attach(renew())
                return
            except Exception as failure:
                error = failure
        self._tell(what, key, error)

    def _tell(self, what: str, key: Any, error: Exception) -> None:
        if what not in self._told:
            self._told.add(what)
            logger.warning(
                "the answer for key %s %s in its cache: %s; such keys are looked up every time; this is logged once",
                describe(key),
                what,
                describe_error(error),
            )
