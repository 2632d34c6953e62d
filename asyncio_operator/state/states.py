"""The five kinds of keyed state, over cells. Each reads and writes at the backend's current key and namespace.

They know neither where the entries are stored nor that entries may expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Generic, NoReturn, TypeVar

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.cells import ABSENT, READING, WRITING, Cells
from asyncio_operator.state.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from asyncio_operator.state.keys import KeySerializer, serialize_key
from asyncio_operator.state.layout import sequence_bytes
from asyncio_operator.state.serializers import checked

K = TypeVar("K")
V = TypeVar("V")


class State:
    """What all states share: their cells, and the backend that has the current slot."""

    __slots__ = ("__weakref__", "_backend", "_cells")

    def __init__(self, cells: Cells, descriptor: Any) -> None:
        self._cells = cells
        self._backend: Any = cells.backend

    def mark_dropped(self) -> None:
        """Every use is a StateError from here on."""

        def refuse() -> NoReturn:
            raise StateError(
                f"state {self._cells.name!r} was dropped: request it again from the backend, which makes a new one"
            )

        # Without a slot at hand, every method asks for one.
        self._backend = SimpleNamespace(slot=None, require_slot=refuse)

    def clear(self) -> None:
        """Removes what is stored for the current key and namespace."""
        self._cells.clear(self._backend.slot or self._backend.require_slot())

    def _failed(self, error: Exception, function: str) -> StateError:
        """The StateError for an error of the user's function: it names the state, the key and the namespace."""
        return self._cells.located(error, self._backend.slot or self._backend.require_slot(), f"{function}() raised")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._cells.name!r}>"


class ValueState(State, Generic[V]):
    """One value."""

    __slots__ = ("_copy_default", "_decode", "_encode", "_load", "_store")

    def __init__(self, cells: Cells, descriptor: ValueStateDescriptor) -> None:
        super().__init__(cells, descriptor)
        self._load = cells.load
        self._store = cells.store
        self._encode = cells.codec.encode
        self._decode = cells.codec.decode
        self._copy_default: Callable[[], Any] | None = None
        if descriptor.default is not None and descriptor.ttl is None:
            try:
                default = self._encode(descriptor.default)
            except Exception as error:
                raise StateError(f"the default of state {cells.name!r} cannot be stored: {error}") from error
            # Law S4: a fresh copy each time, because the caller may change what it gets.
            self._copy_default = lambda: self._decode(default)

    def value(self) -> V | None:
        """The value; without one, a fresh copy of the default, or None."""
        backend = self._backend
        slot = backend.slot or backend.require_slot()
        try:
            stored = self._load(slot)
            if stored is not None:
                return self._decode(stored)  # type: ignore[no-any-return]
            return self._copy_default() if self._copy_default is not None else None
        except Exception as error:
            raise self._cells.located(error, slot, READING) from error

    def update(self, value: V | None) -> None:
        """Writes the value; None clears it."""
        backend = self._backend
        slot = backend.slot or backend.require_slot()
        if value is None:
            self._cells.delete(slot, b"")
            return
        try:
            self._store(slot, self._encode(value))
        except Exception as error:
            raise self._cells.located(error, slot, WRITING) from error

    def clear(self) -> None:
        """Removes the value."""
        self._cells.delete(self._backend.slot or self._backend.require_slot(), b"")


class ListState(State, Generic[V]):
    """A list, in the order of adding."""

    __slots__ = ()

    def get(self) -> list[V]:
        """The elements, as a list of your own; empty if there are none."""
        return [value for _, value in self._cells.scan(self._backend.slot or self._backend.require_slot())]

    def add(self, value: V) -> None:
        """Appends an element, without reading anything.

        Raises:
            StateError: the element is None; nothing is changed.
        """
        slot = self._backend.slot or self._backend.require_slot()
        if value is None:
            raise self._cells.located(StateError("None cannot be an element of a list state: leave it out"), slot)
        # Law S5: a new number sorts last, so nothing has to be read.
        self._cells.put(slot, self._next_sub(slot), value)

    def add_all(self, values: Iterable[V]) -> None:
        """Appends elements, all of them or none, without reading anything; raises as `add` does."""
        self._write(values, clear=False)

    def update(self, values: Iterable[V]) -> None:
        """Replaces the list, as one batch; an empty one clears. Raises as `add` does."""
        self._write(values, clear=True)

    def _write(self, values: Iterable[V], clear: bool) -> None:
        slot = self._backend.slot or self._backend.require_slot()
        if not isinstance(values, Iterable):
            raise self._cells.located(StateError(f"{describe(values)} is not an iterable of elements"), slot)
        elements = list(values)
        if any(value is None for value in elements):
            raise self._cells.located(
                StateError(f"{describe(elements)}: None cannot be an element of a list state, leave it out"), slot
            )
        self._cells.write(slot, [(self._next_sub(slot), value) for value in elements], clear)

    def _next_sub(self, slot: bytes) -> bytes:
        try:
            return sequence_bytes(self._backend.next_sequence())
        except StateError as error:
            raise self._cells.located(error, slot) from error


