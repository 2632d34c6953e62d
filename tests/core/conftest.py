from __future__ import annotations

import pytest


@pytest.fixture(params=["ordered", "unordered"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
