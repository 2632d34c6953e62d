"""Priority queues: P1 to P7, one contract for all of them."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import (
    BatchPriorityQueueSet,
    HeapPriorityQueue,
    HeapPriorityQueueSet,
    KeyGroupRange,
    heap_queue,
    heap_set,
    key_group,
    key_group_range,
)
from asyncio_operator.state.rocksdb.database import Database
from asyncio_operator.timers import Timer
from tests.state.invariants import check
from tests.state.queue_kinds import (
    ALL_GROUPS,
    CACHE_SIZES,
    HEAP_SETS,
    KINDS,
    ON_DISK,
    SETS,
    drain,
    key_of,
    make_queue,
    name_of,
    priority,
)

IN_MEMORY = [kind for kind in KINDS if not isinstance(kind, ON_DISK)]


@pytest.fixture
def queue(request, tmp_path):
    """Of the kind that the test names."""
    queue = make_queue(request.param, tmp_path / "queue")
    yield queue
    if isinstance(request.param, ON_DISK):
        queue.close()


@pytest.mark.parametrize("kind", IN_MEMORY, ids=name_of)
@pytest.mark.parametrize(
    "wrong",
    [float("nan"), Decimal("nan"), Decimal("snan"), (1, float("nan")), [(0, float("nan"))], np.float32("nan")],
    ids=repr,
)
def test_P1_a_priority_that_is_no_number_is_refused_and_changes_nothing(kind, wrong, tmp_path):
    queue = make_queue(kind, tmp_path)
    queue.add_all([(2.5, 1), (0.5, 1)])
    with pytest.raises(StateError, match=r"(?i)priority of .*nan.* cannot be compared"):
        queue.add((wrong, 1))
    queue.add((1.5, 1))
    assert [element[0] for element in drain(queue)] == [0.5, 1.5, 2.5]


@pytest.mark.parametrize("kind", IN_MEMORY, ids=name_of)
def test_P1_a_priority_that_cannot_be_compared_takes_no_other_element_with_it(kind, tmp_path):
    queue = make_queue(kind, tmp_path)
    elements = [((number, 0), 1) for number in range(3000)]
    queue.add_all(elements)
    taken: list[Any] = []
    wrong = ((1001, None), 1)
    queue.add(wrong)  # It is compared with few others, and they are below or above it by their first part.
    more = iter([((1001, number), 1) for number in range(1, 3000)])
    with pytest.raises(TypeError):
        queue.add_all(more)
    elements += [((1001, number), 1) for number in range(1, len(queue) - 3000)]
    assert next(more) == ((1001, len(queue) - 2999), 1)  # The one before it was refused.
    with pytest.raises(TypeError):
        taken.extend(iter(queue.poll, None))
    with pytest.raises(TypeError):
        queue.remove(queue.peek())
    assert len(queue) == len(list(queue)) == len(elements) + 1 - len(taken)
    queue.remove(wrong)
    assert taken + drain(queue) == sorted(elements)


def test_P3_elements_of_keys_that_python_calls_equal_are_different():
    for kind in HEAP_SETS:
        queue = make_queue(kind, None)
        queue.add_all([(1, 1), (1, True), (1, 1.0), (1, 1)])
        assert [repr(element) for element in drain(queue)] == ["(1, 1)", "(1, True)", "(1, 1.0)"]


def test_P3_the_plain_queue_takes_equal_ones_and_removes_the_very_object():
    class Element:
        def __init__(self, at):
            self.at = at

        def __eq__(self, other):
            return True

        __hash__ = None  # type: ignore[assignment]

    queue: HeapPriorityQueue[Element] = HeapPriorityQueue(lambda element: element.at)
    first, second = Element(1), Element(1)
    queue.add_all([first, second, first])
    assert queue.remove(Element(1)) is False
    assert queue.remove(second) is False
    assert [queue.poll(), queue.poll(), queue.poll()] == [first, first, None]


@pytest.mark.parametrize("kind", SETS, ids=name_of)
def test_P5_a_key_outside_the_range_is_refused(kind, tmp_path):
    groups = key_group_range(300, 3, 1)
    queue = make_queue(kind, tmp_path / "queue", groups, 300)
    inside = next(key for key in range(100) if key_group(key, 300) in groups)
    outside = next(key for key in range(100) if key_group(key, 300) not in groups)
    queue.add((1, inside))
    for action in (queue.add, queue.remove):
        with pytest.raises(StateError, match="outside the range"):
            action((1, outside))
    with pytest.raises(StateError):
        queue.add((1, None))
    assert queue.subset_for_key_group(key_group(inside, 300)) == [(1, inside)]
    for wrong in (99, 200, -1):
        with pytest.raises(StateError, match="outside the range"):
            queue.subset_for_key_group(wrong)
    if isinstance(kind, ON_DISK):
        queue.close()


@pytest.mark.parametrize("cache_size", CACHE_SIZES)
def test_P6_a_closed_set_opens_again_with_what_it_held(cache_size, tmp_path, monkeypatch):
    queue = make_queue(cache_size, tmp_path / "queue")
    queue.add_all((number, 0) for number in range(10))
    queue.poll()
    queue.close()
    queue.close()
    for action in (queue.poll, queue.peek, lambda: queue.add((1, 1)), lambda: list(queue), queue.clear):
        with pytest.raises(StateError, match="closed"):
            action()
    with monkeypatch.context() as patch:
        patch.setattr(Database, "scan", lambda *args: pytest.fail("it counts"))
        again = make_queue(5, tmp_path / "queue")
    assert len(again) == 9
    assert drain(again) == [(number, 0) for number in range(1, 10)]
    again.close()


def test_P6_a_directory_of_another_queue_is_refused(tmp_path):
    make_queue(3, tmp_path / "queue").close()
    with pytest.raises(StateError, match="another directory"):
        make_queue(3, tmp_path / "queue", KeyGroupRange(0, 5))
    with pytest.raises(ConfigurationError, match="cache_size"):
        make_queue(0, tmp_path / "other")
    held = make_queue(3, tmp_path / "held")
    with pytest.raises(StateError, match="in use"):
        make_queue(3, tmp_path / "held")
    held.close()


def test_P7_one_key_at_a_time():
    queue: BatchPriorityQueueSet[tuple[int, object]] = BatchPriorityQueueSet(priority, key_of)
    queue.add_all([(2, "a"), (1, "a"), (1, "a")])
    with pytest.raises(StateError, match="'b'"):
        queue.add((0, "b"))
    assert queue.remove((2, "b")) is False
    assert drain(queue) == [(1, "a"), (2, "a")]
    queue.add((0, 1))
    with pytest.raises(StateError, match="True"):
        queue.add((0, True))
    queue.clear()
    queue.add((0, True))


def test_P7_the_key_of_an_element_is_its_attribute_key():
    queue: BatchPriorityQueueSet[Timer] = BatchPriorityQueueSet(lambda timer: timer.timestamp)
    queue.add(Timer(1, "a"))
    with pytest.raises(StateError, match="'b'"):
        queue.add(Timer(2, "b"))


def test_P7_elements_without_a_key_are_of_one_key():
    queue: BatchPriorityQueueSet[tuple[int, str]] = BatchPriorityQueueSet(priority)
    queue.add_all([(2, "x"), (1, "y"), (1, "x"), (1, "y")])
    assert drain(queue) == [(1, "y"), (1, "x"), (2, "x")]


@pytest.mark.parametrize("kind", IN_MEMORY, ids=name_of)
def test_a_priority_that_cannot_be_read_or_compared_changes_nothing(kind, tmp_path):
    queue = make_queue(kind, tmp_path)
    queue.add_all([(3, 1), (1, 1), (2, 1)])
    for wrong in (("text", 1), (None, 1)):
        with pytest.raises(TypeError):
            queue.add(wrong)
        assert queue.remove(wrong) is False
    check(queue)
    assert drain(queue) == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize("queue", KINDS, ids=name_of, indirect=True)
def test_iteration_is_not_disturbed_by_changes(queue):
    queue.add_all([(number, 1) for number in range(5)])
    seen = []
    for element in queue:
        seen.append(element)
        queue.add((100 + len(seen), 1))
        queue.poll()
    assert sorted(seen) == [(number, 1) for number in range(5)]


class Alike:
    """Equal to every other one of its number, whatever its key."""

    def __init__(self, number, key):
        self.number, self.key = number, key

    def __eq__(self, other):
        return self.number == other.number

    def __hash__(self):
        return self.number


@pytest.mark.parametrize("kind", HEAP_SETS, ids=name_of)
@pytest.mark.parametrize("keys", [("a", "b"), (1, 2), ((1,), (2,))], ids=repr)
def test_P3_equal_elements_of_different_keys_are_different(kind, keys):
    for key_groups, max_parallelism in ((KeyGroupRange(0, 0), 1), (ALL_GROUPS, 128)):
        queue = kind(lambda element: element.number, lambda element: element.key, key_groups, max_parallelism)
        first, second = (Alike(1, key) for key in keys)
        assert queue.add(first)
        assert not queue.add(second)
        assert len(queue) == 2
        assert not queue.add(Alike(1, keys[0]))
        assert queue.remove(Alike(1, keys[0]))
        assert drain(queue) == [second]


@pytest.mark.parametrize("kind", HEAP_SETS, ids=name_of)
def test_a_priority_that_cannot_be_compared_across_key_groups_changes_nothing(kind):
    queue = kind(lambda element: element[1], lambda element: element[0], ALL_GROUPS, 128)
    queue.add_all([("a", 1), ("b", 2)])
    with pytest.raises(TypeError):
        queue.add(("c", "text"))
    check(queue)
    assert not queue.remove(("c", "text"))
    assert drain(queue) == [("a", 1), ("b", 2)]
    assert queue.add(("c", "text"))
    assert drain(queue) == [("c", "text")]


@pytest.mark.parametrize("kind", IN_MEMORY, ids=name_of)
@pytest.mark.parametrize("way", ["poll", "remove"])
def test_P4_memory_is_given_back_by_draining(kind, way, tmp_path):
    elements = [(number, 1) for number in range(10_000)]
    tracemalloc.start()
    try:
        queue = make_queue(kind, tmp_path)
        queue.add_all(elements)
        full = tracemalloc.get_traced_memory()[0]
        for element in elements[:-1]:
            queue.poll() if way == "poll" else queue.remove(element)
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert list(queue) == elements[-1:]
    assert left < full / 10


def test_P4_the_plain_queue_removes_an_object_that_is_in_it_often_as_fast():
    queue: HeapPriorityQueue[object] = HeapPriorityQueue(lambda element: 0)
    element = object()
    queue.add_all([element] * 100)
    held = queue._index.part(id(element))[id(element)]
    assert isinstance(held, OrderedDict)  # whose first entry is found in constant time, unlike a dict's
    for left in range(99, -1, -1):
        assert queue.remove(element)
        assert len(queue) == left
    check(queue)


def test_P6_clear_is_done_in_batches_and_goes_on_where_it_was_cut_short(tmp_path, monkeypatch):
    queue = make_queue(128, tmp_path / "queue")
    elements = [(number, 0) for number in range(2500)]
    queue.add_all(elements)
    commits = []
    commit = queue._database.commit

    def cut_short(batch):
        commits.append(len(batch))
        if len(commits) == 2:
            raise StateError("the disk is full")
        commit(batch)

    queue.flush()
    monkeypatch.setattr(queue._database, "commit", cut_short)
    with pytest.raises(StateError, match="full"):
        queue.clear()
    check(queue)
    assert list(queue) == elements[1000:]
    queue.clear()
    assert queue.is_empty()
    assert max(commits) <= 2001  # and the size
    queue.close()


@pytest.mark.parametrize("kind", [*HEAP_SETS, BatchPriorityQueueSet], ids=name_of)
@pytest.mark.parametrize("key", [1, 2**70, "a", True, False, 1.5, b"a", (1, "a")], ids=repr)
@pytest.mark.parametrize("make", [lambda *pair: pair, Timer], ids=["tuple", "timer"])
def test_P3_an_equal_copy_removes_an_element_whatever_the_type_of_its_key(kind, key, make):
    arguments = () if kind is BatchPriorityQueueSet else (ALL_GROUPS, 128)
    queue = kind(priority, key_of, *arguments)
    queue.add_all([make(2, key), make(1, key)])
    assert queue.remove(make(1, key))
    assert not queue.remove(make(1, key))
    assert list(queue) == [make(2, key)]
    assert queue.add(make(1, key))
    assert drain(queue) == [make(1, key), make(2, key)]


@pytest.mark.parametrize("queue", SETS, ids=name_of, indirect=True)
def test_P5_the_subset_has_elements_of_any_bytes(queue):
    ends = [-(2**31), -1, 0, 1, 2**31 - 2**24 - 1, 2**31 - 2**24, 2**31 - 1]
    elements = [(at, key) for at in ends for key in range(3)]
    queue.add_all(elements)
    found = {group: sorted(queue.subset_for_key_group(group)) for group in ALL_GROUPS}
    assert found == {group: [one for one in elements if key_group(one[1], 128) == group] for group in ALL_GROUPS}


class Counted(int):
    """A priority that counts its comparisons."""

    comparisons = 0

    def __lt__(self, other):
        Counted.comparisons += 1
        return int(self) < int(other)

    def __gt__(self, other):
        Counted.comparisons += 1
        return int(self) > int(other)

    def __eq__(self, other):
        Counted.comparisons += 1
        return int(self) == int(other)

    __hash__ = int.__hash__


ORDERS: dict[str, Callable[[list], list]] = {
    "first to last": sorted,
    "last to first": lambda elements: sorted(elements, reverse=True),
    "as they were added": lambda elements: elements,
    "the first one last": lambda elements: sorted(elements)[1:] + sorted(elements)[:1],
    "from the middle": lambda elements: sorted(elements, key=lambda element: abs(element[0] - 500_000)),
}


@pytest.mark.parametrize("kind", IN_MEMORY, ids=name_of)
@pytest.mark.parametrize("order", ORDERS)
def test_P4_no_removal_waits_for_those_before_it(kind, order, tmp_path):
    numbers = random.Random(4)
    elements = [(Counted(numbers.randrange(1_000_000)), 1, number) for number in range(3_000)]
    queue = make_queue(kind, tmp_path)
    queue.add_all(elements)
    most = 0
    for element in ORDERS[order](elements):
        before = Counted.comparisons
        queue.remove(element)
        most = max(most, Counted.comparisons - before)
    assert queue.is_empty()
    # A comparison of two entries may compare their priorities twice. One block is sorted, whatever the size.
    assert most < 2 * heap_queue.BLOCK * math.log2(heap_queue.BLOCK)


class Task:
    """An element whose priority changes while it is inside."""

    def __init__(self, at):
        self.at = at


def adjustable(kind):
    if kind is HeapPriorityQueue:
        return kind(lambda task: task.at)
    return kind(lambda task: task.at, id, ALL_GROUPS, 128)


@pytest.mark.parametrize("kind", [HeapPriorityQueue, HeapPriorityQueueSet], ids=name_of)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 11), st.integers(-3, 3)))
)
def test_P4_an_element_is_moved_when_its_priority_has_changed(kind, priorities, changes):
    queue, tasks = adjustable(kind), [Task(at) for at in priorities]
    queue.add_all(tasks)
    model = list(tasks)
    for place, at in changes:
        task = tasks[place % len(tasks)]
        head = min(model, key=lambda other: other.at)
        task.at = at
        model.remove(task)
        model.append(task)
        changed = queue.adjust(task)
        assert changed or min(model, key=lambda other: other.at) is head
        check(queue)
    assert drain(queue) == sorted(model, key=lambda task: task.at)
    assert queue.adjust(tasks[0]) is False


@pytest.mark.parametrize("kind", [HeapPriorityQueue, HeapPriorityQueueSet], ids=name_of)
def test_P4_an_element_keeps_its_place_if_its_new_priority_is_refused(kind):
    queue, tasks = adjustable(kind), [Task(at) for at in range(3)]
    queue.add_all(tasks)
    tasks[0].at = math.nan
    with pytest.raises(StateError, match="nan"):
        queue.adjust(tasks[0])
    tasks[0].at = "soon"
    with pytest.raises(TypeError):
        queue.adjust(tasks[0])
    check(queue)
    assert drain(queue) == tasks


class QueueMachine(RuleBasedStateMachine):
    """A queue against a sorted list of (priority, order, element)."""

    kind: object
    directory: Path
    made = 0

    @initialize()
    def start(self):
        QueueMachine.made += 1
        self.queue = make_queue(self.kind, self.directory / str(QueueMachine.made))
        self.model = []
        self.added = 0

    def rank(self, element):
        self.added += 1
        return element[0], element[1] if isinstance(self.kind, int) else self.added, element

    @rule(at=st.integers(-4, 4), key=st.integers(0, 5))
    def add(self, at, key):
        element = (at, 0 if self.kind is BatchPriorityQueueSet else key)
        inside = any(found[2] == element for found in self.model)
        if inside and self.kind is not HeapPriorityQueue:
            assert self.queue.add(element) is False
            return
        ranked = self.rank(element)
        self.model.append(ranked)
        self.agree(self.queue.add(element), min(self.model) == ranked)

    @rule(at=st.integers(-4, 4), key=st.integers(0, 5))
    def remove(self, at, key):
        element = (at, 0 if self.kind is BatchPriorityQueueSet else key)
        if self.kind is HeapPriorityQueue:
            element = next((found[2] for found in self.model if found[2] == element), element)
        ranked = min((found for found in self.model if found[2] is element or found[2] == element), default=None)
        if ranked is None:
            assert self.queue.remove(element) is False
            return
        was_head = min(self.model) == ranked
        self.model.remove(ranked)
        self.agree(self.queue.remove(element), was_head)

    @rule()
    def poll(self):
        expected = min(self.model, default=None)
        if expected is not None:
            self.model.remove(expected)
        assert self.queue.poll() == (expected and expected[2])

    @rule()
    def drain(self):
        assert drain(self.queue) == [found[2] for found in sorted(self.model)]
        self.model = []

    @precondition(lambda self: isinstance(self.kind, int))
    @rule()
    def reopen(self):
        self.queue.close()
        self.queue = make_queue(self.kind, self.directory / str(QueueMachine.made))

    @invariant()
    def agrees_with_the_model(self):
        if hasattr(self, "queue"):
            assert len(self.queue) == len(self.model)
            assert self.queue.peek() == (min(self.model)[2] if self.model else None)
            assert sorted(self.queue) == sorted(found[2] for found in self.model)
            check(self.queue)

    def agree(self, answer, changed):
        assert answer or not changed
        assert answer == changed or isinstance(self.kind, int)

    def teardown(self):
        with suppress(AttributeError):
            self.queue.close()


@pytest.mark.parametrize(
    ("kind", "block"),
    [(kind, block) for kind in KINDS for block in (2, 512) if block > 2 or not isinstance(kind, ON_DISK)],
)
def test_P1_P2_P4_state_machine_against_a_sorted_list(kind, block, tmp_path, monkeypatch):
    # Small blocks and parts are split and joined all the time.
    monkeypatch.setattr(heap_queue, "BLOCK", block)
    for module in (heap_queue, heap_set):
        monkeypatch.setattr(module, "PART", block)
        monkeypatch.setattr(module, "SLIM_EVERY", block)
    machine = type("Machine", (QueueMachine,), {"kind": kind, "directory": tmp_path})
    examples = 4 if isinstance(kind, ON_DISK) else 20
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
