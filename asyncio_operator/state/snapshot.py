"""Snapshots of keyed state: what they hold, and how several are checked before they are restored together.

A snapshot is a point in time of one backend: for every state its `StateMeta`, and for every key group the addresses and
serialised entries, in the form of `layout`. So a snapshot of one kind of backend restores into any other. It names its
version, its maximum parallelism and its range, and is refused if this version does not know them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from asyncio_operator.errors import StateError, StateMigrationError
from asyncio_operator.state.descriptors import StateMeta
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.layout import FORMAT_VERSION, retimed

_length = struct.Struct(">I")

Row = tuple[bytes, bytes]
"""An address and its serialised entry."""


class StateSnapshot(ABC):
    """A point in time of one backend; picklable.

    Attributes:
        format: the version of the layout.
        max_parallelism: of the backend.
        key_groups: the range of the backend.
        sequence: every sequence number in it is smaller.
        states: kind, serialisers and time to live of each state, by name.
    """

    format: int
    max_parallelism: int
    key_groups: KeyGroupRange
    sequence: int
    states: Mapping[str, StateMeta]

    @abstractmethod
    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        """The entries of a state that lie in the range, in the order of their addresses."""

    @abstractmethod
    def check_present(self) -> None:
        """Raises StateError if it was deleted."""

    def check_readable(self) -> None:
        """Raises StateError if it was deleted, or is of another version."""
        self.check_present()
        if self.format != FORMAT_VERSION:
            raise StateError(
                f"{self!r} has format {self.format}, this version reads {FORMAT_VERSION}: "
                "take it to the version that wrote it"
            )

    @abstractmethod
    def delete(self) -> None:
        """Frees the memory or the files of the snapshot; it cannot be restored afterwards."""


@dataclass(slots=True, repr=False)
class HeapSnapshot(StateSnapshot):
    """A snapshot of a backend in memory, or the same in the files of a checkpoint: segments by state and key group.

    A segment (`pack_rows`) is bytes, and that of a checkpoint is read when it is asked for.
    """

    max_parallelism: int
    key_groups: KeyGroupRange
    sequence: int
    states: Mapping[str, StateMeta]
    groups: Mapping[str, Mapping[int, bytes]] = field(default_factory=dict)
    format: int = FORMAT_VERSION
    deleted: bool = False

    def rows(self, name: str, key_groups: KeyGroupRange) -> Iterator[Row]:
        self.check_present()
        segments, length_at = self.groups.get(name, {}), _length.unpack_from
        for group in sorted(segments):
            if group in key_groups:
                segment, position = segments[group], 0
                try:
                    while position < len(segment):
                        start = position + 4
                        end = start + length_at(segment, position)[0]
                        position = end + 4 + length_at(segment, end)[0]
                        if position > len(segment):
                            raise ValueError(position)
                        yield segment[start:end], segment[end + 4 : position]
                except (ValueError, struct.error) as error:
                    raise StateError(
                        f"{self!r} is damaged: the entries of state {name!r} in key group {group} end within an entry; "
                        "restore another one"
                    ) from error

    def check_present(self) -> None:
        if self.deleted:
            raise StateError(f"{self!r} was deleted: restore another one")

    def delete(self) -> None:
        self.deleted = True
        self.groups = {}

    def __repr__(self) -> str:
        return f"<HeapSnapshot of {len(self.states)} states, key groups {self.key_groups}>"


def pack_rows(rows: Iterable[Row]) -> bytes:
    """A segment: for each row, in the order of addresses, the length of the address, 4 bytes big-endian, the address,
    the length of the stored entry, and the entry."""
    pack = _length.pack
    return b"".join([part for row in sorted(rows) for data in row for part in (pack(len(data)), data)])


def merge_states(snapshots: Sequence[StateSnapshot], max_parallelism: int) -> dict[str, StateMeta]:
    """The states of all snapshots, after checking that they fit this version, this maximum parallelism and each other.
    StateError if one is deleted, or of another version or maximum parallelism, or two hold the same key group;
    StateMigrationError if two have other kinds or serialisers for a state. A state with time to live in one of them has
    it in the result."""
    states: dict[str, StateMeta] = {}
    for index, snapshot in enumerate(snapshots):
        if not isinstance(snapshot, StateSnapshot):
            raise StateError(
                f"snapshot {index} is a {type(snapshot).__name__}: restore() takes what snapshot() returned"
            )
        snapshot.check_readable()
        if snapshot.max_parallelism != max_parallelism:
            raise StateError(
                f"{snapshot!r} was taken with max_parallelism={snapshot.max_parallelism}, this backend has "
                f"{max_parallelism}: the maximum parallelism of state never changes, make the backend with the old one"
            )
        for other in snapshots[:index]:
            one, two = other.key_groups, snapshot.key_groups
            if max(one.start, two.start) <= min(one.end, two.end):
                raise StateError(f"{other!r} and {snapshot!r} hold the same key groups: give each key group once")
        for name, meta in snapshot.states.items():
            known = states.setdefault(name, meta)
            if replace(known, ttl=meta.ttl) != meta:
                raise StateMigrationError(f"the snapshots disagree about state {name!r}: {known} and {meta}")
            if meta.ttl:
                states[name] = meta
    return states


def merged_rows(
    snapshots: Sequence[StateSnapshot], name: str, meta: StateMeta, key_groups: KeyGroupRange
) -> Iterator[Row]:
    """The entries of a state that lie in the range, as entries of the state that `merge_states` gave."""
    for snapshot in snapshots:
        if name in snapshot.states:
            had = snapshot.states[name].ttl
            for address, data in snapshot.rows(name, key_groups):
                yield address, retimed(data, had, meta.ttl)
