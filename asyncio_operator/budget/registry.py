"""The coordinators that run in this process, by the name of their budget: `Budget.statistics` and pickling ask here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncio_operator.errors import StateError

Ask = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Running:
    """A coordinator in this process.

    Attributes:
        ask: the reply to a message. It may block, and any thread may call it.
        reach: what a worker needs to reach the coordinator; it travels with the budget. None: only this process may.
    """

    ask: Ask
    reach: Any = None


class Coordinators:
    """Register one with ``coordinators.register(name, Running(...))`` before a budget is pickled for its workers."""

    def __init__(self) -> None:
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    def register(self, name: str, running: Running) -> None:
        """The coordinator of the budget with this name, instead of an earlier one."""
        with self._lock:
            self._running[name] = running

    def forget(self, name: str) -> None:
        """The coordinator has ended."""
        with self._lock:
            self._running.pop(name, None)

    def reach(self, name: str) -> Any:
        """What a worker needs to reach the coordinator of this name, or None."""
        running = self._running.get(name)
        return None if running is None else running.reach

    def ask(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """The reply of the coordinator that has the budget in this process.

        Raises:
            StateError: no coordinator of this process has the budget.
        """
        running = self._running.get(name)
        if running is not None:
            return running.ask(message)
        raise StateError(
            f"no coordinator of this process has the budget {name!r}; ask for its statistics on the driver, "
            "after a lookup with this budget was made; on Spark Connect, name a coordinator in the Budget"
        )


coordinators = Coordinators()
