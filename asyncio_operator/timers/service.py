"""The timer service: event-time and processing-time timers per key and namespace; and several services as one.

Event-time timers fire when the watermark reaches them, processing-time timers when the clock has reached them. The
service never wakes by itself and knows no threads. Its owner calls `advance_watermark` for each watermark, and
`advance_processing_time` at the time that `next_processing_time` returns: the only time to wait for. On asyncio a
`ProcessingTimeDriver` does the second.

The law: a timer is unique per kind, key, namespace and timestamp, and fires once, in order of timestamp, with the
current key set to its own. A pass has one time, which does not move. Callbacks may register and delete timers; what
they register and is due by the time of the pass fires in the same pass. A callback that raises ends the pass; its own
timer is gone, all others are still there. A pass may have a limit of timers: the next one goes on where it ended.
Source: Flink's ``InternalTimerServiceImpl``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import repeat
from typing import Any, ClassVar
from urllib.parse import quote

from asyncio_operator.checks import milliseconds, must_be, plain_function, positive_int
from asyncio_operator.clock import Clock
from asyncio_operator.elements import MIN_TIMESTAMP, Record
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.key_groups import KeyGroupRange, check_group
from asyncio_operator.state.key_groups import key_group as key_group_of
from asyncio_operator.state.keys import Key, serialize_key
from asyncio_operator.state.layout import serialize_namespace
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.timers.queues import (
    ALL,
    All,
    HeapQueues,
    Timer,
    TimerQueues,
    check_queues,
    check_timestamp,
    deserialize_timer,
    serialize_timer,
)

SNAPSHOT_FORMAT = 1
"""{"format": 1, "max_parallelism": int, "key_group": int, "event": [bytes of a timer], "processing": [the same]}"""

SERVICES_FORMAT = 1  # {"format": 1, "services": {name: what the snapshot of that service holds}}

LONGEST_NAME = 64
"""Bytes of a name. Each may become three in the name of a directory, which has at most 255 on most systems."""

Callback = Callable[[Timer], Any]

Restored = tuple[PriorityQueueSet[Timer], list[Timer]]
"""Timers of a snapshot, and the set that they belong to."""

Output = Callable[[Record[Any]], object]
"""Takes the records that callbacks collect."""


class Timers(ABC):
    """What a service and a manager of services have in common: passes, snapshots, one driver, and one operator."""

    checkpoint_kind: ClassVar[str]
    """The name of this class in a checkpoint."""

    _queues: TimerQueues

    _watermark = MIN_TIMESTAMP
    _listener: Callable[[], object] | None = None
    _output: Output | None = None

    @property
    def services(self) -> Sequence[Any]:
        """The service itself, or those of a manager in the order of their names: a driver takes both alike."""
        return (self,)

    @property
    def current_watermark(self) -> int:
        """The last watermark, milliseconds; -2**63 before the first."""
        return self._watermark

    def watch(self, listener: Callable[[], object] | None) -> None:
        """Sets the function to call when `next_processing_time` may have become earlier; None for none.

        Raises:
            StateError: another one is set, here or in a service.
        """
        self._belong_to("_listener", listener, "has a driver already: end it before starting another one")

    def _told(self) -> None:
        """There may be an earlier processing-time timer."""
        if self._listener is not None:
            self._listener()

    def collect(self, record: Record[Any]) -> None:
        """Emits a record from a callback, during a run of an operator that was given this as ``timers=``. It leaves
        before the watermark that has fired the timer. Called on the thread of the run's loop.

        Raises:
            StateError: no such run is going on.
            TypeError: it is not a `Record`.
        """
        if self._output is None:
            raise StateError(
                f"{self!r} collects records only during a run of an operator that has it as timers=: without one, let "
                "the callback append them to a list of its own"
            )
        if type(record) is not Record:
            raise TypeError(
                f"collect() takes a Record, as in collect(Record(value, timestamp)), not {describe(record)}"
            )
        self._output(record)

    def collect_into(self, output: Output | None) -> None:
        """Sets the function that takes what is collected, which is the operator's to do; None for none.

        Raises:
            StateError: another one is set, here or in a service.
        """
        self._belong_to(
            "_output", output, "belongs to another run: end that run first, or give each operator its own timers"
        )

    def _belong_to(self, attribute: str, owner: object, taken: str) -> None:
        """Gives this and its services an owner, or takes it from them; StateError, with `taken`, if one has another."""
        for each in (self, *self.services):
            if getattr(each, attribute) is not None and owner is not None:
                raise StateError(f"{each!r} {taken}")
        for each in (self, *self.services):
            setattr(each, attribute, owner)

    @property
    def state_backend(self) -> StateBackend | None:
        """The backend whose snapshots hold the timers; None if they are kept elsewhere."""
        return getattr(self._queues, "backend", None)

    def advance_watermark(self, timestamp: int, limit: int | None = None) -> bool:
        """Sets the watermark, then fires every event-time timer up to it; an older watermark does nothing.

        The services of a manager have their turns one after the other, in the order of their names.

        Args:
            timestamp: the watermark, milliseconds.
            limit: the maximum number of timers to fire, of all services together; None fires all that are due.

        Returns:
            Whether the limit left timers that are due. The same watermark again, or a newer one, fires them.

        Raises:
            ConfigurationError: the limit is not an int of at least 1.
            StateError: the timestamp is not an int of 64 bits.
        """
        check_timestamp(timestamp)
        permits = permits_of(limit)
        if timestamp < self._watermark:
            return False
        self._watermark = timestamp
        # No generator: it would replace a StopIteration of a callback.
        return reduce(lambda more, one: more or one.fire_event_time(timestamp, permits), self.services, False)

    def advance_processing_time(self, limit: int | None = None) -> bool:
        """Fires every processing-time timer that the clock has passed or reached when the turn of its service comes.

        The pass of a service has this one time, however long the callbacks take: a timer that a callback registers
        fires in this pass if it is due by then, else in a later pass. So a periodic timer does not keep the pass from
        ending.

        Args:
            limit: as of `advance_watermark`.

        Returns:
            Whether the limit left timers that are due.

        Raises:
            ConfigurationError: the limit is not an int of at least 1.
        """
        permits = permits_of(limit)
        return reduce(lambda more, one: more or one.fire_processing_time(permits), self.services, False)

    @abstractmethod
    def has_timers(self, key_group: int | None = None) -> bool:
        """Whether there is any timer, or any of a key group."""

    @abstractmethod
    def snapshot(self, key_group: int) -> bytes:
        """The timers of a key group, also those that were restored for a service that was not asked for yet.

        Raises:
            StateError: the key group is outside the range.
        """

    @abstractmethod
    def read_group(self, key_group: int, data: bytes) -> list[Restored]:
        """What `restore` adds; raises as it does."""

    def restore(self, key_group: int, data: bytes) -> None:
        """Adds the timers of a key group that a snapshot holds; overdue ones fire at the next advance.

        Raises:
            StateError: the key group is outside the range, or the data are not a snapshot of it, or are of another
                version or maximum parallelism. Then no timer is added.
        """
        self._add(self.read_group(key_group, data))

    def _add(self, restored: Iterable[Restored]) -> None:
        for queue, timers in restored:
            queue.add_all(timers)
        # A backend may have restored timers that are earlier.
        self._told()

    def checkpoint_groups(self, key_groups: KeyGroupRange, max_parallelism: int) -> dict[int, bytes]:
        """The timers for a checkpoint of a backend with these key groups, by key group.

        Raises:
            ConfigurationError: the timers have other key groups.
        """
        check_shared(self, self._queues, key_groups, max_parallelism)
        return {group: self.snapshot(group) for group in key_groups if self.has_timers(group)}

    def prepare_restore(
        self, key_groups: KeyGroupRange, max_parallelism: int, groups: Mapping[int, bytes]
    ) -> Callable[[], None]:
        """Checks the bytes of `checkpoint_groups`. Returns a function that adds the timers.

        Raises:
            ConfigurationError: the timers have other key groups.
            StateError: there are timers already, or the bytes are not timers of their key group.
        """
        check_shared(self, self._queues, key_groups, max_parallelism)
        if self.has_timers():
            raise StateError(f"{self!r} has timers already: restore a checkpoint into a new one, with empty queues")
        return partial(self._add, [one for group, data in groups.items() for one in self.read_group(group, data)])


class InternalTimerService(Timers):
    """Timers of a range of key groups.

    Args:
        on_event_time: called with each event-time timer that fires; with None it fires without a call.
        on_processing_time: the same for processing-time timers.
        clock: seconds as a float; None is the system's.
        queues: gives the sets that hold the timers, and the range; None keeps them in memory, for 128 key groups.

    Raises:
        ConfigurationError: a callback is async, it or the clock cannot be called, or `queues` makes no sets.
    """

    checkpoint_kind = "timers"
    current_key: Key | None = None
    """The key of the timer that fires, or the key that was set last."""

    def __init__(
        self,
        *,
        on_event_time: Callback | None = None,
        on_processing_time: Callback | None = None,
        clock: Clock | None = None,
        queues: TimerQueues | None = None,
    ) -> None:
        self.heed(on_event_time, on_processing_time, clock)
        self._queues = queues = HeapQueues() if queues is None else check_queues(queues)
        self._event, self._processing = queues("event_time_timers"), queues("processing_time_timers")

    def heed(self, on_event_time: Callback | None, on_processing_time: Callback | None, clock: Clock | None) -> None:
        """Sets the callbacks, None for none, and the clock; ConfigurationError if one of them is wrong."""
        self._on_event_time = check_callback("on_event_time", on_event_time)
        self._on_processing_time = check_callback("on_processing_time", on_processing_time)
        self._now = milliseconds(clock)

    def current_processing_time(self) -> int:
        """The clock's time, in whole milliseconds."""
        return self._now()

    def register_event_time_timer(self, timestamp: int, namespace: Key | None = None) -> None:
        """Registers a timer for the current key, once. A timer behind the watermark fires at the next one.

        Raises:
            StateError: there is no current key, it is outside the range, or the timestamp or namespace is wrong.
        """
        self._register(self._event, timestamp, namespace)

    def delete_event_time_timer(self, timestamp: int, namespace: Key | None = None) -> None:
        """Deletes a timer of the current key, if it exists. Raises as registering does."""
        self._event.remove(self._timer(timestamp, namespace))

    def register_processing_time_timer(self, timestamp: int, namespace: Key | None = None) -> None:
        """As `register_event_time_timer`; one in the past fires at the next `advance_processing_time`."""
        if self._register(self._processing, timestamp, namespace):
            self._told()

    def delete_processing_time_timer(self, timestamp: int, namespace: Key | None = None) -> None:
        """As `delete_event_time_timer`."""
        self._processing.remove(self._timer(timestamp, namespace))

    def event_time_timers(self, namespace: Key | All | None = ALL) -> Iterator[Timer]:
        """The event-time timers, of all namespaces or of one, in any order."""
        return of_namespace(self._event, namespace)

    def processing_time_timers(self, namespace: Key | All | None = ALL) -> Iterator[Timer]:
        """The processing-time timers, of all namespaces or of one, in any order."""
        return of_namespace(self._processing, namespace)

    def _timer(self, timestamp: int, namespace: Key | None) -> Timer:
        """A timer of the current key, checked."""
        if self.current_key is None:
            raise StateError("no key is set: set current_key before registering or deleting a timer")
        check_timestamp(timestamp)
        if namespace is not None:
            serialize_key(namespace)
        return Timer(timestamp, self.current_key, namespace)

    def _register(self, queue: PriorityQueueSet[Timer], timestamp: int, namespace: Key | None) -> bool:
        """Whether the timer may be the first now."""
        return queue.add(self._timer(timestamp, namespace))

    def fire_event_time(self, timestamp: int, permits: Iterator[bool]) -> bool:
        """Its part of a pass of `advance_watermark`: whether more timers are due than there are permits."""
        if timestamp < self._watermark:
            return False
        self._watermark = timestamp
        return self._fire(self._event, timestamp, self._on_event_time, permits)

    def fire_processing_time(self, permits: Iterator[bool]) -> bool:
        """Its part of a pass of `advance_processing_time`, as `fire_event_time`."""
        return self._fire(self._processing, self._now(), self._on_processing_time, permits)

    def next_processing_time(self) -> int | None:
        """When `advance_processing_time` is next needed, milliseconds; None while there is no processing-time timer."""
        first = self._processing.peek()
        return None if first is None else first.timestamp

    def snapshot(self, key_group: int) -> bytes:
        event, processing = (
            [serialize_timer(timer) for timer in queue.subset_for_key_group(key_group)]
            for queue in (self._event, self._processing)
        )
        about = {"format": SNAPSHOT_FORMAT, "max_parallelism": self._queues.max_parallelism, "key_group": key_group}
        return BUILTIN.serialize({**about, "event": event, "processing": processing})

    def read_group(self, key_group: int, data: bytes) -> list[Restored]:
        check_group(key_group, self._queues.key_groups)
        found = snapshot_body(data)
        kinds = found.get("event"), found.get("processing")
        if "format" not in found or any(type(kind) is not list or {*map(type, kind)} - {bytes} for kind in kinds):
            raise not_of(data, "timers", key_group)
        wanted = {"format": SNAPSHOT_FORMAT, "max_parallelism": self._queues.max_parallelism, "key_group": key_group}
        for name, value in wanted.items():
            if found.get(name) != value:
                raise StateError(
                    f"the timer snapshot has {name} {describe(found.get(name))}, not {value}: "
                    "restore it where it belongs"
                )
        event, processing = ([deserialize_timer(raw) for raw in found[kind]] for kind in ("event", "processing"))
        for timer in (*event, *processing):
            if key_group_of(timer.key, self._queues.max_parallelism) != key_group:
                raise StateError(f"damaged timer snapshot: {timer} does not belong to key group {key_group}")
        return [(self._event, event), (self._processing, processing)]

    def has_timers(self, key_group: int | None = None) -> bool:
        if key_group is None:
            return not (self._event.is_empty() and self._processing.is_empty())
        return any(queue.subset_for_key_group(key_group) for queue in (self._event, self._processing))

    def _fire(self, queue: PriorityQueueSet[Timer], until: int, callback: Callback, permits: Iterator[bool]) -> bool:
        # One at a time: a callback may register timers that are due, and delete others. Each is taken out before its
        # callback, so that one that raises is not fired again.
        while (first := queue.peek()) is not None and first.timestamp <= until:
            if not next(permits, False):
                return True
            queue.poll()
            self.current_key = first.key
            callback(first)
        return False

    def __repr__(self) -> str:
        return (
            f"<InternalTimerService, {len(self._event)} event-time and {len(self._processing)} processing-time timers, "
            f"key groups {self._queues.key_groups} of {self._queues.max_parallelism}>"
        )


