from __future__ import annotations

from typing import Any

import pytest

from tests.operator.attempts import MODES
from tests.operator.meter import METERS


@pytest.fixture(autouse=True)
def _meters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio_operator.quota.share.shares", METERS)


@pytest.fixture(params=["ordered", "unordered"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=list(MODES))
def any_mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of every mode."""
    return MODES[request.param]
