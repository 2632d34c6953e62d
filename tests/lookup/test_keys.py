"""A batch of keys: admitted range by range, cut into calls, ended once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator.lookup.keys import PENDING, Chunk, Failure, KeyBatch


class Owner:
    def __init__(self) -> None:
        self.ends: list[KeyBatch] = []

    def failed(self, key: Any, error: BaseException, started: float) -> Failure:
        return Failure(error, 1.0)

    def timed_out(self, key: Any, started: float) -> Failure:
        return Failure(TimeoutError(key), 1.0, timed_out=True)

    def ended(self, batch: KeyBatch) -> None:
        self.ends.append(batch)


def batch_of(count: int) -> tuple[KeyBatch, list[KeyBatch]]:
    """A batch, and where it is put when it ends."""
    batch, owner = KeyBatch([f"key {i}" for i in range(count)], rows=count), Owner()
    batch.owner = owner
    return batch, owner.ends


@given(count=st.integers(0, 40), rooms=st.lists(st.integers(1, 15), min_size=40, max_size=40), chunk=st.integers(1, 9))
def test_every_key_is_handed_out_once_in_order_whatever_room_there_is(count: int, rooms: list[int], chunk: int) -> None:
    (batch, _), taken = batch_of(count), []
    for room in rooms:
        if batch.admitted == count:
            break
        admitted = batch.admit(room, chunk)
        assert 1 <= admitted <= room
        for slot, value in batch:
            keys = batch.keys[slot.start : slot.stop] if isinstance(slot, Chunk) else [value]
            assert 1 <= len(keys) <= chunk
            assert batch.value_of(slot) == (keys if chunk > 1 else value)
            taken += keys
        assert not batch.open()
    assert taken == batch.keys


def test_keys_are_spread_evenly_over_the_calls_of_a_range() -> None:
    batch, _ = batch_of(2500)
    batch.admit(2500, 1000)
    assert [slot.stop - slot.start for slot, _ in batch] == [834, 834, 832]


def test_it_ends_once_when_its_last_lane_has_left() -> None:
    batch, ends = batch_of(3)
    for room in (2, 1):
        batch.left()
        assert ends == []
        batch.admit(room, 1)
        batch.left()
        assert ends == [], "there were keys that nobody had taken"
        list(batch)
    batch.left()
    batch.left()
    batch.end()
    assert ends == [batch]
    assert batch.ended


def test_ready_is_the_run_of_outcomes_from_the_first_and_answered_counts_them_all() -> None:
    batch, _ = batch_of(5)
    assert (batch.ready(), batch.answered()) == (0, 0)
    batch.admit(5, 1)
    list(batch)
    batch.lanes = 2
    batch.complete(0, None)
    batch.complete(3, {})
    assert (batch.ready(), batch.answered()) == (1, 2)
    batch.delivered = 1
    batch.complete(1, {})
    batch.complete(2, {})
    assert (batch.ready(), batch.answered()) == (4, 4)
    batch.complete(4, {})
    batch.lanes = 0
    assert (batch.ready(), batch.answered()) == (5, 5)


def test_a_late_chunk_keeps_the_answers_it_had_and_takes_no_more() -> None:
    batch, _ = batch_of(4)
    batch.admit(4, 4)
    [(chunk, _)] = batch
    chunk.write(0, ["a", "b"])
    batch.timed_out(chunk, 0.0)
    chunk.write(2, ["late", "late"])
    assert batch.outcomes[:2] == ["a", "b"]
    assert [outcome.timed_out for outcome in batch.outcomes[2:]] == [True, True]


def test_a_failed_chunk_gives_every_key_without_an_outcome_its_failure() -> None:
    (batch, _), error = batch_of(3), ValueError("no")
    batch.admit(3, 3)
    [(chunk, _)] = batch
    chunk.write(1, [{"x": 1}])
    batch.failed(chunk, error, 0.0)
    assert batch.outcomes[1] == {"x": 1}
    assert [batch.outcomes[i].error for i in (0, 2)] == [error, error]
    assert PENDING not in batch.outcomes


def test_failure_says_what_it_is() -> None:
    assert repr(Failure(ValueError("no"), 1.5)) == "Failure(ValueError('no'), 1.500 s)"


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_key_is_named_by_its_slot(chunk: int) -> None:
    batch, _ = batch_of(3)
    batch.admit(3, chunk)
    slot, _ = next(iter(batch))
    assert batch.value_of(slot) == ("key 0" if chunk == 1 else ["key 0", "key 1", "key 2"])
