"""The laws of time to live, as plain checks of a backend. They are one part of `check_state_backend`.

Each law gets `make`, as those of `laws` do; the backend reads the clock passed to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asyncio_operator.state import (
    CleanupFullSnapshot,
    CleanupInCompaction,
    CleanupIncrementally,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    StateVisibility,
    UpdateType,
    ValueStateDescriptor,
)
from asyncio_operator.testing.state_contract.laws import Make, same
from asyncio_operator.testing.time import ManualClock

RETURN_EXPIRED = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def law_e1_expiry(make: Make) -> None:
    """E1: expired once timestamp + ttl <= now; elements and entries expire singly; the future lives; E9: no default."""
    clock = ManualClock(100.0)
    backend = make(clock=clock)
    backend.set_current_key("k")
    ttl = StateTtlConfig(10, cleanup=())
    value = backend.value_state(ValueStateDescriptor("value", default=7, ttl=ttl))
    items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    total = backend.reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, ttl=ttl))
    same(value.value(), None, "E9: the default of a value with time to live")
    value.update(1)
    items.add("old")
    entries.put("old", None)
    total.add(1)
    clock.advance(5)
    items.add("new")
    entries.put("new", 2)
    clock.set(109.999)
    same(value.value(), 1, "a value a millisecond before its end")
    same(items.get(), ["old", "new"], "a list a millisecond before an element's end")
    same(list(entries.keys()), ["new", "old"], "a map a millisecond before an entry's end")
    clock.set(110.0)
    same(value.value(), None, "a value at its end")
    same(items.get(), ["new"], "a list at the end of an element")
    same(dict(entries.items()), {"new": 2}, "a map at the end of an entry")
    same((entries.contains("old"), entries.get("old")), (False, None), "an expired entry")
    total.add(5)
    same(total.get(), 5, "a fold whose first half expired")
    clock.set(-1000.0)
    same(dict(entries.items()), {"new": 2}, "an entry written in the future")
    eternal = backend.value_state(ValueStateDescriptor("eternal", ttl=StateTtlConfig(1e14, cleanup=())))
    eternal.update(1)
    clock.set(1e12)
    same(eternal.value(), 1, "a value with a very long time to live")


def law_e2_update_type(make: Make) -> None:
    """E2: writes refresh; with ON_READ_AND_WRITE reads do too, but `is_empty` never does."""
    for update_type in UpdateType:
        clock = ManualClock()
        backend = make(clock=clock)
        backend.set_current_key(1)
        ttl = StateTtlConfig(10, update_type=update_type, cleanup=())
        value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
        items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
        entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
        value.update(1)
        items.add_all([1, 2])
        entries.put_all({"got": 1, "asked": 1, "untouched": 1})
        clock.advance(6)
        # Read by each method that refreshes, and by `is_empty`, which does not.
        value.value(), items.get(), entries.get("got"), entries.contains("asked"), entries.is_empty()
        clock.advance(6)
        touched = update_type is UpdateType.ON_READ_AND_WRITE
        same(value.value(), 1 if touched else None, f"a value read under {update_type}")
        same(items.get(), [1, 2] if touched else [], f"a list read under {update_type}")
        same(list(entries.keys()), ["asked", "got"] if touched else [], f"a map read under {update_type}")
        clock.advance(9)
        same(list(entries.values()), [1, 1] if touched else [], f"a map iterated under {update_type}")
        for written in 2, 3:
            value.update(written)
            entries.put("new", written)
            clock.advance(6)
        same((value.value(), entries.get("new")), (3, 3), f"a value and an entry, written again under {update_type}")


def law_e3_visibility(make: Make) -> None:
    """E3: expired entries are absent everywhere, or returned by one read."""
    clock = ManualClock()
    backend = make(clock=clock)
    backend.set_current_key(1)
    for name, visibility in (("never", StateVisibility.NEVER_RETURN_EXPIRED), ("once", RETURN_EXPIRED)):
        ttl = StateTtlConfig(1, visibility=visibility, cleanup=())
        value = backend.value_state(ValueStateDescriptor(name + "value", ttl=ttl))
        items = backend.list_state(ListStateDescriptor(name + "list", ttl=ttl))
        entries = backend.map_state(MapStateDescriptor(name + "map", ttl=ttl))
        value.update(1)
        items.add(1)
        entries.put_all({"a": None, "b": 2})
        clock.advance(1)
        once = visibility is RETURN_EXPIRED
        same(entries.is_empty(), not once, f"is_empty of an expired map, {name}")
        same(value.value(), 1 if once else None, f"the first read of a value, {name}")
        same(value.value(), None, f"the second read of a value, {name}")
        same(items.get(), [1] if once else [], f"the first read of a list, {name}")
        same(items.get(), [], f"the second read of a list, {name}")
        same(entries.contains("a"), once, f"the first look for an entry, {name}")
        same(entries.contains("a"), False, f"the second look for an entry, {name}")
        same(list(entries.items()), [("b", 2)] if once else [], f"the first iteration, {name}")
        same(list(entries.items()), [], f"the second iteration, {name}")
        assert entries.is_empty(), f"a map whose entries were all read is not empty, {name}"


def law_e4_reading_removes(make: Make) -> None:
    """E4: an entry that a read finds expired is removed from the store, entry by entry."""
    clock = ManualClock()
    backend = make(clock=clock)
    ttl = StateTtlConfig(10, cleanup=())
    backend.set_current_key(1)
    value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
    items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
    entries = backend.map_state(MapStateDescriptor("map", ttl=ttl))
    value.update(1)
    items.add_all([1, 2])
    entries.put_all({1: 1, 2: 2, 3: 3})
    clock.advance(5)
    items.add(3)
    entries.put(4, 4)
    clock.advance(5)
    same(backend.num_entries(), 8, "entries before anything was read")
    value.value()
    same(backend.num_entries("value"), 0, "values after reading the expired one")
    items.get()
    same(backend.num_entries("list"), 1, "elements after reading the list")
    entries.get(1)
    same(backend.num_entries("map"), 3, "entries after reading one expired entry")
    list(entries.values())
    same(backend.num_entries("map"), 1, "entries after iterating")
    clock.advance(5)
    assert entries.is_empty(), "a map with an expired entry alone is not empty"
    same(backend.num_entries("map"), 0, "entries after is_empty")
    entries.put_all({1: 1, 2: 2})
    clock.advance(5)
    entries.put(3, 3)
    clock.advance(5)
    assert not entries.is_empty(), "a map with a living entry behind expired ones is empty"
    same(backend.num_entries("map"), 1, "entries after is_empty has passed expired ones")


def law_e5_incremental(make: Make) -> None:
    """E5: each access checks `size` entries; with `every_record` a change of key too; in the end all are checked."""
    for every_record in (False, True):
        clock = ManualClock()
        backend = make(clock=clock)
        ttl = StateTtlConfig(10, cleanup=CleanupIncrementally(size=3, every_record=every_record))
        value = backend.value_state(ValueStateDescriptor("value", ttl=ttl))
        items = backend.list_state(ListStateDescriptor("list", ttl=ttl))
        entries, asked, begun = (backend.map_state(MapStateDescriptor(n, ttl=ttl)) for n in ("map", "asked", "begun"))
        for key in range(10):
            backend.set_current_key(key)
            value.update(key)
            items.add_all(range(3))
            for state in (entries, asked, begun):
                state.put_all(dict.fromkeys(range(3)))
        clock.advance(10)
        accesses: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("value", value.value),
            ("list", items.get),
            ("map", partial(entries.contains, 0)),
            ("asked", asked.is_empty),
            ("begun", begun.items),
        )
        for name, access in accesses:
            while backend.num_entries(name):
                change_key = partial(backend.set_current_key, "new")
                for size, action in ((3 if every_record else 0, change_key), (3, access)):
                    before = backend.num_entries(name)
                    action()
                    removed = before - backend.num_entries(name)
                    same(removed, min(size, before), f"entries of the {name} state that {action!r} removed")
        backend.set_current_key(1)
        value.update(1)
        for _ in range(20):
            backend.set_current_key("new")
            value.value()
        same(backend.num_entries("value"), 1, "living values after many accesses")


def law_e6_full_snapshot(make: Make) -> None:
    """E6: expired entries are absent from the snapshot but still in the live state; E8: times are absolute."""
    clock = ManualClock()
    source = make(clock=clock)
    source.set_current_key(1)
    descriptor = MapStateDescriptor("map", ttl=StateTtlConfig(10, cleanup=CleanupFullSnapshot()))
    kept = MapStateDescriptor("kept", ttl=StateTtlConfig(10, cleanup=()))
    for state in (source.map_state(descriptor), source.map_state(kept)):
        state.put("old", 1)
        clock.advance(5)
        state.put("new", 2)
    clock.advance(2)
    snapshot = source.snapshot()
    same(source.num_entries("map"), 2, "entries in the live state after a snapshot")
    source.close()
    restored = make(clock=clock)
    restored.restore([snapshot])
    same((restored.num_entries("map"), restored.num_entries("kept")), (1, 2), "entries in the snapshot")
    restored.set_current_key(1)
    state = restored.map_state(descriptor)
    clock.advance(2.999)
    same(dict(state.items()), {"new": 2}, "E8: a restored map a millisecond before an entry's end")
    clock.advance(0.001)
    same(dict(state.items()), {}, "E8: a restored map at an entry's end")
    snapshot.delete()


def law_e7_compaction(make: Make) -> None:
    """E7: `compact` removes the expired entries of states with that strategy, and of no other state."""
    clock = ManualClock()
    backend = make(clock=clock)
    states = [
        backend.map_state(MapStateDescriptor(name, ttl=StateTtlConfig(10, cleanup=cleanup)))
        for name, cleanup in (("swept", (CleanupInCompaction(), CleanupFullSnapshot())), ("kept", ()))
    ]
    for key in range(50):
        clock.set(key % 2)
        backend.set_current_key(key)
        for state in states:
            state.put_all({1: key, 2: key})
    clock.set(10)
    backend.compact()
    same((backend.num_entries("swept"), backend.num_entries("kept")), (50, 100), "entries after compact()")
    for key in range(50):
        backend.set_current_key(key)
        same(dict(states[0].items()), {1: key, 2: key} if key % 2 else {}, "a map after compact()")


def law_e11_switch(make: Make) -> None:
    """E11: switched on, what is stored counts as written when it is first read; switched off, it lives for ever."""
    clock = ManualClock()
    backend = make(clock=clock)
    backend.set_current_key(1)
    backend.map_state(MapStateDescriptor("map")).put_all({"a": 1, "b": None})
    for ttl in (StateTtlConfig(10, cleanup=()), None):
        snapshot = backend.snapshot()
        backend.close()
        clock.advance(100)
        backend = make(clock=clock)
        backend.restore([snapshot])
        snapshot.delete()
        backend.set_current_key(1)
        state = backend.map_state(MapStateDescriptor("map", ttl=ttl))
        clock.advance(100)
        for seconds in (0.0, 9.999):
            clock.advance(seconds)
            same(dict(state.items()), {"a": 1, "b": None}, f"a map from before its time to live became {ttl}")
        if ttl is None:
            clock.advance(100)
            same(dict(state.items()), {"a": 1, "b": None}, "a map whose time to live was switched off")
