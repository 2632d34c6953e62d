"""A batch of keys, and the window that the plain way makes of it: admitted range by range, left once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Enricher
from asyncio_operator.lookup.key_batch import Answer, Failure, KeyBatch, shared
from asyncio_operator.lookup.key_failures import KeyFailures
from asyncio_operator.lookup.plain import KeyWindow
from tests.lookup.helpers import Recorded


def enricher() -> Enricher:
    return Recorded(lambda key: key)


def window_of(count: int, asked: list[int] | None = None) -> tuple[KeyWindow, list[KeyWindow]]:
    """A window over some keys, and where it is put when it is left."""
    left: list[KeyWindow] = []
    failures = KeyFailures(enricher(), timeout=2.0, fail=False, remedy="", clock=lambda: 1.0)
    return KeyWindow(KeyBatch([f"key {i}" for i in range(count)], rows=count), asked, failures, left.append), left


@given(
    count=st.integers(0, 40),
    rooms=st.lists(st.integers(1, 15), min_size=40, max_size=40),
    data=st.data(),
)
def test_every_key_is_handed_out_once_in_order_whatever_room_there_is(count: int, rooms: list[int], data: Any) -> None:
    asked = data.draw(st.none() | st.sets(st.integers(0, count - 1)).map(sorted)) if count else None
    (window, _), taken = window_of(count, asked), []
    for room in rooms:
        if window.all_admitted():
            break
        admitted = window.admit(room)
        assert 1 <= admitted <= room
        assert window.left_over() == admitted
        for slot, key in window:
            assert window.value_of(slot) == key
            taken.append(slot)
        assert not window.left_over()
    assert taken == (list(range(count)) if asked is None else asked)


def test_it_is_left_once_when_its_last_lane_has_left() -> None:
    window, left = window_of(3)
    for room in (2, 1):
        window.admit(room)
        for slot, _ in window:
            assert not left
            window.complete(slot, None)
        window.left()
    assert left == [window]
    assert window.batch.outcomes == [None] * 3


def test_a_failure_is_the_outcome_of_its_key() -> None:
    window, _ = window_of(3)
    window.failed(0, ValueError("no"), 0.5)
    window.timed_out(2, 0.25)
    failed, pending, late = window.batch.outcomes
    assert (str(failed.error), failed.latency, failed.timed_out) == ("no", 0.5, False)
    assert (type(late), late.latency, late.timed_out) == (Failure, 0.75, True)
    assert window.batch.answered() == 2
    window.batch.outcomes[1] = None
    assert window.batch.answered() == 3
    assert pending is not None


def test_ready_is_the_run_of_outcomes_from_the_first_and_answered_counts_them_all() -> None:
    window, _ = window_of(5)
    batch = window.batch
    batch.outcomes[0] = batch.outcomes[1] = batch.outcomes[3] = None
    assert (batch.ready(), batch.answered()) == (2, 3)
    batch.delivered = 2
    batch.outcomes[2] = None
    assert (batch.ready(), batch.answered()) == (4, 4)


def test_who_shares_an_outcome_is_told_so() -> None:
    answer = {"x": 1}
    assert shared(answer) is answer
    told = shared(Answer(answer, "call", 3, 0.5))
    assert (told.answer, told.source, told.attempts, told.latency) == (answer, "shared", 3, 0.5)
    failure = shared(Failure(ValueError("no"), 0.5, attempts=2))
    assert (str(failure.error), failure.source, failure.attempts) == ("no", "shared", 2)


def test_failure_says_what_it_is() -> None:
    assert repr(Failure(ValueError("no"), 1.5)) == "Failure(ValueError('no'), call, after 1 attempts)"
