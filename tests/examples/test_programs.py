"""Each example as a program of its own: it succeeds, complains of nothing and leaves nothing."""

from __future__ import annotations

import pytest

from tests.examples.programs import run_example

pytestmark = pytest.mark.spark


# The other tests of these examples call them in the Spark of the tests; that of enrich_flights starts programs.
@pytest.mark.faults
@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("async_column", ["--orders", "300"], "The service got "),
        ("enrich_from_http", ["--rows", "3000"], "3,000 rows, "),
        ("model_calls", ["--rows", "600"], "Refused with 429: none."),
        ("orders_as_of", ["--orders", "3000"], "The join found the same tiers."),
        ("partitions", ["--rows", "3000"], "with map_partitions and a cache "),
        ("send_orders", ["--orders", "600"], "The job failed: a worker was killed after "),
        ("sql_lookup", ["--orders", "3000"], "ConfigurationError: how is 'outer'"),
    ],
)
def test_as_a_program_it_leaves_nothing(name: str, arguments: list[str], told: str) -> None:
    assert told in run_example(name, *arguments)
