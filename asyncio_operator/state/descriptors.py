"""Descriptors: the name of a state, what it holds, and how long its entries live.

A descriptor is a specification: frozen, without data, and it may be pickled. A backend makes the state from it. The
name identifies the state in a backend and in its snapshots. Source: Flink's ``StateTtlConfig`` (FLIP-25).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from asyncio_operator.checks import LIMIT, flag, must_be, of_kind, plain_function, positive_int
from asyncio_operator.errors import StateError, StateMigrationError, describe
from asyncio_operator.state.keys import KeySerializer
from asyncio_operator.state.serializers import Serializer, check_serializer

QUEUE = "queue"  # The kind of a priority queue, which a backend keeps beside its states.

ROLES = dict.fromkeys(("value", "list", "reducing", "aggregating", QUEUE), ("value serialiser",)) | {
    "map": ("value serialiser", "key serialiser")
}
"""The kinds of states, each with the roles of its serialisers."""

LONGEST = LIMIT // 1000  # The longest time to live, in seconds: 292 million years.


class UpdateType(Enum):
    """Which accesses restart the time to live of an entry."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(Enum):
    """Whether an expired entry that is still stored is returned, once."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class CleanupIncrementally:
    """Looks at `size` entries on every access, with `every_record` also on every change of key, and removes the
    expired.

    The looks of several accesses are made together, and none while no entry can have expired (see the page on state).
    The default of 5 is Flink's: after a number of accesses that is a fifth of its entries the store was swept once.
    """

    size: int = 5
    every_record: bool = False

    def __post_init__(self) -> None:
        positive_int("size of CleanupIncrementally", self.size)
        flag("every_record of CleanupIncrementally", self.every_record)


@dataclass(frozen=True, slots=True)
class CleanupFullSnapshot:
    """Leaves expired entries out of snapshots; the live state keeps them."""


@dataclass(frozen=True, slots=True)
class CleanupInCompaction:
    """Removes every expired entry when the backend's ``compact()`` is called, and by itself if `every` is given.

    Once `every` entries may have expired, and a quarter of the state, each write looks at the next 256 entries until
    all were looked at. So the work for each write is bounded, and at most that number of expired entries stays while
    writes come. Expired entries are estimated from the times of writes.
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            positive_int("every of CleanupInCompaction", self.every, ", a number of entries, or None")


