"""For tests of code built on this package: clocks, loops, fakes and checks of contracts. It needs no pytest.

`FakeService` is an HTTP server on aiohttp. `Simulation` and `check_history` are in a distribution of their own,
`asyncio-operator-proof`. Names are loaded on first use, so the others work without these two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.testing.enricher_contract.check_enricher import check_enricher as check_enricher
    from asyncio_operator.testing.fake_enricher import FakeCall as FakeCall
    from asyncio_operator.testing.fake_enricher import FakeEnricher as FakeEnricher
    from asyncio_operator.testing.fake_service.server import ExceededWindow as ExceededWindow
    from asyncio_operator.testing.fake_service.server import FakeAnswer as FakeAnswer
    from asyncio_operator.testing.fake_service.server import FakeRequest as FakeRequest
    from asyncio_operator.testing.fake_service.server import FakeService as FakeService
    from asyncio_operator.testing.queue_contract import check_element_queue as check_element_queue
    from asyncio_operator.testing.state_contract import check_state_backend as check_state_backend
    from asyncio_operator.testing.time import ManualClock as ManualClock
    from asyncio_operator.testing.time import VirtualTimeLoop as VirtualTimeLoop
    from asyncio_operator_proof.history.checker import check_history as check_history
    from asyncio_operator_proof.history.checker import history_laws as history_laws
    from asyncio_operator_proof.history.event_format import History as History
    from asyncio_operator_proof.simulation.simulation import Simulation as Simulation
    from asyncio_operator_proof.simulation.simulation import SimulationFailed as SimulationFailed
    from asyncio_operator_proof.trace_history import history_of_trace as history_of_trace

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.testing.enricher_contract.check_enricher": "check_enricher",
            "asyncio_operator.testing.fake_enricher": "FakeCall FakeEnricher",
            "asyncio_operator.testing.fake_service.server": "ExceededWindow FakeAnswer FakeRequest FakeService",
            "asyncio_operator.testing.queue_contract": "check_element_queue",
            "asyncio_operator.testing.state_contract": "check_state_backend",
            "asyncio_operator.testing.time": "ManualClock VirtualTimeLoop",
            "asyncio_operator_proof.history.checker": "check_history history_laws",
            "asyncio_operator_proof.history.event_format": "History",
            "asyncio_operator_proof.simulation.simulation": "Simulation SimulationFailed",
            "asyncio_operator_proof.trace_history": "history_of_trace",
        },
        needs={
            "asyncio_operator.testing.fake_service.server": ("aiohttp", "http"),
            "asyncio_operator_proof.history.checker": ("asyncio_operator_proof", "proof"),
            "asyncio_operator_proof.history.event_format": ("asyncio_operator_proof", "proof"),
            "asyncio_operator_proof.simulation.simulation": ("asyncio_operator_proof", "proof"),
            "asyncio_operator_proof.trace_history": ("asyncio_operator_proof", "proof"),
        },
    )
