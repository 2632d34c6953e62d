"""The laws of keyed state, as plain checks of a backend. They are one part of `check_state_backend`.

Each law gets `make`, which returns a new, empty backend and closes it after the law. `law_s1_range` passes
it `key_groups` and `max_parallelism`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from asyncio_operator.errors import StateError, StateMigrationError
from asyncio_operator.state import (
    AggregatingStateDescriptor,
    KeyGroupRange,
    KeySerializer,
    ListStateDescriptor,
    MapStateDescriptor,
    MigratingMapState,
    ReducingStateDescriptor,
    StateBackend,
    StateTtlConfig,
    ValueState,
    ValueStateDescriptor,
    key_group,
)

Make = Callable[..., StateBackend]

KEYS = (
    *(b"", b"\x00", b"a\x00\x01", "", "1", "11", "a\x00b", "\ud800"),
    *(0, 1, -1, 2**63, -(2**63) - 1, 2**200, True, False),
    *(1.0, -2.5, float("inf"), date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4)),
    *(datetime(2024, 2, 29, tzinfo=UTC), UUID(int=7), Decimal("1.50"), Decimal(1), (), (1,), (1, "a"), ((1,), "a")),
)
"""Keys of every type. Some are equal in Python, and some are prefixes of others."""


def same(found: Any, expected: Any, what: str) -> None:
    """Asserts that two values are equal and have the same repr, which distinguishes 1 from True."""
    assert found == expected, f"{what}: {found!r:.500}, not {expected!r:.500}"
    assert repr(found) == repr(expected), f"{what}: {found!r:.500}, not {expected!r:.500}"


def refuses(action: Callable[..., Any], *arguments: Any, error: type[Exception] = StateError, saying: str = "") -> None:
    """Asserts that a call raises this error, and that its message contains this text."""
    message = None
    try:
        action(*arguments)
    except error as raised:
        message = str(raised)
    assert message is not None, f"{action} with {arguments!r:.200} did not raise {error.__name__}"
    assert saying in message, f"the message does not say {saying!r}: {message}"


def law_s1_keys(make: Make) -> None:
    """S1: each key type has keys of its own; None is not a key."""
    backend = make()
    state = backend.value_state(ValueStateDescriptor("value"))
    for number, key in enumerate(KEYS):
        backend.set_current_key(key)
        same(state.value(), None, f"the value of the new key {key!r}")
        state.update(number)
    for number, key in enumerate(KEYS):
        backend.set_current_key(key)
        same(state.value(), number, f"the value of key {key!r}")
    found = list(backend.keys("value"))
    assert len(found) == len(KEYS), f"keys() gives {len(found)} keys, not {len(KEYS)}"
    shown, wanted = ({(type(one), repr(one)) for one in keys if type(one) is not Decimal} for keys in (found, KEYS))
    assert shown == wanted, f"keys() gives {found!r:.500}"
    for wrong in (None, [1], {"a": 1}, (1, None), object()):
        backend.set_current_key(1)
        refuses(backend.set_current_key, wrong)
        refuses(state.value, saying="set_current_key")


def law_s1_range(make: Make) -> None:
    """S1, S9: a key outside the range is refused; a restore takes what lies in its range, from all snapshots."""
    snapshots = []
    for groups in KeyGroupRange(0, 63), KeyGroupRange(64, 127):
        backend = make(key_groups=groups, max_parallelism=128)
        state = backend.value_state(ValueStateDescriptor("value"))
        for key in range(50):
            if key_group(key, 128) not in groups:
                refuses(backend.set_current_key, key, saying=str(key_group(key, 128)))
            else:
                backend.set_current_key(key)
                state.update(key)
        snapshots.append(backend.snapshot())
    for groups in KeyGroupRange(0, 127), KeyGroupRange(32, 95):
        backend = make(key_groups=groups, max_parallelism=128)
        backend.restore(snapshots)
        expected = [key for key in range(50) if key_group(key, 128) in groups]
        same(sorted(backend.keys("value")), expected, f"the keys restored to the key groups {groups}")
    refuses(make(key_groups=KeyGroupRange(0, 63), max_parallelism=64).restore, snapshots)
    for snapshot in snapshots:
        snapshot.delete()


def law_s4_value(make: Make) -> None:
    """S4: the default is a fresh copy; None clears."""
    backend = make()
    backend.set_current_key("k")
    plain = backend.value_state(ValueStateDescriptor("plain"))
    same(plain.value(), None, "a value never written")
    state = backend.value_state(ValueStateDescriptor("value", default=[1]))
    default = state.value()
    assert default is not None
    default.append(2)
    same(state.value(), [1], "the default after a copy of it was changed")
    values: tuple[Any, ...] = (0, "", [], {"a": (1, 2.0, None)}, b"\x00", True, Decimal("1.50"))
    for value in values:
        state.update(value)
        same(state.value(), value, "a value")
    mutable = [[1]]
    state.update(mutable)
    mutable[0].append(2)
    found = state.value()
    assert found is not None
    found.append(3)
    same(state.value(), [[1]], "a value whose original and whose copy were changed")
    for clear in (state.clear, lambda: state.update(None)):
        state.update(5)
        clear()
        same(state.value(), [1], "a cleared value")
    refuses(state.update, object(), saying="'value'")
    same(state.value(), [1], "a value after a refused update")


def law_s5_list(make: Make) -> None:
    """S5: order and duplicates are kept; None is refused and changes nothing."""
    backend = make()
    backend.set_current_key("k")
    state = backend.list_state(ListStateDescriptor("list"))
    same(state.get(), [], "a new list")
    state.add(3)
    state.add_all([1, 3])
    state.add(2)
    same(state.get(), [3, 1, 3, 2], "a list")
    for wrong in (lambda: state.add(None), lambda: state.add_all([1, None]), lambda: state.update([None])):
        refuses(wrong)
    refuses(state.update, [4, object()])
    same(state.get(), [3, 1, 3, 2], "a list after refused changes")
    state.update(iter(["x", "y"]))
    state.add("x")
    same(state.get(), ["x", "y", "x"], "a replaced list")
    state.update([])
    same(state.get(), [], "a list updated with nothing")
    state.add(1)
    state.clear()
    same(state.get(), [], "a cleared list")


def law_s6_map(make: Make) -> None:
    """S6: None is a value; integers and text are sorted by value; keys that are prefixes of others stay apart."""
    backend = make()
    state = backend.map_state(MapStateDescriptor("map"))
    for key in ("1", "11"):
        backend.set_current_key(key)
        assert state.is_empty(), "a new map is not empty"
        state.put_all({number: str(number) for number in (300, -1, 2**70, 0, 7, -(2**40), -(2**70))})
        state.put("b", None)
        state.put("a\x00", key)
        state.put_all({"a": None})
        ordered = [-(2**70), -(2**40), -1, 0, 7, 300, 2**70]
        found = list(state.keys())
        same([k for k in found if isinstance(k, int)], ordered, "the integers of a map")
        same([k for k in found if isinstance(k, str)], ["a", "a\x00", "b"], "the texts of a map")
        same((state.contains("a"), state.get("a")), (True, None), "an entry that holds None")
        same((state.contains("c"), state.get("c")), (False, None), "an absent entry")
    state.remove("a")
    state.remove("absent")
    assert not state.contains("a"), "a removed entry still exists"
    entries = state.items()
    state.clear()
    same((state.is_empty(), list(state.items())), (True, []), "a cleared map")
    assert len(list(entries)) == 9, "an iteration that began before clear() must not show the clear()"
    backend.set_current_key("1")
    assert len(list(state.values())) == 10, "clearing the map of '11' changed that of '1'"
    refuses(state.put, None, 1, saying="'map'")
    refuses(state.put_all, {"new": 1, "bad": object()})
    assert not state.contains("new"), "half of a refused put_all was written"
    backend.set_current_key("large")
    state.put_all({number: (number, "x" * 100) for number in range(3000)})
    same([value[0] for value in state.values()], list(range(3000)), "the values of a large map")
    state.clear()
    for number, alike in enumerate((1, True, 1.0)):
        state.put(alike, number)
    same([state.get(key) for key in (1, True, 1.0)], [0, 1, 2], "entries of keys that Python calls equal")


class _Mean:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def law_s7_folding(make: Make) -> None:
    """S7: an empty fold gives None; every added value is folded in, behind those before it."""
    backend = make()
    backend.set_current_key(1)
    total = backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
    text = backend.reducing_state(ReducingStateDescriptor("text", lambda old, new: old + new))
    mean = backend.aggregating_state(AggregatingStateDescriptor("mean", _Mean()))
    same((total.get(), mean.get()), (None, None), "an empty fold")
    for value in (1, 2, 6):
        total.add(value)
        text.add(str(value))
        mean.add(value)
    same((total.get(), text.get(), mean.get()), (9, "126", 3.0), "sum, text and mean")
    total.clear()
    mean.clear()
    same((total.get(), mean.get()), (None, None), "a cleared fold")


def law_s8_isolation(make: Make) -> None:
    """S8: keys and namespaces are isolated from each other; setting a key keeps the namespace."""
    backend = make()
    value = backend.value_state(ValueStateDescriptor("value"))
    entries = backend.map_state(MapStateDescriptor("map"))
    refuses(value.value, saying="set_current_key")
    refuses(entries.put, 1, 2, saying="set_current_key")
    namespaces = (None, "", "w", 1, True, 1.0, ("w", 1), b"")
    for key in ("a", "b"):
        for namespace in namespaces:
            backend.set_current_key(key)
            backend.set_current_namespace(namespace)
            same((value.value(), entries.is_empty()), (None, True), f"{key!r} in {namespace!r}, which is new")
            value.update([key, namespace])
            entries.put("x", [key, namespace])
    backend.set_current_namespace(1)
    backend.set_current_key("a")
    same(value.value(), ["a", 1], "the value after setting a key in namespace 1")
    same(sorted(backend.keys("value")), ["a", "b"], "the keys of a namespace")
    value.clear()
    entries.clear()
    for namespace in namespaces:
        backend.set_current_namespace(namespace)
        cleared = type(namespace) is int
        same((value.value(), entries.is_empty()), (None if cleared else ["a", namespace], cleared), f"in {namespace!r}")
    same(backend.num_entries("value"), 2 * len(namespaces) - 1, "num_entries of one state")
    same(backend.num_entries(), 4 * len(namespaces) - 2, "num_entries of all")


def law_s9_snapshot(make: Make) -> None:
    """S9: a snapshot is a point in time, outlives its backend, restores several times, keeps states not asked for."""
    source = make()
    source.set_current_key("k")
    value = source.value_state(ValueStateDescriptor("value"))
    items = source.list_state(ListStateDescriptor("list"))
    source.map_state(MapStateDescriptor("map")).put_all({1: "a", 2: None})
    value.update({"n": 1})
    items.add_all([1, 2])
    snapshot = pickle.loads(pickle.dumps(source.snapshot()))
    value.update("later")
    items.add(3)
    refuses(source.restore, [snapshot])
    same(items.get(), [1, 2, 3], "a list after a snapshot")
    source.close()
    for _ in range(2):
        first = make()
        first.restore([snapshot])
        first.set_current_key("k")
        same(first.list_state(ListStateDescriptor("list")).get(), [1, 2], "a restored list")
        first.list_state(ListStateDescriptor("list")).add(9)
        second = make()
        second.restore([again := first.snapshot()])
        first.close()
        second.set_current_key("k")
        same(second.value_state(ValueStateDescriptor("value")).value(), {"n": 1}, "a value that was not asked for")
        same(dict(second.map_state(MapStateDescriptor("map")).items()), {1: "a", 2: None}, "a map not asked for")
        same(second.list_state(ListStateDescriptor("list")).get(), [1, 2, 9], "a list with one more element")
        again.delete()
    snapshot.delete()


def law_s10_descriptors(make: Make) -> None:
    """S10: another kind, other serialisers, or time to live on only one side is refused."""

    class Other(KeySerializer):
        name = "other"

    ttl = StateTtlConfig(10)
    source = make()
    source.set_current_key(1)
    source.value_state(ValueStateDescriptor("plain")).update(1)
    source.value_state(ValueStateDescriptor("ttl", ttl=ttl)).update(1)
    source.map_state(MapStateDescriptor("map")).put(1, 1)
    refuses(source.list_state, ListStateDescriptor("plain"), saying="'plain'")
    snapshot = source.snapshot()
    restored = make()
    restored.restore([snapshot])
    for backend in (source, restored):
        migrates = partial(refuses, error=StateMigrationError)
        migrates(backend.value_state, ValueStateDescriptor("plain", serializer=Other()), saying="'plain'")
        migrates(backend.map_state, MapStateDescriptor("map", key_serializer=Other()), saying="'map'")
        migrates(backend.map_state, MapStateDescriptor("map", value_serializer=Other()), saying="'map'")
        refuses(backend.reducing_state, ReducingStateDescriptor("plain", max))
        backend.set_current_key(1)
        longer = ValueStateDescriptor("ttl", ttl=StateTtlConfig(20))
        same(backend.value_state(longer).value(), 1, "a value under another length of time to live")
    snapshot.delete()


def law_s12_migration(make: Make) -> None:
    """S12: a migrating map gives what the old value would have given, whichever part has been migrated."""
    backend = make()
    old, new = ValueStateDescriptor("old"), MapStateDescriptor("new")
    value: ValueState[Any] = backend.value_state(old)
    for key in range(4):
        backend.set_current_key(key)
        value.update({"a": key, "b": None, "n": -key})
    state: MigratingMapState[str, int | None] = MigratingMapState(backend, old, new)
    for key in range(4):
        backend.set_current_key(key)
        if key % 2:
            state.put("c", 5)
        else:
            state.remove("a")
        expected = {"a": key, "b": None, "n": -key, "c": 5} if key % 2 else {"b": None, "n": -key}
        same(sorted(state.items(), key=repr), sorted(expected.items(), key=repr), "a migrated map")
        assert value.value() is None, "the old value is still there"
    backend.set_current_key(9)
    same((state.is_empty(), state.get("a")), (True, None), "a new key")
    value.update({"z": 1})
    state.clear()
    same((state.is_empty(), value.value()), (True, None), "map and old value after clear()")
    value.update([1])
    refuses(state.get, "a", error=StateMigrationError, saying="'old'")
    same(value.value(), [1], "an old value that does not fit")


def law_closed(make: Make) -> None:
    """A closed backend refuses everything and says that it is closed; closing it again does nothing."""
    backend = make()
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("value"))
    entries = backend.map_state(MapStateDescriptor("map"))
    entries.put(1, 1)
    open_iteration, open_keys = entries.items(), backend.keys("map")
    backend.close()
    backend.close()
    for use in value.value, entries.items, backend.snapshot, backend.compact, backend.num_entries:
        refuses(use, saying="closed")
    for write in value.update, backend.set_current_key, backend.set_current_namespace:
        refuses(write, 1, saying="closed")
    refuses(backend.value_state, ValueStateDescriptor("more"), saying="closed")
    refuses(backend.keys, "value", saying="closed")
    refuses(next, open_iteration, saying="closed")
    refuses(next, open_keys, saying="closed")
