"""Law Y1: a simulation sees an enricher that fails by its own fault, and accuses no other."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from asyncio_operator import Enricher, Hedge
from asyncio_operator.enricher import as_schema
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.scenario import Lookup, Scenario, Service, Task
from tests.proof.simulation import names

ROWS = {1: {"name": "Ada"}, 2: {"name": "Grace"}, 3: {"name": "Edsger"}}


class Names(names.Names):
    """Asks for at most 50 keys at once."""

    max_batch = 50


class Raises(Names):
    """Has never worked."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        raise ValueError("planted")


class ReadsMisses(Names):
    """Expects a row for every key."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        return [{"name": row["name"]} for row in await super().lookup_many(keys)]


class RaisesForBatches(Names):
    """Cannot take several keys. `enrich` asks for each of them again."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        if len(keys) > 1:
            raise ValueError("planted")
        return await super().lookup_many(keys)


class Hangs(Names):
    """An error makes it wait for ever."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            return await super().lookup_many(keys)
        except Exception:
            await asyncio.sleep(1e6)
            raise


@pytest.mark.parametrize(("enricher", "least"), [(Raises, 18), (ReadsMisses, 8)])
def test_Y1_an_enricher_that_fails_by_its_own_fault_is_seen(enricher: type[Names], least: int) -> None:
    wrong = [found for seed in range(20) if (found := Simulation(seed, enricher, rows=ROWS).violations())]
    assert len(wrong) >= least
    assert any("ValueError: planted" in one[0] or "TypeError: 'NoneType'" in one[0] for one in wrong)


def test_Y1_an_error_of_batches_alone_is_seen_where_rows_are_lost_by_it() -> None:
    options = {"on_error": "drop", "batching": 10, "timeout": 0.05, "tasks": 3, "rows": ROWS}
    wrong = [found for seed in range(20) if (found := Simulation(seed, RaisesForBatches, **options).violations())]
    assert any("was lost: calls failed with ValueError: planted" in one for found in wrong for one in found)


def test_Y1_an_error_that_becomes_a_hang_is_seen_without_a_timeout() -> None:
    options: dict[str, Any] = {"timeout": None, "attempt_timeout": None, "rows": ROWS}
    found = (one for seed in range(20) for one in Simulation(seed, Hangs, **options).violations())
    assert any("tasks have not ended" in one for one in found)


class Unreachable(Exception):  # noqa: N818
    """An error of the user."""


class Maps(Names):
    """Raises errors of its own for those of the service, and reads what it gets."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            found = await super().lookup_many(keys)
        except Exception as error:
            raise Unreachable from error
        return [row and {"name": row["name"]} for row in found]


