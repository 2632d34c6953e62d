"""Which coordinator a budget has: this process, or a server whose address it names.

The states of budgets without an address are kept in the memory of the process. On the driver of a Spark application,
the workers reach the same states over its service.

A coordinator stores a state and puts messages in order. It decides nothing: one pure function, `Answer`, makes the new
state and the reply, with the coordinator's own time. A message is applied at most once. If its reply is lost, nothing
says whether it was applied, and it must not be sent again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from asyncio_operator.clock import Clock, monotonic
from asyncio_operator.errors import ConfigurationError, CoordinatorError, StateError, shown_address
from asyncio_operator.lazy import member
from asyncio_operator.quota.spec import SCHEMES, Budget, definition
from asyncio_operator.quota.terms import ASK_TIMEOUT, Answer, Json, Terms
from asyncio_operator.services.secret_source import SecretSource, checked_text

if TYPE_CHECKING:
    from asyncio_operator.quota.state import State

# Loaded with the first message: most processes need few of them, and the last two need libraries.
ACCOUNT = "asyncio_operator.quota.account"
REDIS = "asyncio_operator.quota.coordinators.redis"
POSTGRES = "asyncio_operator.quota.coordinators.postgres"

Address = str | Callable[[], str]  # Of a server, or a function that returns it.
MANY_STATES = 256  # States that a process keeps without a look at which of them are still used.
KEPT = 60.0  # Seconds for which the state of a budget is kept that is no longer used, beside its longest window.


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


@dataclass(slots=True)
class LocalCoordinator:
    """A budget of this process only."""

    states: States
    name: str
    shown: str = "this process"

    async def ask(self, message: Json) -> Json:
        return self.states.ask(self.name, message)

    async def close(self) -> None:
        """Nothing is open."""


def answer(state: Any, message: Json, now: float, new_server: bool) -> tuple[Any, Json]:
    """See `account.answer`."""
    decided: tuple[Any, Json] = member(ACCOUNT, "answer")(state, message, now, new_server)
    return decided


def unused(state: State, now: float) -> bool:
    """Whether a budget has no spend limit, and was not used for so long that its windows are empty."""
    return not state.terms.spend and now > state.time + _kept(state.terms)


def _kept(terms: Terms) -> float:
    return KEPT + max((limit.per for limit in terms.limits), default=0.0)


states = States(answer, unused=unused)
"""The states of the budgets that this process coordinates."""

elsewhere: WeakValueDictionary[str, States] = WeakValueDictionary()
"""Those of budgets on loops with a time of their own, by the name of the budget."""


def coordinator_of(budget: Budget) -> Coordinator:
    """The coordinator of a budget: the server that it names, the driver of the application, or else this process.

    Nothing is opened yet.
    """
    if budget.coordinator is None:
        if budget.reach is not None:
            reached: Coordinator = budget.reach(budget.name)
            return reached
        return LocalCoordinator(states, budget.name)
    check_address(budget)
    source = budget.coordinator
    return _served(budget, source, source) if isinstance(source, str) else FunctionCoordinator(budget, source)


class FunctionCoordinator:
    """A coordinator whose address a function returns. It is called in this process, when the first message is sent."""

    def __init__(self, budget: Budget, source: Callable[[], str]) -> None:
        self.shown = shown_address(source)
        self._budget = budget
        self._source = source
        self._found: Coordinator | None = None

    async def ask(self, message: Json) -> Json:
        if self._found is None:
            try:
                address = await ADDRESS.get(self._source, ASK_TIMEOUT)
            except ConfigurationError as error:
                # It will say the same again, until a person changes something.
                problem = CoordinatorError(f"the coordinator {self.shown}: {error}", lasting=True)
            else:
                self._found = _served(self._budget, address, self._source)
                return await self._found.ask(message)
            raise problem
        return await self._found.ask(message)

    async def close(self) -> None:
        if self._found is not None:
            await self._found.close()


def _served(budget: Budget, address: str, source: Address) -> Coordinator:
    """The coordinator at a server. `source` is the address, or the function that returns it for each connection."""
    served: Coordinator
    if address.startswith("redis"):
        expire_after = None if budget.spend else _kept(Terms(definition(budget)))
        served = member(REDIS, "RedisCoordinator")(source, budget.name, answer, expire_after=expire_after)
    else:
        served = member(POSTGRES, "PostgresCoordinator")(source, budget.name, answer)
    return served


def _problem(address: str) -> str | None:
    if not address.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        return "it begins with neither redis://, rediss:// nor postgresql://"
    return None


ADDRESS = SecretSource("coordinator", "address", partial(checked_text, "coordinator", problem=_problem))


def check_address(budget: Budget) -> None:
    """Check the address of a budget as far as that is possible without a connection. ConfigurationError, which does not
    show it, if it cannot be read, or the library for it is not installed."""
    if isinstance(address := budget.coordinator, str):
        place, check = (REDIS, "check_url") if address.startswith("redis") else (POSTGRES, "check_dsn")
        member(place, check)(address, "coordinator")


def ask_once(budget: Budget, message: Json) -> Json:
    """The reply of the coordinator of a budget: at its address, where this disconnects again, or in this process. For
    any thread, also one whose loop runs. StateError if the budget has no address, and no coordinator of this process
    has it; CoordinatorError if the coordinator gave no answer."""
    if budget.coordinator is None:
        kept = elsewhere.get(budget.name, states)
        if budget.name in kept:
            return kept.ask(budget.name, message)
        raise StateError(
            f"no coordinator of this process has the budget {budget.name!r}; ask for its statistics on the driver, "
            "after a lookup with this budget was made; on Spark Connect, name a coordinator in the Budget"
        )
    from concurrent.futures import ThreadPoolExecutor

    async def ask() -> Json:
        coordinator = coordinator_of(budget)
        try:
            return await coordinator.ask(message)
        finally:
            await coordinator.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, ask()).result()
