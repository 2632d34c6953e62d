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
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.state.key_groups import check_group
from asyncio_operator.state.priority_queue import PriorityQueueSet
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.timers.queues import HeapQueues, Timer, TimerQueues, check_queues
from asyncio_operator.timers.service import Callback, GroupedTimers, InternalTimerService, all_of, snapshot_body

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
            raise ConfigurationError(f"name={describe(name)}: a text of 1 to {LONGEST_NAME} bytes in UTF-8 is needed")
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
        return BUILTIN.serialize({"format": SNAPSHOT_FORMAT, "services": found})

    def prepare_group(self, key_group: int, data: bytes) -> Callable[[], None]:
        check_group(key_group, self.queues.key_groups)
        found = snapshot_body(data, "timer services", key_group, _is_body)["services"]
        return all_of([self._named(name).prepare_group(key_group, timers) for name, timers in found.items()])

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


def _is_body(found: dict[Any, Any]) -> bool:
    services = found.get("services")
    return (
        found.get("format") == SNAPSHOT_FORMAT
        and isinstance(services, dict)
        and all(_is_name(name) and isinstance(timers, bytes) for name, timers in services.items())
    )