class Hasty(Names):
    """Asks for each key, and waits no longer than its own limit."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        async with asyncio.timeout(0.05):
            found = await asyncio.gather(*(self._client.ask([key]) for key in keys))
        return [row for [row] in found]


class InBackground(Names):
    """Asks in a task that belongs to no call."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._asked: asyncio.Queue[tuple[Sequence[Any], asyncio.Future[Any]]] = asyncio.Queue()

    async def open(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._running.cancel()

    async def _run(self) -> None:
        while True:
            keys, answer = await self._asked.get()
            found: Any
            try:
                found = [row and {"name": row["name"]} for row in await self._client.ask(keys)]
            except Exception as error:
                found = Unreachable(str(error))
            if not answer.done():
                answer.set_exception(found) if isinstance(found, Exception) else answer.set_result(found)

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait((keys, answer))
        found: list[Any] = await answer
        return found


SHORT: dict[str, Any] = {"timeout": 0.05, "on_error": "null"}

OPTIONS: list[dict[str, Any]] = [{}, SHORT, {**SHORT, "attempt_timeout": 0.02}]

WITHOUT_STATUS = [{"on_error": one, "status_column": None} for one in ("null", "drop", "fail")]


@pytest.mark.parametrize("options", [*OPTIONS, *WITHOUT_STATUS], ids=str)
@pytest.mark.parametrize("enricher", [Names, Maps, Hasty, InBackground])
def test_Y1_an_enricher_with_errors_and_limits_of_its_own_is_not_accused(
    enricher: type[Names], options: dict[str, Any]
) -> None:
    given = options | {"rows": ROWS}
    assert {seed: found for seed in range(8) if (found := Simulation(seed, enricher, **given).violations())} == {}


def test_Y1_a_row_without_its_values_for_no_reason_is_seen_without_a_status_column() -> None:
    class Loses(Names):
        async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
            return [None for _ in await super().lookup_many(keys)]

    options = {"on_error": "null", "status_column": None, "timeout": None, "attempt_timeout": None, "rows": ROWS}
    wrong = [seed for seed in range(20) if Simulation(seed, Loses, **options).violations()]
    assert len(wrong) >= 10


def test_Y1_L2_a_copy_of_a_call_with_a_time_limit_of_its_own_is_a_copy() -> None:
    """The enricher cancels its call, which runs on for a while, and gets a copy meanwhile."""
    lookup = Lookup(
        {"capacity": 2, "retry": 3, "batching": 3, "hedge": Hedge(after=0.02, extra=0.5)},
        Service(mean=0.05, ignores=0.02),
        batches=20,
    )
    for seed in range(15):
        scenario = Scenario(seed, (lookup,), (Task(keys=(3, 1, 2, 0)),), rows=ROWS)
        assert Simulation.from_scenario(scenario, Hasty).violations() == []


class OneByOne(Enricher):
    """Has `lookup` alone, whose calls must not be made twice."""

    idempotent = False

    def __init__(self, client: Any) -> None:
        self._client = client

    def schema(self) -> Any:
        return as_schema("name string")

    async def lookup(self, key: Any) -> Any:
        [row] = await self._client.ask([key])
        return row


def test_Y1_an_enricher_gets_no_drawn_option_that_it_cannot_have() -> None:
    wrong = {seed: found for seed in range(20) if (found := Simulation(seed, OneByOne, rows=ROWS).violations())}
    assert wrong == {}


@pytest.mark.parametrize("option", [{"hedge": Hedge()}, {"batching": 3}])
def test_Y1_an_option_that_an_enricher_cannot_have_is_refused_if_it_is_given(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Simulation(1, OneByOne, rows=ROWS, **option).run()
    # What was open has been closed: otherwise its sockets are reported here.
    gc.collect()


class Swallows(Names):
    """Takes its cancellation for a failure of the service, and asks again."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        for _ in range(3):
            try:
                return await super().lookup_many(keys)
            except BaseException:
                await asyncio.sleep(0.01)
        return [None for _ in keys]


class WaitsFor(Names):
    """Asks twice, with limits of its own, and gives what it has."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            found = await asyncio.wait_for(super().lookup_many(keys), 0.02)
        except TimeoutError:
            async with asyncio.timeout(0.3):
                found = await asyncio.wait_for(super().lookup_many(keys), 0.1)
        async with asyncio.timeout(0.05):
            await self._client.ask(keys)
        return found


class Falls(Names):
    """Has an answer if the service is late, for which it waits by limits of its own."""

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        try:
            async with asyncio.timeout(0.03):
                return await super().lookup_many(keys)
        except TimeoutError:
            done, _ = await asyncio.wait([asyncio.create_task(super().lookup_many(keys))], timeout=0.05)
            return done.pop().result() if done else [None for _ in keys]


NOT_OBEYED = "Y1: a call of the enricher did not obey its cancellation"


def test_Y1_an_enricher_that_swallows_its_cancellation_is_named() -> None:
    simulations = [Simulation(seed, Swallows, rows=ROWS, timeout=0.05) for seed in range(30)]
    wrong = [found for one in simulations if (found := one.violations())]
    assert sum(found[0].startswith(NOT_OBEYED) for found in wrong) >= 5


@pytest.mark.parametrize("enricher", [WaitsFor, Falls, Hangs])
def test_Y1_an_enricher_that_is_cancelled_by_limits_of_its_own_obeys(enricher: type[Names]) -> None:
    for options in OPTIONS:
        for seed in range(6):
            found = Simulation(seed, enricher, rows=ROWS, **options).violations()
            assert [one for one in found if one.startswith(NOT_OBEYED)] == []
