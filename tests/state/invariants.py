"""Every invariant of a structure of `state`: of queues, tables, and the order of use."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from asyncio_operator.state import heap_queue
from asyncio_operator.state.heap_backend import HeapTable, HeapValueTable, Round
from asyncio_operator.state.heap_queue import HeapPriorityQueue, OrderedEntries
from asyncio_operator.state.heap_set import BatchPriorityQueueSet, HeapPriorityQueueSet, _element
from asyncio_operator.state.key_groups import group_of
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.state.layout import USES_KEY
from asyncio_operator.state.rocksdb import use_order
from asyncio_operator.state.rocksdb.priority_queues import GroupQueue, RocksDBCachingPriorityQueueSet, StateQueue
from asyncio_operator.state.rocksdb.use_order import OrderOfUse


@singledispatch
def check(structure: Any) -> None:
    raise TypeError(f"{structure!r} has no invariants here")


def same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether these are the same objects."""
    return sorted(map(id, some)) == sorted(map(id, others))


@check.register
def _(entries: OrderedEntries) -> None:
    bounds = entries._bounds
    assert entries.front or not entries._blocks
    assert entries.front == sorted(entries.front)
    assert len(entries.front) <= heap_queue.BLOCK
    assert bounds == sorted(bounds)
    assert entries._priorities == [priority for priority, _ in bounds]
    assert all(0 < len(block) <= heap_queue.BLOCK for block in entries._blocks)
    for place, block in enumerate(entries._blocks):
        assert all(number == entry[1] for number, entry in block.items())
        assert all(bisect_right(bounds, entry) == place + 1 for entry in block.values())
    assert all(not bisect_right(bounds, entry) for entry in entries.front)


@check.register
def _(queue: HeapPriorityQueue) -> None:
    check(queue._entries)
    inside = list(queue._entries)
    assert len(inside) == queue._size
    held = [e for h in queue._index.values() for e in (h.values() if isinstance(h, OrderedDict) else [h])]
    assert same(held, inside)


@check.register
def _(queue: HeapPriorityQueueSet) -> None:
    check(queue._entries)
    held = [entry for members in queue._groups.values() for entry in members.values()]
    assert len(held) == queue._size
    assert same(held, queue._entries)
    for group, members in queue._groups.items():
        for part in members.parts:
            for name, entry in part.items():
                assert entry[2:] == (name, group)
                assert members.part(name) is part
                assert group_of(queue._key_of(_element(name)), queue._key_groups, queue._max_parallelism) == group
    if isinstance(queue, BatchPriorityQueueSet):
        assert all(serialize_key(queue._key_of(element)) == queue._present for element in queue)


@check.register
def _(queue: StateQueue) -> None:
    check(queue._ranked)
    assert same(queue._ranked, [each for each in queue._queues.values() if not each.is_empty()])
    for each in queue._queues.values():
        check(each)


def check_round(round_: Round | None, entries: list[Any]) -> None:
    """`entries` are those of the table."""
    if round_ is not None:
        assert [record[2] for record in round_._records] == list(range(len(round_._records)))
        assert [record[0] for record in round_._records] == round_._times
        assert same(round_._records, entries)


@check.register
def _(table: HeapValueTable) -> None:
    check_round(table._round, list(table._entries.values()))


@check.register
def _(table: HeapTable) -> None:
    entries = [stored for inner in table._slots.values() for stored in inner.values()]
    assert len(entries) == table._size
    assert all(table._slots.values())
    check_round(table._round, entries)


@check.register
def _(queue: GroupQueue) -> None:
    rows = [row for row, _ in queue._scan()]
    assert len(queue._cache) <= queue._limit
    assert queue._cache == rows[: len(queue._cache)]
    assert bool(queue._cache) == bool(rows)
    assert not queue._complete or queue._cache == rows
    assert len(queue) == len(rows)
    if isinstance(queue, RocksDBCachingPriorityQueueSet):
        assert len(queue._pending) <= queue._most_pending
        assert len(queue) == queue._stored_size(queue._database)
        groups = [row for row, _ in queue._database.scan("groups", b"", None)]
        assert groups == sorted(group + row for row, group in queue._scan())


@check.register
def _(order: OrderOfUse) -> None:
    rows = dict(order._database.scan(use_order._ORDER, b"", None))
    places = dict(order._database.scan(use_order._PLACES, b"", None))
    assert {slot: row for row, slot in rows.items()} == {slot: place[8:] for slot, place in places.items()}
    assert len(rows) == len(places) == order._count == (order._records.read(USES_KEY) or 0)
    assert all(place[:8] >= place[8:] for place in places.values())
    assert len(order._unwritten) <= use_order.UNWRITTEN
    assert order._unwritten.keys() <= places.keys()
    assert all(number > places[slot][:8] for slot, number in order._unwritten.items())
    assert [row for row in rows if row < order._behind] == list(order._ahead)
    assert all(rows[row] == slot for row, slot in order._ahead.items())
