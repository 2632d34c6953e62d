"""The shares of this process: which `Share` a run gets, and which coordinator that one asks.

Runs on one loop whose budgets are equal have one share. A budget without a coordinator of its own is kept in this
process, unless the driver of a Spark application has it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from asyncio_operator.budget.spec import Budget, definition, warn_unweighed
from asyncio_operator.budget.usage import Weigh
from asyncio_operator.clock import monotonic
from asyncio_operator.coordinators.addresses import answer, coordinator_of, elsewhere, unused
from asyncio_operator.coordinators.contract import Coordinator, LocalCoordinator, States
from asyncio_operator.engine.share import Reservation, Share
from asyncio_operator.engine.timing import clock_of
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.loop.forks import forget_in_child


class Shares:
    """The shares of this process, by loop and budget. Equal budgets of one loop have one share.

    Args:
        new_id: returns the name of a worker, which no other worker has.
    """

    def __init__(self, new_id: Callable[[], str] = lambda: os.urandom(16).hex()) -> None:
        self._new_id = new_id
        self._shares: dict[tuple[asyncio.AbstractEventLoop, str], Share] = {}
        self._states_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, States] = WeakKeyDictionary()

    def allowance(self, budget: Budget, idle: float = 0.0) -> Reservation:
        """What one run on the running loop may take of a budget.

        Args:
            idle: seconds without runs after which the connections to the coordinator are closed.
        """
        beside = None if budget.beside is None else self.allowance(budget.beside, idle)
        return Reservation(partial(self._share, budget, idle), beside)

    def _share(self, budget: Budget, idle: float) -> Share:
        loop = asyncio.get_running_loop()
        where = budget.coordinator or repr(budget.reach)
        key = loop, fingerprint((budget.name, definition(budget), budget.patience, where))
        share = self._shares.get(key)
        if share is None or share.over:
            self._shares = {place: one for place, one in self._shares.items() if not (one.over or place[0].is_closed())}
            share = self._shares[key] = Share(budget, self._coordinator(budget, loop), idle, self._new_id())
        return share

    def __len__(self) -> int:
        return sum(not share.over for share in self._shares.values())

    def _coordinator(self, budget: Budget, loop: asyncio.AbstractEventLoop) -> Coordinator:
        if budget.coordinator is not None or budget.reach is not None or clock_of(loop) is monotonic:
            return coordinator_of(budget)
        # A loop with a time of its own, as in tests.
        kept = self._states_of_loops.setdefault(loop, States(answer, loop.time, unused))
        elsewhere[budget.name] = kept
        return LocalCoordinator(kept, budget.name)

    def forget_all(self) -> None:
        """In a forked child, where no loop of the parent runs."""
        self._shares.clear()


shares = Shares()

forget_in_child(shares.forget_all)


def own_allowance(budget: Budget | None, called: str, weigh: Weigh | None) -> Reservation | None:
    """What a run outside of Spark may take of its budget, if it has one. It logs once that calls weigh in no unit that
    the budget limits; in Spark the driver logs that.

    Args:
        called, weigh: see `warn_unweighed`.
    """
    if budget is None:
        return None
    warn_unweighed(budget, called, weigh)
    return shares.allowance(budget)
