"""The base of both backends: a current key and namespace, and states by name.

The slot of the current key and namespace (`layout`) is computed when they are set, and every state reads it from here.
A backend keeps the `StateMeta` of each state, also of those that came with a snapshot or a reopened directory, and
refuses a descriptor that does not fit.

The subclass provides tables, codecs, batches and snapshots, and knows neither kinds of state nor time to live.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar
from weakref import WeakSet

from asyncio_operator.checks import milliseconds, must_be
from asyncio_operator.clock import Clock
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.descriptors import (
    QUEUE,
    AggregatingStateDescriptor,
    Cleanup,
    CleanupInCompaction,
    CleanupIncrementally,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateMeta,
    ValueStateDescriptor,
    describe_state,
    value_serializer,
)
from asyncio_operator.state.entries import Batch, Entries, Table
from asyncio_operator.state.key_groups import KeyGroupRange, addresses_of, group_prefix, group_width, resolve_key_groups
from asyncio_operator.state.keys import NONE, Key
from asyncio_operator.state.layout import parse_slot, serialize_namespace
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import Serializer, check_serializer
from asyncio_operator.state.snapshot import StateSnapshot, merge_states
from asyncio_operator.state.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from asyncio_operator.state.ttl import LivingEntries

S = TypeVar("S", bound=State)
T = TypeVar("T")


class Queue(NamedTuple):
    """What a backend needs to know of a priority queue."""

    key: Callable[[Any], Any]
    key_of: Callable[[Any], Key]
    serializer: Serializer
    cache_size: int


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """Figures of a state backend now, in bytes. All are 0 for a backend in memory: Python counts no bytes of objects.

    Attributes:
        memory: write buffers of this backend, and the data about its table files that are outside of the block cache.
        disk: all files of its directory, the log included.
        log: the write-ahead log, which an opening after a crash reads.
        pending_compaction: what RocksDB still has to rewrite to merge table files; an estimate.
        shared_cache: the block cache, which all databases of the process with equal options share; the same figure in
            each of them.
    """

    memory: int = 0
    disk: int = 0
    log: int = 0
    pending_compaction: int = 0
    shared_cache: int = 0


class StateBackend(ABC):
    """Keyed state of a range of key groups.

    Args:
        key_groups: the range; keys outside it are refused. None is all of them.
        max_parallelism: the number of key groups there are, 1 to 32,768. It never changes for state once written.
        clock: seconds as a float, for time to live; None is the system's.

    Raises:
        ConfigurationError: the range and the maximum parallelism do not fit.

    A backend belongs to one thread at a time. ``with backend:`` closes it.
    """

    remedy: ClassVar[str] = "make a new backend, and restore a snapshot into it"
    """What the user can do when it is closed."""

    snapshots_on_disk: ClassVar[bool] = False
    """Whether `snapshot` makes a directory."""

    def __init__(self, key_groups: KeyGroupRange | None, max_parallelism: int, clock: Clock | None) -> None:
        self.key_groups = resolve_key_groups(key_groups, max_parallelism)
        self.max_parallelism = max_parallelism
        self.now = milliseconds(clock)
        self.group_width = group_width(max_parallelism)
        self._prefixes = {group: group_prefix(group, max_parallelism) for group in self.key_groups}
        self._memo: dict[Key, bytes] = {}
        self._address = addresses_of(self.key_groups, max_parallelism, self._prefixes, self._memo)
        self.slot: bytes | None = None
        self.metas: dict[str, StateMeta] = {}
        self.closed = False
        self._why_closed = f"is closed: {self.remedy}"
        self._key: Key | None = None
        self._namespace_bytes = NONE
        # By name: the latest descriptor and its state, and all states that the program may still use.
        self._requested: dict[str, tuple[StateDescriptor, State]] = {}
        self._given: dict[str, WeakSet[State]] = {}
        self._queues: dict[str, Any] = {}  # Each a `PriorityQueueSet`.
        self._on_key: list[Callable[[bytes], None]] = []
        self._restored = False

    @property
    def current_key(self) -> Key | None:
        """The key that was set, or None."""
        return self._key

    def set_current_key(self, key: Key) -> None:
        """Sets the key that states read and write; the namespace stays.

        Raises:
            StateError: the key is None, not of a key type, or outside the range, or the backend is closed. Then no key
                is set.
        """
        try:
            prefix = self._address(key)
        except StateError:
            self._key = self.slot = None
            # A closed backend has no key groups, and would say that the key belongs elsewhere.
            self.check_open()
            raise
        self._key = key
        self.slot = prefix + self._namespace_bytes
        if self._on_key:
            for sweep in self._on_key:
                sweep(self.slot)

    def slot_of(self, key: Key) -> bytes:
        """The address of a key in the current namespace, whatever the current key is; raises as `set_current_key`."""
        try:
            return self._address(key) + self._namespace_bytes
        except StateError:
            self.check_open()
            raise

    def set_current_namespace(self, namespace: Key | None) -> None:
        """Sets the namespace that states read and write; None is the default one.

        Raises:
            StateError: the namespace is not of a key type, or the backend is closed. Then no key is set, and the
                namespace is the default one.
        """
        self.check_open()
        before = self._namespace_bytes
        try:
            self._namespace_bytes = serialize_namespace(namespace)
        except StateError:
            self._key = self.slot = None
            self._namespace_bytes = NONE
            raise
        if self.slot is not None:
            self.slot = self.slot[: -len(before)] + self._namespace_bytes

    def value_state(self, descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """The value state of this descriptor.

        Time to live may be switched on or off between two programs: then what is stored counts as written when it is
        first read or met by a clean-up, or has no times any more. RocksDB rewrites the state for that, now.

        Raises:
            StateError: the name belongs to a state of another kind, or was requested before and differs in having time
                to live.
            StateMigrationError: what is stored has other serialisers.
        """
        return self._state(ValueState, descriptor, ValueStateDescriptor)

    def list_state(self, descriptor: ListStateDescriptor) -> ListState[Any]:
        """The list state of this descriptor; raises as `value_state` does."""
        return self._state(ListState, descriptor, ListStateDescriptor)

    def map_state(self, descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """The map state of this descriptor; raises as `value_state` does."""
        return self._state(MapState, descriptor, MapStateDescriptor)

    def reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The reducing state of this descriptor; raises as `value_state` does."""
        return self._state(ReducingState, descriptor, ReducingStateDescriptor)

    def aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The aggregating state of this descriptor; raises as `value_state` does."""
        return self._state(AggregatingState, descriptor, AggregatingStateDescriptor)

    def queue(
        self,
        name: str,
        *,
        key: Callable[[T], Any],
        key_of: Callable[[T], Key],
        serializer: Serializer,
        cache_size: int = 128,
    ) -> PriorityQueueSet[T]:
        """A priority queue that is saved and restored with the states, over the key groups of the backend.

        On RocksDB it is a column family of the same database: a change is written at once, so that queue and states are
        of one moment, and `cache_size` elements of each key group are in memory at most.

        Args:
            name: of the queue; no state has it.
            key: the priority of an element.
            key_of: the key of an element, which has to lie in the range.
            serializer: of elements. Its bytes must sort as the elements do, and equal elements must have equal bytes.
            cache_size: from 1.

        Raises:
            ConfigurationError: an argument is wrong.
            StateError: the queue is in use already, a state has the name, or the backend is closed.
            StateMigrationError: the stored elements have another serialiser.
        """
        self.check_open()
        check_serializer("serializer", serializer)
        if name in self._queues:
            raise StateError(f"{self!r}: the queue {name!r} is in use already: give each queue its own name")
        meta = StateMeta(QUEUE, {"value serialiser": serializer.name}, ttl=False)
        if name in self.metas:
            meta.check_against(name, self.metas[name])
        self._queues[name] = made = self.open_queue(name, meta, Queue(key, key_of, serializer, cache_size))
        self.metas[name] = meta
        return made

    def keys(self, name: str) -> Iterator[Key]:
        """The keys that have entries of a state in the current namespace, each once, as they are now.

        Expired entries that are still stored count. A state that was never requested has no keys.

        Raises:
            StateError: the backend is closed.
        """
        self.settle()
        return self._keys(self.table(name).slots(), self._namespace_bytes) if name in self._states() else iter(())

    def num_entries(self, name: str | None = None) -> int:
        """How many values, list elements, map entries and accumulators are stored, expired ones too.

        Raises:
            StateError: the backend is closed.
        """
        self.settle()
        return sum(len(self.table(known)) for known in self._states() if name in (None, known))

    def drop(self, name: str) -> None:
        """Deletes a state that has no entries: the backend and later snapshots do not have it any more.

        The states of this name that the program has refuse to work. Requested again, it is a new state.

        Raises:
            StateError: there is no such state, it has entries, or the backend is closed.
        """
        self.settle()
        if name not in self._states():
            known = ", ".join(map(repr, sorted(self._states()))) or "none"
            raise StateError(f"{self!r} has no state {describe(name)}: its states are {known}")
        lives = self._requested[name][1].entries if name in self._requested else None
        if isinstance(lives, LivingEntries):
            self._clean_up(name, lives.sweep_all)
        if next(self.table(name).entries(), None) is not None:
            raise StateError(
                f"{self!r}: state {name!r} has entries, and only an empty state is dropped: clear it for each key and "
                "namespace, or move it with MigratingMapState.finish()"
            )
        self.drop_table(name)
        for state in self._given.pop(name, ()):
            state.mark_dropped()
        del self.metas[name]
        self._requested.pop(name, None)
        self._follow_keys()

    def compact(self) -> None:
        """Removes the expired entries of every state whose clean-up is in compaction, then gives space back."""
        self.settle()
        for name, lives in self.lives(CleanupInCompaction):
            self._clean_up(name, lives.sweep_all)

    def restore(self, snapshots: Sequence[StateSnapshot]) -> None:
        """Takes from snapshots the entries in this backend's range; called once, before any state is requested.

        Raises:
            StateError: the backend is not empty, or a snapshot has another version or maximum parallelism, or is gone.
            StateMigrationError: the snapshots disagree about a state.
        """
        self.check_open()
        # Queues are there before a restore: a timer service has them from the beginning.
        used = [name for name in self.metas if name not in self._queues or not self._queues[name].is_empty()]
        if self._restored or used:
            why = "was called before" if self._restored else f"comes too late: there is state {min(used)!r} already"
            raise StateError(
                f"{self!r}: restore() {why}; it is called once, on an empty backend, before states are asked for: "
                "take a new backend, on RocksDB with a new directory"
            )
        several = isinstance(snapshots, Iterable) and not isinstance(snapshots, str | bytes)
        given: list[Any] = list(snapshots) if several else [snapshots]
        states = {**self.metas, **merge_states(given, self.max_parallelism)}
        for name in self._queues:
            self.metas[name].check_against(name, states[name])
        self.load(given, states)
        self.metas = states
        self._restored = True

    def statistics(self) -> StateStatistics:
        """What the backend takes of memory and disk now; all figures are 0 unless a backend measures them.

        Raises:
            StateError: the backend is closed.
        """
        self.check_open()
        return StateStatistics()

    @abstractmethod
    def snapshot(self, directory: str | Path | None = None) -> StateSnapshot:
        """A point in time of everything stored; the backend stays usable, and the snapshot outlives it.

        Args:
            directory: where a RocksDB backend puts it; None is beside its own. A heap backend's snapshot is in memory.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the backend; called again it does nothing. Everything else raises StateError from then on."""

    @abstractmethod
    def load(self, snapshots: list[StateSnapshot], states: dict[str, StateMeta]) -> None:
        """Takes the entries of these states from the snapshots: what `restore` does after its checks."""

    @abstractmethod
    def table(self, name: str) -> Table:
        """The table of a state in `metas`."""

    @abstractmethod
    def open_table(self, name: str, meta: StateMeta, serializer: Serializer) -> Table:
        """The table of a state that is requested for the first time; it is made if it is new."""

    @abstractmethod
    def drop_table(self, name: str) -> None:
        """Deletes an empty table, with what is known of its state."""

    @abstractmethod
    def open_queue(self, name: str, meta: StateMeta, about: Queue) -> PriorityQueueSet[Any]:
        """The queue of that name, with the elements that are stored; it is made if it is new."""

    @abstractmethod
    def new_batch(self) -> Batch:
        """An empty batch."""

    @abstractmethod
    def commit(self, batch: Batch) -> None:
        """Writes a batch, whole or not at all."""

    @abstractmethod
    def next_sequence(self) -> int:
        """A number larger than all before it, also than those of the backend that wrote these data."""

    def _states(self) -> list[str]:
        """The names of the states, without queues."""
        return [name for name, meta in self.metas.items() if meta.kind != QUEUE]

    def _state(self, make: Callable[[StateBackend, Entries, Any], S], descriptor: StateDescriptor, kind: type) -> S:
        """The state of a descriptor, after checking that this fits the stored state."""
        self.check_open()
        if not isinstance(descriptor, kind):
            raise must_be("descriptor", descriptor, f"a {kind.__name__}")
        name, meta, ttl = descriptor.name, describe_state(descriptor), descriptor.ttl
        known, state = self._requested.get(name, (None, None))
        if known != descriptor:
            if name in self.metas:
                meta.check_against(name, self.metas[name], in_use=known is not None)
            if known is None:
                self.open_table(name, meta, value_serializer(descriptor))
                self.metas[name] = meta
            # However often a state is requested, its clean-up goes on: an equal time to live has the same entries.
            same, table = known is not None and known.ttl == ttl, self.table(name)
            entries = state.entries if same else table if ttl is None else LivingEntries(self, table, ttl)  # type: ignore[union-attr]
            state = make(self, entries, descriptor)
            self._requested[name] = descriptor, state
            self._given.setdefault(name, WeakSet()).add(state)
            self._follow_keys()
        return state  # type: ignore[return-value]

    def _follow_keys(self) -> None:
        followed = [name for name, lives in self.lives(CleanupIncrementally) if lives.every_record]
        self._on_key = [self._requested[name][1].access for name in followed]

    def lives(self, strategy: type[Cleanup]) -> Iterator[tuple[str, LivingEntries]]:
        """Each state whose time to live has this strategy of clean-up, by its name."""
        for name, (_, state) in self._requested.items():
            lives = state.entries
            if isinstance(lives, LivingEntries) and lives.strategy(strategy) is not None:
                yield name, lives

    def settle(self) -> None:
        """Lets incremental clean-ups make the looks of all accesses so far: before stored entries are shown."""
        self.check_open()
        for name, lives in self.lives(CleanupIncrementally):
            self._clean_up(name, lives.settle)

    def _clean_up(self, name: str, clean: Callable[[], None]) -> None:
        try:
            clean()
        except Exception as error:
            raise StateError(f"cleaning up state {name!r} failed: {self.table(name).error(error)}") from error

    def require_slot(self) -> bytes:
        """The current slot; StateError if no key was set, or the backend is closed."""
        self.check_open()
        if self.slot is None:
            raise StateError("no key is set: call set_current_key(key) before reading or writing state")
        return self.slot

    def check_open(self) -> None:
        """Raises StateError if the backend is closed."""
        if self.closed:
            raise StateError(f"{self!r} {self._why_closed}")

    def mark_closed(self, why: str | None = None) -> None:
        """Marks the backend closed, so that every state refuses to work; `why` ends the message of the refusals."""
        self.closed = True
        self._why_closed = why or self._why_closed
        self.slot = None
        self._memo.clear()
        self._prefixes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keys(self, slots: Iterator[bytes], wanted: bytes) -> Iterator[Key]:
        for slot in slots:
            self.check_open()
            key, namespace, _ = parse_slot(slot, self.group_width)
            if namespace == wanted:
                yield key
