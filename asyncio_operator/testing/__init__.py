"""For tests of code built on this package: clocks, loops, fakes and checks of contracts. It needs no pytest.

`FakeService` is an HTTP server on aiohttp. It is loaded on first use, so the other names work without aiohttp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncio_operator.hints import not_installed
from asyncio_operator.testing.fake_enricher import FakeCall, FakeEnricher, check_enricher
from asyncio_operator.testing.queue_contract import check_element_queue
from asyncio_operator.testing.state_contract.check import check_state_backend
from asyncio_operator.testing.time import ManualClock, VirtualTimeLoop

if TYPE_CHECKING:
    from asyncio_operator.testing.service import FakeAnswer, FakeRequest, FakeService

__all__ = [
    "FakeAnswer",
    "FakeCall",
    "FakeEnricher",
    "FakeRequest",
    "FakeService",
    "ManualClock",
    "VirtualTimeLoop",
    "check_element_queue",
    "check_enricher",
    "check_state_backend",
]


def __getattr__(name: str) -> Any:
    if name in ("FakeAnswer", "FakeRequest", "FakeService"):
        try:
            from asyncio_operator.testing import service
        except ModuleNotFoundError as error:
            if error.name != "aiohttp":
                raise
            raise not_installed(name, "aiohttp", "http") from error
        return getattr(service, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