def check_shared(service: object, queues: TimerQueues, key_groups: KeyGroupRange, max_parallelism: int) -> None:
    """Raises ConfigurationError unless the queues have the key groups of the backend of a checkpoint."""
    if (key_groups, max_parallelism) != (queues.key_groups, queues.max_parallelism):
        raise ConfigurationError(
            f"{service!r} and a backend of key groups {key_groups} of {max_parallelism} cannot share a checkpoint: "
            "give both the same key groups and maximum parallelism"
        )


def permits_of(limit: int | None) -> Iterator[bool]:
    """A permit for each timer that a pass may fire, of all services together; None is no limit. ConfigurationError if
    the limit is not an int of at least 1."""
    return repeat(True) if limit is None else repeat(True, positive_int("limit", limit, ", or None for no limit"))


def of_namespace(queue: PriorityQueueSet[Timer], namespace: Key | All | None) -> Iterator[Timer]:
    """The timers in a queue, of all namespaces or of one."""
    if isinstance(namespace, All):
        return iter(queue)
    wanted = serialize_namespace(namespace)
    return (timer for timer in queue if serialize_namespace(timer.namespace) == wanted)


def check_callback(argument: str, callback: Callback | None) -> Callback:
    """The callback, or one that does nothing for None; ConfigurationError if it cannot be called or is async."""
    if callback is None:
        return lambda timer: None
    plain_function(argument, callback, "a function of one Timer, which may start a task, or None", "the timer")
    return callback


