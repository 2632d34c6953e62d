"""Descriptors: the name of a state, what it holds, and how long its entries live.

A descriptor is a specification: frozen, without data, and it may be pickled. A backend makes the state from it. The
name identifies the state in a backend and in its snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from asyncio_operator.errors import ConfigurationError, StateError, StateMigrationError, describe
from asyncio_operator.state.keys import KeySerializer
from asyncio_operator.state.serializers import Serializer, check_serializer
from asyncio_operator.state.ttl_config import StateTtlConfig

QUEUE = "queue"
"""The kind of a priority queue, which a backend keeps beside its states."""


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
        """The inverse of `to_dict`; KeyError if something is missing."""
        return StateMeta(data["kind"], dict(data["serializers"]), data["ttl"])

    def check_against(self, name: str, stored: StateMeta, in_use: bool = False) -> None:
        """Compares the requested state with the stored one. `in_use`: this program itself requested the stored one.

        Raises:
            StateError: the state is of another type, or is in use and has time to live on one side only.
            StateMigrationError: it has other serialisers.
        """
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


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
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

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class ListStateDescriptor:
    """A list of elements per key and namespace; each element has its own time to live."""

    kind: ClassVar[str] = "list"
    name: str
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class MapStateDescriptor:
    """A map per key and namespace; each entry has its own time to live.

    The built-in `key_serializer` is that of keys (`asyncio_operator.state.keys`): integers and text sort by value.
    """

    kind: ClassVar[str] = "map"
    name: str
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor:
    """One value per key and namespace, folded with ``reduce(old, new)``."""

    kind: ClassVar[str] = "reducing"
    name: str
    reduce: Callable[[Any, Any], Any]
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self)
        if not callable(self.reduce):
            raise ConfigurationError(f"reduce={describe(self.reduce)} of state {self.name!r}: a callable is needed")


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor:
    """One accumulator per key and namespace; `serializer` is the accumulator's."""

    kind: ClassVar[str] = "aggregating"
    name: str
    aggregate: AggregateFunction
    serializer: Serializer | None = None
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self)
        if isinstance(self.aggregate, type):
            name = self.aggregate.__name__
            raise ConfigurationError(
                f"aggregate={name} of state {self.name!r} is a class: an instance is needed, such as {name}()"
            )
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(self.aggregate, method, None)):
                raise ConfigurationError(
                    f"aggregate={describe(self.aggregate)} of state {self.name!r}: it has no method {method}"
                )


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


def _check(descriptor: StateDescriptor) -> None:
    if not isinstance(descriptor.name, str) or not descriptor.name:
        raise ConfigurationError(f"name={describe(descriptor.name)} of a {descriptor.kind} state: a text is needed")
    if "\0" in descriptor.name or any("\ud800" <= letter <= "\udfff" for letter in descriptor.name):
        raise ConfigurationError(
            f"name={describe(descriptor.name)} of a {descriptor.kind} state: a text without NUL and lone surrogates is "
            "needed, because it names a column family"
        )
    value_serializer(descriptor)
    if isinstance(descriptor, MapStateDescriptor):
        check_serializer("key_serializer", descriptor.key_serializer)
    if descriptor.ttl is not None and not isinstance(descriptor.ttl, StateTtlConfig):
        raise ConfigurationError(
            f"ttl={describe(descriptor.ttl)} of state {descriptor.name!r}: a StateTtlConfig is needed"
        )
