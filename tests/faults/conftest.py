"""Which of the tests of faults run: those that take long carry the mark ``faults``, and run when `-m` asks for them.

``make faults`` runs all of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.outsides import Outside, over_http, over_postgres
from tests.services import PostgresServer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults: takes long; runs where -m asks for it, as `make faults` does")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "faults" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("faults")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(params=["http", "postgres"])
def outside(request: pytest.FixtureRequest) -> Iterator[Outside]:
    if request.param == "http":
        with over_http() as made:
            yield made
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with over_postgres(server) as made:
            yield made
