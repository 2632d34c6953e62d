"""Several named timer services over one range of key groups and one kind of queues, as one.

The law (T8): a watermark reaches every service, one after the other in the order of their names, and a limit counts
over all of them. A snapshot holds all of them. Timers that are restored under a name that was not asked for yet wait,
do not fire, and are in the next snapshot; `service` with that name takes them over.
Source: Flink's ``InternalTimeServiceManagerImpl``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import quote

from asyncio_operator.clock import Clock
from asyncio_operator.elements import MIN_TIMESTAMP, Record
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.key_groups import check_group
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.timers.queues import HeapQueues, Timer, TimerQueues, check_queues
from asyncio_operator.timers.service import (
    Callback,
    GroupedTimers,
    InternalTimerService,
    Output,
    all_of,
    check_listener,
    check_output,
    emit,
)

SNAPSHOT_FORMAT = 1
"""{"format": 1, "services": {name: what the snapshot of that service holds}}"""

LONGEST_NAME = 64
"""Bytes of a name. Each may become three in the name of a directory, which has at most 255 on most systems."""


class TimerServiceManager(GroupedTimers):
    """Timer services by name.

    Args:
        queues: gives the sets that hold the timers of all services, and the range; None keeps them in memory, for 128
            key groups.

    Raises:
        ConfigurationError: `queues` makes no sets.
    """

    checkpoint_kind: ClassVar[str] = "timer services"

    def __init__(self, queues: TimerQueues | None = None) -> None:
        self.queues = self._queues = HeapQueues() if queues is None else check_queues(queues)
        self._sets: dict[str, _Sets] = {}
        self._services: dict[str, InternalTimerService] = {}
        self._waiting: dict[str, InternalTimerService] = {}
        self._watermark = MIN_TIMESTAMP
        self._listener: Callable[[], object] | None = None
        self._output: Output | None = None

    @property
    def services(self) -> tuple[InternalTimerService, ...]:
        """The services that were asked for, in the order of their names."""
        return tuple(self._services.values())

    @property
    def current_watermark(self) -> int:
        """The last watermark, milliseconds; -2**63 before the first."""
        return self._watermark

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
        found = self._services.get(check_name(name))
        if found is not None:
            return found
        made = InternalTimerService(
            on_event_time=on_event_time, on_processing_time=on_processing_time, clock=clock, queues=self._sets_of(name)
        )
        made.fire_event_time(self._watermark, 0)
        made.watch(self._listener)
        made.collect_into(self._output)
        self._waiting.pop(name, None)
        self._services = dict(sorted({**self._services, name: made}.items()))
        if self._listener is not None:
            self._listener()
        return made

    def next_processing_time(self) -> int | None:
        """The time of the earliest processing-time timer of all services, milliseconds; None if there is none."""
        times = (service.next_processing_time() for service in self.services)
        return min((time for time in times if time is not None), default=None)

    def watch(self, listener: Callable[[], object] | None) -> None:
        """Sets the function to call when a service's `next_processing_time` may have become earlier; None for none.

        Raises:
            StateError: another one is set, or a service has a driver of its own.
        """
        check_listener(self, self._listener, listener)
        watched: list[InternalTimerService] = []
        try:
            for service in self.services:
                service.watch(listener)
                watched.append(service)
        except StateError:
            for service in watched:
                service.watch(None)
            raise
        self._listener = listener

    def collect(self, record: Record[Any]) -> None:
        """As `InternalTimerService.collect`, which every service of an operator's manager has too."""
        emit(self, self._output, record)

    def collect_into(self, output: Output | None) -> None:
        """Sets the function that takes what is collected; raises as that of a service does."""
        check_output(self, self._output, output)
        for service in self.services:
            service.collect_into(output)
        self._output = output

    def has_timers(self, key_group: int | None = None) -> bool:
        return any(service.has_timers(key_group) for service in self._all().values())

    def snapshot(self, key_group: int) -> bytes:
        check_group(key_group, self.queues.key_groups)
        found = {name: one.snapshot(key_group) for name, one in self._all().items() if one.has_timers(key_group)}
        return BUILTIN.serialize({"format": SNAPSHOT_FORMAT, "services": found})

    def prepare_group(self, key_group: int, data: bytes) -> Callable[[], None]:
        check_group(key_group, self.queues.key_groups)
        found = _body(key_group, data)
        return all_of([self._named(name).prepare_group(key_group, timers) for name, timers in found.items()])

    def _named(self, name: str) -> InternalTimerService:
        """The service of that name, or one that keeps its timers until it is asked for."""
        if name in self._services:
            return self._services[name]
        if name not in self._waiting:
            self._waiting[name] = InternalTimerService(queues=self._sets_of(name))
        return self._waiting[name]

    def _all(self) -> dict[str, InternalTimerService]:
        return {**self._services, **self._waiting}

    def _sets_of(self, name: str) -> _Sets:
        if name not in self._sets:
            self._sets[name] = _Sets(self.queues, name)
        return self._sets[name]

    def __repr__(self) -> str:
        names = [*self._services] + [f"{name} (not asked for)" for name in sorted(self._waiting)]
        groups = f"key groups {self.queues.key_groups} of {self.queues.max_parallelism}"
        return f"<TimerServiceManager of {', '.join(names) or 'no service'}; {groups}>"


class _Sets:
    """The queues of one service: each set is made once, and passed on when the service is asked for."""

    def __init__(self, queues: TimerQueues, name: str) -> None:
        self.key_groups = queues.key_groups
        self.max_parallelism = queues.max_parallelism
        self._queues = queues
        self.backend: StateBackend | None = getattr(queues, "backend", None)
        # As the name of a directory too: a name may hold a slash, or be two dots.
        self._prefix = quote(name, safe="")
        self._made: dict[str, PriorityQueueSet[Timer]] = {}

    def __call__(self, kind: str) -> PriorityQueueSet[Timer]:
        if kind not in self._made:
            self._made[kind] = self._queues(f"{self._prefix}.{kind}")
        return self._made[kind]


def check_name(name: str) -> str:
    """The name of a service; ConfigurationError unless it is a text of 1 to 64 bytes in UTF-8."""
    if _is_name(name):
        return name
    raise ConfigurationError(f"name={describe(name)}: a text of 1 to {LONGEST_NAME} bytes in UTF-8 is needed")


def _is_name(name: Any) -> bool:
    try:
        return isinstance(name, str) and 0 < len(name.encode()) <= LONGEST_NAME
    except UnicodeEncodeError:
        return False


def _body(key_group: int, data: bytes) -> dict[str, bytes]:
    try:
        found = BUILTIN.deserialize(data) if isinstance(data, bytes) else None
    except StateError:
        found = None
    services: Any = found.get("services") if isinstance(found, dict) and found.get("format") == SNAPSHOT_FORMAT else 0
    if not isinstance(services, dict) or not all(
        _is_name(name) and isinstance(timers, bytes) for name, timers in services.items()
    ):
        raise StateError(
            f"{describe(data)} is not a snapshot of the timer services of key group {key_group}: "
            "restore() takes the bytes that snapshot() of a manager returned"
        )
    return services
