"""The timer service for input that is sorted by key, where no watermark comes before the end.

One key is present at a time. When the key changes, the input of the old key has ended: the watermark goes to its
maximum, the event-time timers of the key fire in order, then its processing-time timers, and the watermark goes back to
its minimum for the new key. Timers that these callbacks register are ignored, because they would never fire. Source:
Flink's ``BatchExecutionInternalTimeService``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from asyncio_operator.clock import Clock
from asyncio_operator.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.key_groups import KeyGroupRange, key_group
from asyncio_operator.state.keys import Key, KeySerializer, serialize_key
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.timers.queues import HeapQueues, Timer, check_timestamp, deserialize_timer, serialize_timer
from asyncio_operator.timers.service import Callback, InternalTimerService, permits_of


class BatchTimerService(InternalTimerService):
    """Timers of one key at a time. The watermark is 2**63 - 1 while the timers of a key fire, else -2**63. Timers that
    are registered meanwhile are ignored.

    Args:
        on_event_time: called with each event-time timer that fires; with None it fires without a call.
        on_processing_time: the same for processing-time timers.
        clock: seconds as a float; None is the system's.

    Raises:
        ConfigurationError: a callback is async, it or the clock cannot be called.
    """

    checkpoint_kind = "batch timers"

    def __init__(
        self,
        *,
        on_event_time: Callback | None = None,
        on_processing_time: Callback | None = None,
        clock: Clock | None = None,
    ) -> None:
        # One key has one key group.
        queues = HeapQueues(max_parallelism=1)
        super().__init__(on_event_time=on_event_time, on_processing_time=on_processing_time, clock=clock, queues=queues)
        self._key: Key | None = None
        self._key_bytes = b""
        self._flushing = False
        self._refused = False

    @property
    def current_key(self) -> Key | None:
        """The present key. Setting another key fires all timers of the old one.

        If a key is refused with a StateError, no key is set. The timers of the old key then wait for the next key, or
        for the end of input. In their callbacks the old key is the current one.
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
        # Until the key is accepted: if it is refused, timers must not go to the old key.
        self._refused = True
        name = serialize_key(key)
        self._refused = False
        if self._key is not None and name == self._key_bytes:
            return
        self._flush(permits_of(None))
        self._key, self._key_bytes = key, name

    def advance_watermark(self, timestamp: int, limit: int | None = None) -> bool:
        """The end of input, 2**63 - 1, fires all timers of the last key; any other watermark does nothing.

        Args:
            timestamp: the watermark, milliseconds.
            limit: the maximum number of timers to fire; None fires all.

        Returns:
            Whether the limit left timers of the last key. The same watermark fires them.

        Raises:
            ConfigurationError: the limit is not an int of at least 1.
            StateError: the timestamp is not an int of 64 bits.
        """
        check_timestamp(timestamp)
        permits = permits_of(limit)
        return timestamp == MAX_TIMESTAMP and not self._flushing and self._flush(permits)

    def advance_processing_time(self, limit: int | None = None) -> bool:
        """Does nothing: processing-time timers fire when the key changes, whatever the clock says. Returns False.

        Raises:
            ConfigurationError: the limit is not an int of at least 1.
        """
        permits_of(limit)
        return False

    def next_processing_time(self) -> int | None:
        """None: no one has to wake the service."""
        return None

    def snapshot(self, key_group: int) -> bytes:
        """Raises StateError: a batch has no snapshots, it is run again."""
        raise StateError("a BatchTimerService has no snapshots: a batch that failed is run again")

    def restore(self, key_group: int, data: bytes) -> None:
        """Raises StateError: a batch is not restored, it is run again."""
        raise StateError("a BatchTimerService restores no snapshots: a batch that failed is run again")

    def checkpoint_groups(self, key_groups: KeyGroupRange, max_parallelism: int) -> dict[int, bytes]:
        """The present key and its timers, by its key group; empty before the first key."""
        if self._key is None:
            return {}
        queues = {"event": self._event, "processing": self._processing}
        timers = {kind: [serialize_timer(timer) for timer in queue] for kind, queue in queues.items()}
        return {key_group(self._key, max_parallelism): BUILTIN.serialize({"key": self._key_bytes, **timers})}

    def prepare_restore(
        self, key_groups: KeyGroupRange, max_parallelism: int, groups: Mapping[int, bytes]
    ) -> Callable[[], None]:
        if self._key is not None:
            raise StateError(f"{self!r} has a key already: restore a checkpoint into a new service")
        if len(groups) > 1:
            raise StateError(
                f"the checkpoints hold keys of the key groups {sorted(groups)}, and a BatchTimerService has one key "
                "at a time: give each service the checkpoint of one"
            )
        if not groups:
            return lambda: None
        [(group, data)] = groups.items()
        try:
            found = BUILTIN.deserialize(data)
            key = KeySerializer().deserialize(found["key"])
            event, processing = ([deserialize_timer(raw) for raw in found[kind]] for kind in ("event", "processing"))
        except (LookupError, TypeError, StateError) as error:
            raise StateError(f"{describe(data)} does not hold timers of a batch: restore another checkpoint") from error
        if key_group(key, max_parallelism) != group or any(
            serialize_key(timer.key) != found["key"] for timer in (*event, *processing)
        ):
            raise StateError(f"damaged timers of a batch: not all are of key {describe(key)} in key group {group}")

        def add() -> None:
            self._key, self._key_bytes = key, serialize_key(key)
            self._add([(self._event, event), (self._processing, processing)])

        return add

    def _register(self, queue: PriorityQueueSet[Timer], timestamp: int, namespace: Key | None) -> bool:
        # Checked first, so that a wrong timer is an error in a callback too, where it would be ignored.
        timer = self._timer(timestamp, namespace)
        return not self._flushing and queue.add(timer)

    def _flush(self, permits: Iterator[bool]) -> bool:
        self._flushing, self._watermark = True, MAX_TIMESTAMP
        try:
            return self._fire(self._event, MAX_TIMESTAMP, self._on_event_time, permits) or self._fire(
                self._processing, MAX_TIMESTAMP, self._on_processing_time, permits
            )
        finally:
            self._flushing, self._watermark = False, MIN_TIMESTAMP

    def __repr__(self) -> str:
        return (
            f"<BatchTimerService, {len(self._event)} event-time and {len(self._processing)} processing-time timers "
            f"of key {describe(self.current_key)}>"
        )