class MapState(State, Generic[K, V]):
    """A map, in the order of its serialised keys. Reading or writing one entry costs the same however large it is."""

    __slots__ = ("_key", "_sub")

    def __init__(self, cells: Cells, descriptor: MapStateDescriptor) -> None:
        super().__init__(cells, descriptor)
        if descriptor.key_serializer is None:
            self._sub: Callable[[Any], bytes] = serialize_key
            self._key: Callable[[bytes], Any] = KeySerializer().deserialize
        else:
            self._sub = checked(descriptor.key_serializer)
            self._key = descriptor.key_serializer.deserialize

    def get(self, key: K) -> V | None:
        """The value of an entry, or None. `contains` distinguishes an absent entry from one that holds None."""
        slot, sub = self._at(key)
        value = self._cells.get(slot, sub)
        return None if value is ABSENT else value

    def put(self, key: K, value: V) -> None:
        """Writes one entry; None is a value."""
        self._cells.put(*self._at(key), value)

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Writes entries, as one batch."""
        slot = self._backend.slot or self._backend.require_slot()
        if not isinstance(entries, Mapping):
            raise self._cells.located(StateError(f"put_all({describe(entries)}): a mapping is needed, a dict"), slot)
        self._cells.write(slot, [(self.sub_of(slot, key), value) for key, value in entries.items()])

    def remove(self, key: K) -> None:
        """Removes one entry, if it is there."""
        self._cells.delete(*self._at(key))

    def contains(self, key: K) -> bool:
        """Whether there is an entry for the key."""
        return self._cells.contains(*self._at(key))

    def items(self) -> Iterator[tuple[K, V]]:
        """The entries as they are now, in the order of the serialised keys. Later writes are not seen."""
        slot = self._backend.slot or self._backend.require_slot()
        return self._items(slot, self._cells.scan(slot))

    def keys(self) -> Iterator[K]:
        """The keys of `items`."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """The values of `items`."""
        return (value for _, value in self._cells.scan(self._backend.slot or self._backend.require_slot()))

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self._cells.is_empty(self._backend.slot or self._backend.require_slot())

    def _items(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[K, V]]:
        key_of = self._key
        for sub, value in rows:
            try:
                key = key_of(sub)
            except Exception as error:
                raise self._cells.located(error, slot, "the key serialiser failed while reading") from error
            yield key, value

    def _at(self, key: K) -> tuple[bytes, bytes]:
        slot = self._backend.slot or self._backend.require_slot()
        try:
            return slot, self._sub(key)
        except Exception as error:
            raise self._refused(error, key, slot) from error

    def sub_of(self, slot: bytes, key: K) -> bytes:
        """The bytes of a user key, for an entry of a slot."""
        try:
            return self._sub(key)
        except Exception as error:
            raise self._refused(error, key, slot) from error

    def _refused(self, error: Exception, key: Any, slot: bytes) -> StateError:
        if key is None and isinstance(error, StateError):
            error = StateError("None cannot be a key of a map state; a value of a map may be None")
        return self._cells.located(error, slot, "the key serialiser failed while writing")


class ReducingState(State, Generic[V]):
    """One value: the fold of all added values."""

    __slots__ = ("_reduce",)

    def __init__(self, cells: Cells, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(cells, descriptor)
        self._reduce = descriptor.reduce

    def get(self) -> V | None:
        """The folded value, or None if nothing was added."""
        value = self._cells.get(self._backend.slot or self._backend.require_slot(), b"")
        return None if value is ABSENT else value

    def add(self, value: V) -> None:
        """Folds a value in: ``reduce(old, value)``; the first one is stored as it is."""
        slot = self._backend.slot or self._backend.require_slot()
        old = self._cells.get(slot, b"")
        if old is not ABSENT:
            try:
                value = self._reduce(old, value)
            except Exception as error:
                raise self._failed(error, "reduce") from error
        self._cells.put(slot, b"", value)


class AggregatingState(State):
    """One accumulator of all added values, and its result."""

    __slots__ = ("_aggregate",)

    def __init__(self, cells: Cells, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(cells, descriptor)
        self._aggregate = descriptor.aggregate

    def get(self) -> Any:
        """The accumulator's result, or None if nothing was added."""
        accumulator = self._cells.get(self._backend.slot or self._backend.require_slot(), b"")
        return None if accumulator is ABSENT else self._call("get_result", accumulator)

    def add(self, value: Any) -> None:
        """Adds a value to the accumulator, a new one if there is none."""
        slot = self._backend.slot or self._backend.require_slot()
        accumulator = self._cells.get(slot, b"")
        if accumulator is ABSENT:
            accumulator = self._call("create_accumulator")
        self._cells.put(slot, b"", self._call("add", value, accumulator))

    def _call(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._aggregate, function)(*arguments)
        except Exception as error:
            raise self._failed(error, function) from error
