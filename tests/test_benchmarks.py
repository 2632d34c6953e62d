"""The benchmarks are found by their names; no test checks their speeds."""

from __future__ import annotations

import inspect

from benchmarks.__main__ import known


def test_every_public_function_of_a_benchmark_module_is_a_benchmark() -> None:
    found = known()
    assert {"s1", "s5", "s12", "s18", "adaptive", "buffers", "retries"} <= {*found}
    for name, benchmark in found.items():
        assert not inspect.signature(benchmark).parameters, name
        assert inspect.signature(benchmark).return_annotation == "Rows", name
