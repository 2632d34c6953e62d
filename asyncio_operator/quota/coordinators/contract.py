"""Where the state of a budget is kept: the contract of all coordinators, and the one in the memory of a process.

A coordinator stores a state and puts messages in order. It decides nothing: one pure function, `Answer`, makes the new
state and the reply, with the coordinator's own time. A message is applied at most once. If its reply is lost, nothing
says whether it was applied, and it must not be sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.quota.terms import Json

Answer = Callable[[Any, Json, float, bool], tuple[Any, Json]]
"""State, message, the coordinator's seconds, and whether its server has written no earlier state; the new state and the
reply. The state is None if it may have been lost, empty if there was never one, and else what was returned as the last
one, or its JSON."""

ASK_TIMEOUT = 2.0
"""Seconds in which a coordinator must answer. Leases end after one second, so a later answer is worth nothing."""


MANY_STATES = 256  # States that a process keeps without a look at which of them are still used.


class Coordinator(Protocol):
    """One budget at one coordinator, used by one process. Nothing is opened before the first `ask`. `shown` names the
    coordinator in messages, without secrets."""

    shown: str

    async def ask(self, message: Json) -> Json:
        """The reply to a message. It takes at most a few times `ASK_TIMEOUT`, and one `ask` runs at a time.
        CoordinatorError if there is no reply: the message may have been applied or not."""
        ...

    async def close(self) -> None:
        """Close its connections. Another `ask` opens new ones."""
        ...


class States:
    """The states of budgets in the memory of a process, by name. Any thread may use it. States of which `unused` says
    that they say no more than none would go when there are many: a `rate_limit` makes one for each DataFrame."""

    def __init__(
        self, answer: Answer, clock: Clock = monotonic, unused: Callable[[Any, float], bool] = lambda *_: False
    ) -> None:
        self._answer = answer
        self._clock = clock
        self._unused = unused
        self._states: dict[str, Any] = {}
        self._room = MANY_STATES
        self._lock = threading.Lock()

    def ask(self, name: str, message: Json) -> Json:
        """The reply to a message for the budget with that name."""
        with self._lock:
            now = self._clock()
            if name not in self._states and len(self._states) >= self._room:
                self._states = {
                    name: state for name, state in self._states.items() if not (state and self._unused(state, now))
                }
                self._room = max(MANY_STATES, 2 * len(self._states))
            self._states[name], reply = self._answer(self._states.get(name, {}), message, now, False)
            return reply

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: str) -> bool:
        return name in self._states

    def forget_all(self) -> None:
        """Drop all states, as when a new application begins while leases of the last one may still hold."""
        with self._lock:
            self._states = dict.fromkeys(self._states)


class LocalCoordinator:
    """A budget of this process only."""

    shown = "this process"

    def __init__(self, states: States, name: str) -> None:
        self._states = states
        self._name = name

    async def ask(self, message: Json) -> Json:
        return self._states.ask(self._name, message)

    async def close(self) -> None:
        """Nothing is open."""
