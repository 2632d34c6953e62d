"""S15 and O10: elements in flight are part of a checkpoint, with the state and the timers of the same moment."""

from __future__ import annotations

from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, OperatorSnapshot, Record, Watermark
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.state import HeapStateBackend, InFlightElements, KeyGroupRange, checkpoint, restore_checkpoint
from asyncio_operator.timers import HeapQueues, InternalTimerService

SNAPSHOT = OperatorSnapshot(
    ((1, 0), (Record(["tea", None], 5), 2), (Record(None), 0), (Watermark(-(2**63)), 0), (Record({}, 7), 1)),
    (Record("reminder", 3), Record("late")),
)
HALVES = KeyGroupRange(0, 63), KeyGroupRange(64, 127)


def test_S15_elements_come_back_with_their_attempts_to_the_owner_of_the_first_key_group(tmp_path):
    service = InternalTimerService()
    service.current_key = "k"
    service.register_event_time_timer(1)
    checkpoint(tmp_path / "saved", HeapStateBackend(), service, InFlightElements(SNAPSHOT))
    for groups, wanted in ((KeyGroupRange(0, 127), SNAPSHOT), (HALVES[0], SNAPSHOT), (HALVES[1], OperatorSnapshot())):
        elements = InFlightElements()
        backend = HeapStateBackend(key_groups=groups)
        checkpoint(tmp_path / f"none-{groups.start}-{groups.end}", backend, elements)
        restore_checkpoint(tmp_path / "saved", backend, InternalTimerService(queues=HeapQueues(groups)), elements)
        assert elements.snapshot == wanted


async def test_S15_O10_a_run_goes_on_from_a_checkpoint(tmp_path):
    async def double(value):
        return 2 * value

    operator = AsyncWaitOperator(double, capacity=3, buffer=3)
    outputs = operator.process([1, 2, 3, 4])
    found = [await anext(outputs)]
    checkpoint(tmp_path / "saved", HeapStateBackend(), InFlightElements(operator.snapshot()))
    await outputs.aclose()
    elements = InFlightElements()
    restore_checkpoint(tmp_path / "saved", HeapStateBackend(), elements)
    read = len(found) + len(elements.snapshot)
    found += [each async for each in operator.process([1, 2, 3, 4][read:], restore=elements.snapshot)]
    assert found == [2, 4, 6, 8]


def test_S15_elements_of_several_operators_are_joined_unless_they_have_watermarks(tmp_path):
    def save(name, *elements):
        paths = [tmp_path / f"{name}-{index}" for index in range(2)]
        for path, groups in zip(paths, HALVES, strict=True):
            snapshot = OperatorSnapshot(tuple((element, groups.start) for element in elements))
            checkpoint(path, HeapStateBackend(key_groups=groups), InFlightElements(snapshot))
        return paths

    joined = InFlightElements()
    restore_checkpoint(save("records", "a", "b"), HeapStateBackend(), joined)
    assert joined.snapshot.elements == (("a", 0), ("b", 0), ("a", 64), ("b", 64))
    with pytest.raises(StateError, match="would make records of the others late"):
        restore_checkpoint(save("marked", "a", Watermark(1)), HeapStateBackend(), InFlightElements())
    with pytest.raises(StateError, match="has elements already"):
        restore_checkpoint(tmp_path / "records-0", HeapStateBackend(key_groups=HALVES[0]), joined)


def test_in_flight_elements_refuse_what_is_wrong(tmp_path):
    wrong: Any = [1]
    with pytest.raises(ConfigurationError, match=r"operator\.snapshot\(\)"):
        InFlightElements(wrong)
    wrong = SNAPSHOT
    with pytest.raises(ConfigurationError, match=r"^services is .*InFlightElements\(operator\.snapshot\(\)\), an Int"):
        checkpoint(tmp_path / "saved", HeapStateBackend(), wrong)
    with pytest.raises(StateError, match="cannot be stored"):
        checkpoint(tmp_path / "saved", HeapStateBackend(), InFlightElements(OperatorSnapshot(((object(), 0),))))
    assert [*tmp_path.iterdir()] == []
    for data in (b"", b"\x00", b"\x01"):
        with pytest.raises(StateError, match="does not hold elements of an operator"):
            InFlightElements().prepare_restore(HALVES[0], 128, {0: data})
