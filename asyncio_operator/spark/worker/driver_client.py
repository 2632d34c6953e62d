"""A worker's connection to the driver's service, and the coordinator of a budget that uses it."""

from __future__ import annotations

import asyncio
from typing import Any

from asyncio_operator.budget.terms import Json
from asyncio_operator.clock import monotonic
from asyncio_operator.coordinators.contract import ASK_TIMEOUT
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.spark.worker.driver_wire import DriverAddress, Wire, WireError, connect_to_driver

BUDGETS = "budgets"
"""The topic of budgets."""


class DriverClient:
    """Asks the driver, one question after the other. It connects when it is asked first, and again after an error."""

    def __init__(self, address: DriverAddress) -> None:
        self._address = address
        self._wire: Wire | None = None

    async def ask(self, topic: str, question: Any) -> tuple[Any, float]:
        """The driver's answer, and the monotonic time at which the question was sent.

        Raises:
            CoordinatorError: there is none.
        """
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                return await self._ask(topic, question)
        except (OSError, EOFError, WireError, ValueError) as error:
            problem = CoordinatorError(f"the driver at {self._address}: {_words(error)}")
            await self.close()
        except BaseException:
            # Its answer must not be taken for that of the next question.
            await self.close()
            raise
        raise problem

    async def _ask(self, topic: str, question: Any) -> tuple[Any, float]:
        if self._wire is None:
            self._wire = await connect_to_driver(self._address)
        sent = monotonic()
        await self._wire.send({"topic": topic, "question": question})
        return (await self._wire.receive())["answer"], sent

    async def close(self) -> None:
        """Close the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()


class DriverCoordinator:
    """One budget that the driver of this application coordinates."""

    def __init__(self, address: DriverAddress, name: str) -> None:
        self.shown = f"the driver at {address}"
        self._client = DriverClient(address)
        self._name = name

    async def ask(self, message: Json) -> Json:
        answer, sent = await self._client.ask(BUDGETS, {"name": self._name, "message": message})
        return {**answer, "sent": sent}

    async def close(self) -> None:
        await self._client.close()


def _words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "it did not answer in time"
        case EOFError():
            return "the connection has ended"
        case OSError():
            return (
                f"it is not reachable ({error}); if a firewall lies between it and the executors, open a port and set "
                "spark.asyncio_operator.driver.port to it, or name a coordinator in the Budget"
            )
    return str(error)
