"""The timer service for input that is sorted by key, where no watermark comes before the end.

One key is present at a time. When it changes, everything is over for the old one: the watermark is at its maximum, its
event-time timers fire in order, then its processing-time timers, and the watermark falls back to its minimum for the
new key. Registrations in these callbacks are ignored, for nothing would ever fire them. Source: Flink's
``BatchExecutionInternalTimeService``.
"""

from __future__ import annotations

from asyncio_operator.clock import Clock
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.batch_set import BatchPriorityQueueSet
from asyncio_operator.state.keys import Key, serialize_key
from asyncio_operator.timers.queues import key_of, timestamp_of
from asyncio_operator.timers.service import Callback, TimerService, check_callback, current_timer
from asyncio_operator.timers.timer import MAX_TIMESTAMP, MIN_TIMESTAMP, Timer, check_timestamp


class BatchTimerService(TimerService[BatchPriorityQueueSet[Timer]]):
    """Timers of one key at a time. The watermark is 2**63 - 1 while the timers of a key fire, else -2**63. Timers that
    are registered meanwhile are ignored.

    Args:
        on_event_time: called with each event-time timer that fires.
        on_processing_time: called with each processing-time timer that fires.
        clock: seconds as a float; None is the system's.

    Raises:
        ConfigurationError: a callback is async, it or the clock cannot be called.
    """

    def __init__(
        self,
        *,
        on_event_time: Callback | None = None,
        on_processing_time: Callback | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._on_event_time = check_callback("on_event_time", on_event_time)
        self._on_processing_time = check_callback("on_processing_time", on_processing_time)
        event: BatchPriorityQueueSet[Timer] = BatchPriorityQueueSet(timestamp_of, key_of)
        processing: BatchPriorityQueueSet[Timer] = BatchPriorityQueueSet(timestamp_of, key_of)
        super().__init__(event, processing, clock)
        self._key: Key | None = None
        self._key_bytes = b""
        self._flushing = False
        self._refused = False

    @property
    def current_key(self) -> Key | None:
        """The key that is present. Setting another one fires all timers of the old one.

        A key that is refused, with a StateError, leaves none set; the timers of the old one wait for the next, or for
        the end of input. In their callbacks the old one is the current key.
        """
        return None if self._refused and not self._flushing else self._key

    @current_key.setter
    def current_key(self, key: Key) -> None:
        if self._flushing:
            if serialize_key(key) != self._key_bytes:
                raise StateError(
                    f"the key cannot change from {describe(self._key)} to {describe(key)} while its timers fire"
                )
            return
        self._refused = True
        name = serialize_key(key)
        self._refused = False
        if self._key is not None and name == self._key_bytes:
            return
        self._flush()
        self._key, self._key_bytes = key, name

    def advance_watermark(self, timestamp: int) -> None:
        """The end of input, 2**63 - 1, fires all timers of the last key; any other watermark does nothing.

        Raises:
            StateError: the timestamp is no int of 64 bits.
        """
        check_timestamp(timestamp)
        if timestamp == MAX_TIMESTAMP and not self._flushing:
            self._flush()

    def advance_processing_time(self) -> None:
        """Does nothing: processing-time timers fire when the key changes, whatever the clock says."""

    def next_processing_time(self) -> int | None:
        """None: nobody has to wake."""
        return None

    def snapshot(self, key_group: int) -> bytes:
        """Raises StateError: a batch is not snapshotted, it is run again."""
        raise StateError("a BatchTimerService has no snapshots: a batch that failed is run again")

    def restore(self, key_group: int, data: bytes) -> None:
        """Raises StateError: a batch is not restored, it is run again."""
        raise StateError("a BatchTimerService restores no snapshots: a batch that failed is run again")

    def _register(self, queue: BatchPriorityQueueSet[Timer], timestamp: int, namespace: Key | None) -> None:
        timer = current_timer(self.current_key, timestamp, namespace)
        if not self._flushing:
            queue.add(timer)

    def _flush(self) -> None:
        self._flushing, self._watermark = True, MAX_TIMESTAMP
        try:
            while (timer := self._event.poll()) is not None:
                self._on_event_time(timer)
            while (timer := self._processing.poll()) is not None:
                self._on_processing_time(timer)
        finally:
            self._flushing, self._watermark = False, MIN_TIMESTAMP

    def __repr__(self) -> str:
        return (
            f"<BatchTimerService, {len(self._event)} event-time and {len(self._processing)} processing-time timers "
            f"of key {describe(self.current_key)}>"
        )
