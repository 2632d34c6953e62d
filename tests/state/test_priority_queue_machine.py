"""P1 to P6 by a state machine: every priority queue against a sorted list."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncio_operator.state import (
    BatchPriorityQueueSet,
    HeapPriorityQueue,
    heap_queue,
    heap_set,
    ordered_entries,
)
from tests.state.queue_kinds import KINDS, ON_DISK, drain, make_queue


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
            self.queue._check()

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
def test_P_state_machine_against_a_sorted_list(kind, block, tmp_path, monkeypatch):
    # Small blocks and parts are split and joined all the time.
    monkeypatch.setattr(ordered_entries, "BLOCK", block)
    for module in (heap_queue, heap_set, ordered_entries):
        monkeypatch.setattr(module, "PART", block)
        monkeypatch.setattr(module, "SLIM_EVERY", block)
    machine = type("Machine", (QueueMachine,), {"kind": kind, "directory": tmp_path})
    examples = 4 if isinstance(kind, ON_DISK) else 20
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
