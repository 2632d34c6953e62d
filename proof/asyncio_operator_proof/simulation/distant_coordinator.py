"""A coordinator of budgets that is elsewhere: messages take time, may be lost, and at times nothing answers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from asyncio_operator.errors import CoordinatorError
from asyncio_operator.quota.coordinators.addresses import States, answer
from asyncio_operator.quota.terms import ASK_TIMEOUT
from asyncio_operator_proof.simulation.scenario import Coordinator as Behaviour
from asyncio_operator_proof.simulation.world import World
from asyncio_operator_proof.simulation.writing import Notes


class SimulatedCoordinator:
    """Where the budget's state is. Called with a budget's name, it returns what a worker asks (`Budget.reach`)."""

    def __init__(self, behaviour: Behaviour, seed: int, world: World, notes: Notes) -> None:
        self.behaviour = behaviour
        self.world = world
        self.notes = notes
        self.random = random.Random(f"coordinator {seed}")
        self.states = States(answer, lambda: world.now + behaviour.ahead)

    def __call__(self, name: str) -> Client:
        return Client(self, name)

    def __repr__(self) -> str:
        return "SimulatedCoordinator()"

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("a simulated coordinator",)


class Client:
    """See `Coordinator` in `coordinators.addresses`."""

    shown = "the simulated coordinator"

    def __init__(self, coordinator: SimulatedCoordinator, name: str) -> None:
        self._coordinator = coordinator
        self._name = name

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reply to a message."""
        await self._travel()
        reply = self._coordinator.states.ask(self._name, message)
        await self._travel()
        return reply

    async def _travel(self) -> None:
        """A message travels.

        Raises:
            CoordinatorError: it does not arrive.
        """
        there, behaviour = self._coordinator, self._coordinator.behaviour
        await asyncio.sleep(there.random.expovariate(1 / behaviour.delay))
        now = there.world.now
        lost, down = there.random.random() < behaviour.lost, any(begin <= now < end for begin, end in behaviour.down)
        if lost and not down:
            there.notes.add("fault", what="message_lost", budget=self._name)
        if lost or down:
            await asyncio.sleep(ASK_TIMEOUT)
            raise CoordinatorError(f"{self.shown} does not answer")

    async def close(self) -> None:
        """Nothing is open."""
