"""The timer service of batches: T6."""

from __future__ import annotations

import pytest

from asyncio_operator.errors import StateError
from asyncio_operator.testing.time import ManualClock
from asyncio_operator.timers import MAX_TIMESTAMP, MIN_TIMESTAMP, BatchTimerService

END = 2**63 - 1


@pytest.fixture
def fired():
    return []


@pytest.fixture(name="service")
def batch_service(fired):
    def note(kind):
        return lambda timer: fired.append((kind, *timer, service.current_key, service.current_watermark))

    service = BatchTimerService(
        on_event_time=note("event"), on_processing_time=note("processing"), clock=ManualClock(5.0)
    )
    return service


def test_T6_a_new_key_fires_the_timers_of_the_old_one(service, fired):
    service.current_key = "a"
    for timestamp in (3, 1, 1, 2):
        service.register_processing_time_timer(timestamp)
        service.register_event_time_timer(timestamp, "w")
    service.delete_event_time_timer(2, "w")
    service.delete_processing_time_timer(2)
    service.current_key = "a"
    assert fired == []
    assert service.current_watermark == MIN_TIMESTAMP
    service.current_key = "b"
    assert fired == [
        ("event", 1, "a", "w", "a", MAX_TIMESTAMP),
        ("event", 3, "a", "w", "a", MAX_TIMESTAMP),
        ("processing", 1, "a", None, "a", MAX_TIMESTAMP),
        ("processing", 3, "a", None, "a", MAX_TIMESTAMP),
    ]
    assert service.current_key == "b"
    assert service.current_watermark == MIN_TIMESTAMP


def test_T6_keys_that_python_calls_equal_are_different(service, fired):
    service.current_key = 1
    service.register_event_time_timer(1)
    service.current_key = True
    assert len(fired) == 1


def test_T6_only_the_end_of_input_flushes_the_last_key(service, fired):
    service.current_key = "a"
    service.register_event_time_timer(1)
    service.register_processing_time_timer(1)
    service.advance_watermark(END - 1)
    service.advance_processing_time()
    assert fired == []
    assert service.next_processing_time() is None
    assert service.current_processing_time() == 5000
    service.advance_watermark(END)
    assert [kind for kind, *_ in fired] == ["event", "processing"]
    assert service.current_watermark == MIN_TIMESTAMP
    service.advance_watermark(END)
    assert len(fired) == 2


def test_T6_registrations_in_callbacks_are_ignored():
    fired = []

    def react(timer):
        fired.append(timer.timestamp)
        service.register_event_time_timer(timer.timestamp + 1)
        service.register_processing_time_timer(timer.timestamp + 1)
        service.delete_event_time_timer(20)
        with pytest.raises(StateError, match="while its timers fire"):
            service.current_key = "other"

    service = BatchTimerService(on_event_time=react, on_processing_time=react)
    service.current_key = "a"
    service.register_event_time_timer(10)
    service.register_event_time_timer(20)
    service.register_processing_time_timer(30)
    service.current_key = "b"
    assert fired == [10, 30]
    assert list(service.event_time_timers()) == []
    assert list(service.processing_time_timers()) == []


def test_T10_the_end_of_input_may_be_taken_in_parts(service, fired):
    service.current_key = "a"
    for timestamp in (2, 1):
        service.register_processing_time_timer(timestamp)
        service.register_event_time_timer(timestamp)
    assert [service.advance_watermark(END, limit=3), service.advance_watermark(5, limit=1)] == [True, False]
    assert [(kind, at, watermark) for kind, at, _, _, _, watermark in fired] == [
        ("event", 1, MAX_TIMESTAMP),
        ("event", 2, MAX_TIMESTAMP),
        ("processing", 1, MAX_TIMESTAMP),
    ]
    assert service.current_watermark == MIN_TIMESTAMP
    assert [service.advance_watermark(END, limit=1), service.advance_watermark(END, limit=1)] == [False, False]
    assert len(fired) == 4


def test_T6_a_refused_key_leaves_none_and_the_timers_of_the_old_one_fire_for_it_later():
    fired: list[tuple[int, str | None]] = []

    def react(timer):
        service.current_key = timer.key
        service.register_event_time_timer(5)
        fired.append((timer.timestamp, service.current_key))

    service = BatchTimerService(on_event_time=react)
    for later in ("b", None):
        service.current_key = "a"
        service.register_event_time_timer(1)
        with pytest.raises(StateError, match="cannot be a key"):
            service.current_key = [1]
        assert service.current_key is None
        for use in (service.register_event_time_timer, service.delete_event_time_timer):
            with pytest.raises(StateError, match="current_key"):
                use(2)
        assert fired == []
        if later is None:
            service.advance_watermark(MAX_TIMESTAMP)
        else:
            service.current_key = later
        assert fired == [(1, "a")]
        assert service.current_key == later
        fired.clear()


def test_a_callback_that_raises_keeps_the_key_and_the_other_timers():
    fired = []

    def react(timer):
        fired.append(timer.timestamp)
        if timer.timestamp == 1:
            raise LookupError("broken")

    service = BatchTimerService(on_event_time=react)
    service.current_key = "a"
    service.register_event_time_timer(1)
    service.register_event_time_timer(2)
    with pytest.raises(LookupError):
        service.current_key = "b"
    assert service.current_key == "a"
    assert service.current_watermark == MIN_TIMESTAMP
    service.current_key = "b"
    assert fired == [1, 2]


def test_bad_input_and_what_a_batch_has_not(service):
    with pytest.raises(StateError, match="current_key"):
        service.register_event_time_timer(1)
    with pytest.raises(StateError, match="cannot be a key"):
        service.current_key = None
    service.current_key = "a"
    for wrong in (1.5, 2**63):
        with pytest.raises(StateError, match="timestamp"):
            service.register_event_time_timer(wrong)
        with pytest.raises(StateError, match="timestamp"):
            service.advance_watermark(wrong)
    with pytest.raises(StateError, match="run again"):
        service.snapshot(0)
    with pytest.raises(StateError, match="run again"):
        service.restore(0, b"")
    service.register_event_time_timer(1, "w")
    assert len(list(service.event_time_timers("w"))) == 1
    assert list(service.event_time_timers(namespace=None)) == []
