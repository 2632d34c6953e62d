"""What the tests of faults run against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.outsides import Outside, over_http, over_postgres
from tests.servers import PostgresServer


@pytest.fixture(params=["http", "postgres"])
def outside(request: pytest.FixtureRequest) -> Iterator[Outside]:
    if request.param == "http":
        with over_http() as made:
            yield made
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        with over_postgres(server) as made:
            yield made