Cleanup = CleanupIncrementally | CleanupFullSnapshot | CleanupInCompaction
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """Time to live of a state's entries: a value, each list element, each map entry, an accumulator.

    Args:
        ttl: seconds, or a timedelta; from a millisecond to 2**63 - 1 of them. An entry is expired once this much time
            has passed.
        update_type: which accesses restart the time to live of an entry; the enum or its name.
        visibility: whether expired entries may be returned; the enum or its name.
        cleanup: one strategy, or several, or ``()`` for none beside removal on reading.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    ttl: float | timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED
    cleanup: Cleanup | Sequence[Cleanup] = CleanupIncrementally()

    def __post_init__(self) -> None:
        ttl = self.ttl
        is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool) and abs(ttl) <= LONGEST
        if not (is_number or isinstance(ttl, timedelta)) or not 1 <= self.milliseconds < LIMIT:
            allowed = f"seconds or a timedelta, from 0.001 s to {LONGEST} s; without a ttl, state lives for ever"
            raise must_be("ttl", ttl, allowed)
        for field, kind in (("update_type", UpdateType), ("visibility", StateVisibility)):
            value = getattr(self, field)
            if isinstance(value, str):
                value = next((member for member in kind if member.value == value.lower()), value)
                object.__setattr__(self, field, value)
            if not isinstance(value, kind):
                raise must_be(field, value, f"one of {', '.join(member.value for member in kind)}")
        if isinstance(self.cleanup, Sequence):
            object.__setattr__(self, "cleanup", self.strategies)
        kinds = [type(strategy) for strategy in self.strategies]
        if not set(kinds) <= set(Cleanup.__args__) or len(set(kinds)) < len(kinds):
            known = "CleanupIncrementally, CleanupFullSnapshot, CleanupInCompaction, each at most once, or ()"
            raise must_be("cleanup", self.cleanup, known)
        compaction = self.strategy(CleanupInCompaction)
        if compaction is not None and compaction.every is not None and CleanupIncrementally in kinds:
            raise must_be("cleanup", self.cleanup, "without CleanupIncrementally, or without every: both make rounds")

    @property
    def milliseconds(self) -> int:
        """The time to live in whole milliseconds."""
        seconds = self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else self.ttl
        return round(seconds * 1000)

    @property
    def strategies(self) -> tuple[Cleanup, ...]:
        """The clean-up strategies, as a tuple."""
        cleanup = self.cleanup
        return tuple(cleanup) if isinstance(cleanup, Sequence) else (cleanup,)

    def strategy(self, kind: type[C]) -> C | None:
        """The strategy of that class, or None."""
        return next((found for found in self.strategies if isinstance(found, kind)), None)


class AggregateFunction(Protocol):
    """How values become an accumulator, and an accumulator a result."""

    def create_accumulator(self) -> Any: ...

    def add(self, value: Any, accumulator: Any, /) -> Any: ...

    def get_result(self, accumulator: Any, /) -> Any: ...

    def merge(self, a: Any, b: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class StateMeta:
    """What a backend keeps about a state beside its data: kind, serialisers by role, whether it has time to live."""

    kind: str
    serializers: Mapping[str, str]
    ttl: bool

    def to_dict(self) -> dict[str, Any]:
        """As the built-in serialiser stores it."""
        return {"kind": self.kind, "serializers": dict(self.serializers), "ttl": self.ttl}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> StateMeta:
        """The inverse of `to_dict`; LookupError, TypeError or ValueError for anything else."""
        kind, serializers, ttl = data["kind"], dict(data["serializers"]), data["ttl"]
        roles = ROLES[kind]
        if type(ttl) is not bool or any(type(serializers[role]) is not str for role in roles):
            raise ValueError(data)
        return StateMeta(kind, serializers, ttl)

    def check_against(self, name: str, stored: StateMeta, in_use: bool = False) -> None:
        """Compares the requested state with the stored one. `in_use`: this program itself requested the stored one.
        StateError if the state is of another type, or is in use and has time to live on one side only;
        StateMigrationError if it has other serialisers."""
        if self.kind != stored.kind:
            raise StateError(f"state {name!r} is a {stored.kind} state, not a {self.kind} state: use another name")
        for role, asked in self.serializers.items():
            if stored.serializers.get(role) != asked:
                if in_use:
                    what = _asked_before(name, f"with {role} {stored.serializers.get(role)!r}, now with {asked!r}")
                    raise StateMigrationError(what)
                raise StateMigrationError(
                    f"state {name!r} was written with {role} {stored.serializers.get(role)!r}, but its descriptor has "
                    f"{asked!r}: use the old serialiser, or a new name and copy the entries"
                )
        if in_use and self.ttl != stored.ttl:
            was, now = ("with", "none") if stored.ttl else ("without", "one")
            raise StateError(_asked_before(name, f"{was} time to live, now its descriptor has {now}"))


class _Descriptor:
    __slots__ = ()
    kind: ClassVar[str]
    name: str
    ttl: StateTtlConfig | None

    def __post_init__(self) -> None:
        name = self.name if isinstance(self.name, str) else ""
        if not name or "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise must_be("name", self.name, "a text without NUL and lone surrogates: it names a column family")
        for role in ("serializer", "value_serializer", "key_serializer"):
            check_serializer(role, getattr(self, role, None))
        of_kind("ttl", self.ttl, StateTtlConfig)


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor(_Descriptor):
    """One value per key and namespace.

    Args:
        name: identifies the state in its backend.
        serializer: of the value; None is the built-in one.
        default: `value()` returns a fresh copy of it where nothing was written. Ignored if `ttl` is set.
        ttl: time to live, or None.

    Raises:
        ConfigurationError: one of them is wrong. The same holds for all descriptors.
    """

    kind: ClassVar[str] = "value"
    name: str
    serializer: Serializer | None = None
    default: Any = None
    ttl: StateTtlConfig | None = None


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(_Descriptor):
    """A list of elements per key and namespace; each element has its own time to live."""

    kind: ClassVar[str] = "list"
    name: str
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None


@dataclass(frozen=True, slots=True)
class MapStateDescriptor(_Descriptor):
    """A map per key and namespace; each entry has its own time to live.

    The built-in `key_serializer` is that of keys (`asyncio_operator.state.keys`): integers and text sort by value.
    """

    kind: ClassVar[str] = "map"
    name: str
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor(_Descriptor):
    """One value per key and namespace, folded with ``reduce(old, new)``."""

    kind: ClassVar[str] = "reducing"
    name: str
    reduce: Callable[[Any, Any], Any]
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _Descriptor.__post_init__(self)
        plain_function(f"reduce of state {self.name!r}", self.reduce, "a function of two values", "one", "other")


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor(_Descriptor):
    """One accumulator per key and namespace; `serializer` is the accumulator's."""

    kind: ClassVar[str] = "aggregating"
    name: str
    aggregate: AggregateFunction
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _Descriptor.__post_init__(self)
        if isinstance(self.aggregate, type):
            allowed = f"an instance, such as {self.aggregate.__name__}()"
            raise must_be(f"aggregate of state {self.name!r}", self.aggregate, allowed)
        for method, count in ("create_accumulator", 0), ("add", 2), ("get_result", 1), ("merge", 2):
            named = f"{method} of aggregate={describe(self.aggregate)} of state {self.name!r}"
            plain_function(named, getattr(self.aggregate, method, None), "a method", *("one", "other")[:count])


StateDescriptor = (
    ValueStateDescriptor
    | ListStateDescriptor
    | MapStateDescriptor
    | ReducingStateDescriptor
    | AggregatingStateDescriptor
)


def value_serializer(descriptor: StateDescriptor) -> Serializer:
    """The serialiser of what the state stores."""
    if isinstance(descriptor, MapStateDescriptor):
        return check_serializer("value_serializer", descriptor.value_serializer)
    return check_serializer("serializer", descriptor.serializer)


def describe_state(descriptor: StateDescriptor) -> StateMeta:
    """What a backend keeps about the state."""
    names = {"value serialiser": value_serializer(descriptor).name}
    if isinstance(descriptor, MapStateDescriptor):
        names["key serialiser"] = (descriptor.key_serializer or KeySerializer).name
    return StateMeta(descriptor.kind, names, descriptor.ttl is not None)


def _asked_before(name: str, what: str) -> str:
    return (
        f"state {name!r} was requested before, by this program, {what}: use one descriptor everywhere, or another name"
    )
