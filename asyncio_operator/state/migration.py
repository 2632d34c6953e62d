"""A value state that holds a map becomes a map state, key by key, while it is being used.

The first access to a key and namespace reads the old value, writes its entries and deletes it, in one batch. From then
on the old state is empty there. So a reader sees the same entries whether a key has moved or not, and a process that
dies leaves each key whole, in one of the two states. A key that is never accessed is moved by `finish`, which ends the
migration: then the backend can drop the old state. A value that is written into the old state later is newer than the
map: at the next access it replaces the map.

With time to live on both sides an entry keeps the time its value was written.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from asyncio_operator.checks import must_be
from asyncio_operator.errors import StateError, StateMigrationError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.states import READING, WRITING, MapState, ValueState
from asyncio_operator.state.ttl import LivingEntries

K = TypeVar("K")
V = TypeVar("V")


class MigratingMapState(MapState[K, V]):
    """A map state that takes over the dict of a value state when a key is first accessed.

    Args:
        backend: holds both states.
        old: the descriptor of the value state, whose values are dicts.
        new: the descriptor of the map state, with another name.

    Raises:
        ConfigurationError: an argument is of another class, the names are equal, or the old state has a default that is
            not empty.
        StateError: as by the backend's `value_state` and `map_state`. Every method raises StateMigrationError for an
            old value that is not a dict, or has a key or a value that the new serialisers do not take. That value
            stays as it is.
    """

    def __init__(self, backend: StateBackend, old: ValueStateDescriptor, new: MapStateDescriptor) -> None:
        kinds = ("backend", backend, StateBackend), ("old", old, ValueStateDescriptor), ("new", new, MapStateDescriptor)
        for argument, given, kind in kinds:
            if not isinstance(given, kind):
                raise must_be(f"{argument} of MigratingMapState", given, f"a {kind.__name__}")
        if old.name == new.name:
            raise must_be("the name of the new state", new.name, "another one than that of the old state")
        if old.default:
            raise must_be(f"the default of the old state {old.name!r}", old.default, "left out: a map has none")
        self._old: ValueState[Any] = backend.value_state(old)  # Its `_current` is the backend until it is dropped.
        self._map: MapState[K, V] = backend.map_state(new)
        super().__init__(backend, self._map.entries, new)
        # Without a slot at hand, every method asks for one, and the old value moves first.
        self._current = SimpleNamespace(slot=None, require_slot=self._moved)

    def clear(self) -> None:
        """As of `MapState`; an old value goes too, in the same batch."""
        slot, batch = self._slot(), self._backend.new_batch()
        if self._old._current is self._backend:
            self._old.entries.stage(batch, slot, (), True)
        self.entries.stage(batch, slot, (), True)
        self._commit(batch, slot)

    def finish(self) -> None:
        """Moves what is left in the old state, of all keys and namespaces. The current key and namespace stay.

        Each key is a batch of its own, so a process that dies leaves the rest to the next call. After it
        ``backend.drop(name)`` takes the old state away: this object still works, without a new state of its name.

        Raises:
            StateMigrationError: an old value does not fit; it stays, and so do those behind it.
            StateError: the backend is closed.
        """
        self._backend.settle()
        if self._old._current is self._backend:
            for slot, sub, stored in self._backend.table(self._old.name).entries():
                self._move(slot + sub, stored)

    def _slot(self) -> bytes:
        current = self._map._current  # Its own, which refuses to work when the new state was dropped.
        slot: bytes = current.slot or current.require_slot()
        return slot

    def _moved(self) -> bytes:
        """The current slot, after its old value, if there is one, has moved into the map."""
        slot = self._slot()
        if self._old._current is self._backend:
            stored = self._stored(slot)
            if stored is not None:
                self._move(slot, stored)
        return slot

    def _stored(self, slot: bytes) -> Any:
        """The old value as it is stored, or None. This is no access, and an expired one stays."""
        return self._old._try(slot, READING, self._backend.table(self._old.name).get_slot, slot)

    def _move(self, slot: bytes, stored: Any) -> None:
        # This also removes an expired value, which must not move.
        old = self._old._get(slot, b"", ABSENT)
        if old is ABSENT:
            return
        if not isinstance(old, dict):
            raise self._unfit(slot, f"the old value {describe(old)} is not a dict")
        try:
            entries = [(self.sub_of(slot, key), self._encode(value)) for key, value in old.items()]
        except Exception as error:
            what = self.located(error, slot, WRITING)
            raise self._unfit(slot, f"the old value {describe(old)} does not fit: {what}") from error
        batch, table, new = self._backend.new_batch(), self._backend.table(self._old.name), self.entries
        if isinstance(self._old.entries, LivingEntries) and isinstance(new, LivingEntries):
            # The read above may have renewed the old value, whose time then counts, or removed it.
            begun, _ = table.codec.split(self._stored(slot) or stored)
            new.stage(batch, slot, entries, True, begun)
        else:
            new.stage(batch, slot, entries, True)
        # In the same batch: after a crash a key is in one state, and never in both or in neither.
        table.stage(batch, slot, (), True)
        self._commit(batch, slot)

    def _unfit(self, slot: bytes, what: str) -> StateError:
        remedy = "correct it through the old value state, or give the new state other serialisers"
        return self._old.located(StateMigrationError(f"{what}; {remedy}"), slot)
