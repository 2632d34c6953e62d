"""The five kinds of keyed state. Each reads and writes at the backend's current key and namespace.

They know neither where the entries are stored nor that entries may expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Generic, NoReturn, TypeVar

from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.state.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from asyncio_operator.state.entries import ABSENT, Entries
from asyncio_operator.state.keys import KeySerializer, serialize_key
from asyncio_operator.state.layout import describe_slot, sequence_bytes
from asyncio_operator.state.serializers import checked

K = TypeVar("K")
V = TypeVar("V")

READING: Final = "the serialiser failed while reading"
WRITING: Final = "the serialiser failed while writing"


class State:
    """What all states share: the backend, and the entries, by slot and sub, which it turns into values.

    An error of a serialiser or of the store becomes a StateError that names the state, the key and the namespace.

    Attributes:
        name: from the descriptor.
        entries: the table of the state, or what lives of it.
    """

    __slots__ = ("__weakref__", "_backend", "_current", "_decode", "_encode", "entries", "name")

    def __init__(self, backend: Any, entries: Entries, descriptor: Any) -> None:
        # A `StateBackend`, whose class is made of this one. What has the current slot is mostly the same object.
        self._backend: Any = backend
        self._current: Any = backend
        self.name: str = descriptor.name
        self.entries = entries
        self._encode, self._decode = entries.codec.encode, entries.codec.decode

    def mark_dropped(self) -> None:
        """Every use is a StateError from here on."""

        def refuse() -> NoReturn:
            raise StateError(
                f"state {self.name!r} was dropped: request it again from the backend, which makes a new one"
            )

        # Without a slot at hand, every method asks for one.
        self._current = SimpleNamespace(slot=None, require_slot=refuse)

    def clear(self) -> None:
        """Removes what is stored for the current key and namespace."""
        self._staged(self._current.slot or self._current.require_slot(), (), clear=True)()

    def _get(self, slot: bytes, sub: bytes, default: Any = None) -> Any:
        """The value at an address, or the default."""
        try:
            stored = self.entries.get(slot, sub)
            return default if stored is None else self._decode(stored)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def _put(self, slot: bytes, sub: bytes, value: Any) -> None:
        try:
            self.entries.put(slot, sub, self._encode(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def _delete(self, slot: bytes, sub: bytes) -> None:
        self._try(slot, WRITING, self.entries.delete, slot, sub)

    def _scan(self, slot: bytes) -> Iterator[tuple[bytes, Any]]:
        """Subs and values of a slot as they are now, in the order of the subs. StateError after the backend is
        closed."""
        return self._decoded(slot, self._try(slot, READING, self.entries.scan, slot))

    def _decoded(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[bytes, Any]]:
        decode, backend = self._decode, self._backend
        try:
            for sub, stored in rows:
                if backend.closed:
                    backend.check_open()
                yield sub, decode(stored)
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def _staged(self, slot: bytes, changes: Iterable[tuple[bytes, Any]], clear: bool = False) -> Callable[[], None]:
        """What writes values as one batch when it is called: after a crash all of it is there, or nothing. `clear`
        empties the slot before. Until the call nothing is changed."""
        try:
            batch = self._backend.new_batch()
            self.entries.stage(batch, slot, [(sub, self._encode(value)) for sub, value in changes], clear)
        except Exception as error:
            raise self.located(error, slot, WRITING) from error
        return partial(self._commit, batch, slot)

    def _commit(self, batch: Any, slot: bytes) -> None:
        self._try(slot, WRITING, self._backend.commit, batch)

    def access(self, slot: bytes) -> None:
        """Counts an access for the clean-up of a state with time to live."""
        self._try(slot, "cleaning up failed", self.entries.access)

    def _try(self, slot: bytes, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a function, whose error becomes a StateError."""
        try:
            return function(*arguments)
        except Exception as error:
            raise self.located(error, slot, doing) from error

    def located(self, error: Exception, slot: bytes, doing: str = "") -> StateError:
        """The error as a StateError that says where it happened. `doing` says in which step code of the user raised
        it."""
        # An error that passes through two of these methods names the place already.
        error = self.entries.error(error)
        where = f"state {self.name!r}, {describe_slot(slot, self._backend.group_width)}"
        kind = type(error) if isinstance(error, StateError) else StateError
        what = str(error) if isinstance(error, StateError) else f"{doing}: {describe_error(error)}"
        return kind(f"{where}: {what.removeprefix(where + ': ')}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class ValueState(State, Generic[V]):
    """One value."""

    __slots__ = ("_copy_default", "_load", "_store")

    def __init__(self, backend: Any, entries: Entries, descriptor: ValueStateDescriptor) -> None:
        super().__init__(backend, entries, descriptor)
        # The store's own functions where possible, to save a call on the path of every value.
        self._load, self._store = entries.get_slot, entries.put_slot
        self._copy_default: Callable[[], Any] | None = None
        if descriptor.default is not None and descriptor.ttl is None:
            try:
                default = self._encode(descriptor.default)
            except Exception as error:
                raise StateError(f"the default of state {self.name!r} cannot be stored: {error}") from error
            # Law S4: a fresh copy each time, because the caller may change what it gets.
            self._copy_default = lambda: self._decode(default)

    def value(self) -> V | None:
        """The value; without one, a fresh copy of the default, or None."""
        current = self._current
        slot = current.slot or current.require_slot()
        try:
            stored = self._load(slot)
            if stored is not None:
                return self._decode(stored)  # type: ignore[no-any-return]
            return self._copy_default() if self._copy_default is not None else None
        except Exception as error:
            raise self.located(error, slot, READING) from error

    def update(self, value: V | None) -> None:
        """Writes the value; None clears it."""
        current = self._current
        slot = current.slot or current.require_slot()
        if value is None:
            self._delete(slot, b"")
            return
        try:
            self._store(slot, self._encode(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def clear(self) -> None:
        """Removes the value."""
        self._delete(self._current.slot or self._current.require_slot(), b"")


class ListState(State, Generic[V]):
    """A list, in the order of adding."""

    __slots__ = ()

    def get(self) -> list[V]:
        """The elements, as a list of your own; empty if there are none."""
        return [value for _, value in self._scan(self._current.slot or self._current.require_slot())]

    def add(self, value: V) -> None:
        """Appends an element, without reading anything.

        Raises:
            StateError: the element is None; nothing is changed.
        """
        slot = self._current.slot or self._current.require_slot()
        if value is None:
            raise self.located(StateError("None cannot be an element of a list state: leave it out"), slot)
        try:
            # Law S5: a new number sorts last, so nothing has to be read.
            self.entries.put(slot, sequence_bytes(self._backend.next_sequence()), self._encode(value))
        except Exception as error:
            raise self.located(error, slot, WRITING) from error

    def add_all(self, values: Iterable[V]) -> None:
        """Appends elements, all of them or none, without reading anything; raises as `add` does."""
        self._write_all(values, clear=False)

    def update(self, values: Iterable[V]) -> None:
        """Replaces the list, as one batch; an empty one clears. Raises as `add` does."""
        self._write_all(values, clear=True)

    def _write_all(self, values: Iterable[V], clear: bool) -> None:
        slot = self._current.slot or self._current.require_slot()
        if not isinstance(values, Iterable):
            raise self.located(StateError(f"{describe(values)} is not an iterable of elements"), slot)
        elements = list(values)
        if any(value is None for value in elements):
            error = StateError(f"{describe(elements)}: None cannot be an element of a list state, leave it out")
            raise self.located(error, slot)
        changes = ((sequence_bytes(self._backend.next_sequence()), value) for value in elements)
        self._staged(slot, changes, clear)()


class MapState(State, Generic[K, V]):
    """A map, in the order of its serialised keys. Reading or writing one entry costs the same however large it is."""

    __slots__ = ("_key", "_sub")

    def __init__(self, backend: Any, entries: Entries, descriptor: MapStateDescriptor) -> None:
        super().__init__(backend, entries, descriptor)
        if descriptor.key_serializer is None:
            self._sub: Callable[[Any], bytes] = serialize_key
            self._key: Callable[[bytes], Any] = KeySerializer().deserialize
        else:
            self._sub = checked(descriptor.key_serializer)
            self._key = descriptor.key_serializer.deserialize

    def get(self, key: K) -> V | None:
        """The value of an entry, or None. `contains` distinguishes an absent entry from one that holds None."""
        slot = self._current.slot or self._current.require_slot()
        return self._get(slot, self.sub_of(slot, key))  # type: ignore[no-any-return]

    def put(self, key: K, value: V) -> None:
        """Writes one entry; None is a value."""
        slot = self._current.slot or self._current.require_slot()
        self._put(slot, self.sub_of(slot, key), value)

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Writes entries, as one batch."""
        slot = self._current.slot or self._current.require_slot()
        if not isinstance(entries, Mapping):
            raise self.located(StateError(f"put_all({describe(entries)}): a mapping is needed, a dict"), slot)
        self._staged(slot, [(self.sub_of(slot, key), value) for key, value in entries.items()])()

    def remove(self, key: K) -> None:
        """Removes one entry, if it is there."""
        slot = self._current.slot or self._current.require_slot()
        self._delete(slot, self.sub_of(slot, key))

    def contains(self, key: K) -> bool:
        """Whether there is an entry for the key."""
        slot = self._current.slot or self._current.require_slot()
        return self._try(slot, READING, self.entries.get, slot, self.sub_of(slot, key)) is not None

    def items(self) -> Iterator[tuple[K, V]]:
        """The entries as they are now, in the order of the serialised keys. Later writes are not seen."""
        slot = self._current.slot or self._current.require_slot()
        return self._items(slot, self._scan(slot))

    def keys(self) -> Iterator[K]:
        """The keys of `items`."""
        return (key for key, _ in self.items())

    def values(self) -> Iterator[V]:
        """The values of `items`."""
        return (value for _, value in self._scan(self._current.slot or self._current.require_slot()))

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        slot = self._current.slot or self._current.require_slot()
        return self._try(slot, READING, self.entries.is_empty, slot)  # type: ignore[no-any-return]

    def _items(self, slot: bytes, rows: Iterator[tuple[bytes, Any]]) -> Iterator[tuple[K, V]]:
        key_of = self._key
        for sub, value in rows:
            try:
                key = key_of(sub)
            except Exception as error:
                raise self.located(error, slot, "the key serialiser failed while reading") from error
            yield key, value

    def sub_of(self, slot: bytes, key: K) -> bytes:
        """The bytes of a user key, for an entry of a slot."""
        try:
            return self._sub(key)
        except Exception as error:
            refused: Exception = error
            if key is None and isinstance(error, StateError):
                refused = StateError("None cannot be a key of a map state; a value of a map may be None")
            raise self.located(refused, slot, "the key serialiser failed while writing") from error


class ReducingState(State, Generic[V]):
    """One value: the fold of all added values."""

    __slots__ = ("_reduce",)

    def __init__(self, backend: Any, entries: Entries, descriptor: ReducingStateDescriptor) -> None:
        super().__init__(backend, entries, descriptor)
        self._reduce = descriptor.reduce

    def get(self) -> V | None:
        """The folded value, or None if nothing was added."""
        return self._get(self._current.slot or self._current.require_slot(), b"")  # type: ignore[no-any-return]

    def add(self, value: V) -> None:
        """Folds a value in: ``reduce(old, value)``; the first one is stored as it is."""
        slot = self._current.slot or self._current.require_slot()
        old = self._get(slot, b"", ABSENT)
        if old is not ABSENT:
            value = self._try(slot, "reduce() raised", self._reduce, old, value)
        self._put(slot, b"", value)


class AggregatingState(State):
    """One accumulator of all added values, and its result."""

    __slots__ = ("_aggregate",)

    def __init__(self, backend: Any, entries: Entries, descriptor: AggregatingStateDescriptor) -> None:
        super().__init__(backend, entries, descriptor)
        self._aggregate = descriptor.aggregate

    def get(self) -> Any:
        """The accumulator's result, or None if nothing was added."""
        slot = self._current.slot or self._current.require_slot()
        if (accumulator := self._get(slot, b"", ABSENT)) is ABSENT:
            return None
        return self._try(slot, "get_result() raised", self._aggregate.get_result, accumulator)

    def add(self, value: Any) -> None:
        """Adds a value to the accumulator, a new one if there is none."""
        self.prepare(value)()

    def prepare(self, value: Any) -> Callable[[], None]:
        """Folds a value in, and returns what stores the result. Until that is called nothing is changed."""
        slot = self._current.slot or self._current.require_slot()
        accumulator = self._get(slot, b"", ABSENT)
        if accumulator is ABSENT:
            accumulator = self._try(slot, "create_accumulator() raised", self._aggregate.create_accumulator)
        return self._staged(slot, [(b"", self._try(slot, "add() raised", self._aggregate.add, value, accumulator))])