def snapshot_body(data: bytes) -> dict[Any, Any]:
    """What a snapshot of a key group holds; empty if the bytes are none."""
    try:
        found = BUILTIN.deserialize(data) if isinstance(data, bytes) else None
    except StateError:
        found = None
    return found if isinstance(found, dict) else {}


def not_of(data: bytes, what: str, key_group: int) -> StateError:
    """The error for bytes that are not a snapshot of a key group."""
    return StateError(
        f"{describe(data)} is not a snapshot of the {what} of key group {key_group}: "
        "restore() takes the bytes that snapshot() returned"
    )


class TimerServiceManager(Timers):
    """Several named timer services over one range of key groups and one kind of queues, as one.

    The law (T8): a watermark reaches every service, one after the other in the order of their names, and a limit counts
    over all of them. A snapshot holds all of them. Timers that are restored under a name that was not asked for yet
    wait, do not fire, and are in the next snapshot; `service` with that name takes them over. Source: Flink's
    ``InternalTimeServiceManagerImpl``.

    Args:
        queues: gives the sets that hold the timers of all services, and the range; None keeps them in memory, for 128
            key groups.

    Raises:
        ConfigurationError: `queues` makes no sets.
    """

    checkpoint_kind = "timer services"

    def __init__(self, queues: TimerQueues | None = None) -> None:
        self.queues = self._queues = HeapQueues() if queues is None else check_queues(queues)
        # All of them, also those that only keep restored timers, and those that were asked for.
        self._all: dict[str, InternalTimerService] = {}
        self._services: dict[str, InternalTimerService] = {}

    @property
    def services(self) -> tuple[InternalTimerService, ...]:
        """The services that were asked for, in the order of their names."""
        return tuple(self._services.values())

    def service(
        self,
        name: str,
        *,
        on_event_time: Callback | None = None,
        on_processing_time: Callback | None = None,
        clock: Clock | None = None,
    ) -> InternalTimerService:
        """The service of that name. It is made when it is asked for first; later the other arguments do not matter.

        A new service has the watermark of the manager, and the timers that were restored for its name: those of event
        time fire at the next watermark.

        Raises:
            ConfigurationError: the name is not text of 1 to 64 bytes, or a callback or the clock is wrong.
        """
        if not _is_name(name):
            raise must_be("name", name, f"a text of 1 to {LONGEST_NAME} bytes in UTF-8")
        found = self._services.get(name)
        if found is not None:
            return found
        made = self._named(name)
        made.heed(on_event_time, on_processing_time, clock)
        made._watermark, made._listener, made._output = self._watermark, self._listener, self._output
        self._services = dict(sorted({**self._services, name: made}.items()))
        self._told()
        return made

    def next_processing_time(self) -> int | None:
        """The time of the earliest processing-time timer of all services, milliseconds; None if there is none."""
        times = (service.next_processing_time() for service in self.services)
        return min((time for time in times if time is not None), default=None)

    def has_timers(self, key_group: int | None = None) -> bool:
        return any(service.has_timers(key_group) for service in self._all.values())

    def snapshot(self, key_group: int) -> bytes:
        check_group(key_group, self.queues.key_groups)
        found = {name: one.snapshot(key_group) for name, one in self._all.items() if one.has_timers(key_group)}
        return BUILTIN.serialize({"format": SERVICES_FORMAT, "services": found})

    def read_group(self, key_group: int, data: bytes) -> list[Restored]:
        check_group(key_group, self.queues.key_groups)
        found = snapshot_body(data)
        services = found.get("services")
        if (
            found.get("format") != SERVICES_FORMAT
            or not isinstance(services, dict)
            or not all(_is_name(name) and isinstance(timers, bytes) for name, timers in services.items())
        ):
            raise not_of(data, "timer services", key_group)
        return [one for name, data in services.items() for one in self._named(name).read_group(key_group, data)]

    def _named(self, name: str) -> InternalTimerService:
        """The service of that name, which keeps its timers until it is asked for."""
        if name not in self._all:
            self._all[name] = InternalTimerService(queues=_NamedQueues(self.queues, name))
        return self._all[name]

    def __repr__(self) -> str:
        names = [*self._services, *(f"{name} (not asked for)" for name in sorted({*self._all} - {*self._services}))]
        groups = f"key groups {self.queues.key_groups} of {self.queues.max_parallelism}"
        return f"<TimerServiceManager of {', '.join(names) or 'no service'}; {groups}>"


class _NamedQueues:
    """The queues of one service, with its name before that of each set."""

    def __init__(self, queues: TimerQueues, name: str) -> None:
        self.key_groups = queues.key_groups
        self.max_parallelism = queues.max_parallelism
        self._queues = queues
        self.backend: StateBackend | None = getattr(queues, "backend", None)
        # As the name of a directory too: a name may hold a slash, or be two dots.
        self._prefix = quote(name, safe="")

    def __call__(self, kind: str) -> PriorityQueueSet[Timer]:
        return self._queues(f"{self._prefix}.{kind}")


def _is_name(name: Any) -> bool:
    try:
        return isinstance(name, str) and 0 < len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False
