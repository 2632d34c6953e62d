"""For tests of code built on this package: clocks, loops, fakes and checks of contracts. It needs no pytest.

`FakeService` is an HTTP server on aiohttp. `Simulation` and `check_history` are in a distribution of their own,
`asyncio-operator-proof`. Names are loaded on first use, so the others work without these two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.testing.enricher_contract.check_enricher import check_enricher
    from asyncio_operator.testing.fake_enricher import FakeCall, FakeEnricher
    from asyncio_operator.testing.fake_service.server import ExceededWindow, FakeAnswer, FakeRequest, FakeService
    from asyncio_operator.testing.queue_contract import check_element_queue
    from asyncio_operator.testing.state_contract import check_state_backend
    from asyncio_operator.testing.time import ManualClock, VirtualTimeLoop
    from asyncio_operator_proof.history.checker import check_history, history_laws
    from asyncio_operator_proof.history.event_format import History
    from asyncio_operator_proof.simulation.simulation import Simulation, SimulationFailed
    from asyncio_operator_proof.trace_history import history_of_trace

__all__ = [
    "ExceededWindow",
    "FakeAnswer",
    "FakeCall",
    "FakeEnricher",
    "FakeRequest",
    "FakeService",
    "History",
    "ManualClock",
    "Simulation",
    "SimulationFailed",
    "VirtualTimeLoop",
    "check_element_queue",
    "check_enricher",
    "check_history",
    "check_state_backend",
    "history_laws",
    "history_of_trace",
]

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
