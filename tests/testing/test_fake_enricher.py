"""`FakeEnricher`: what its arguments say, the same in every run, in no time on a virtual clock."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.testing import FakeEnricher, VirtualTimeLoop

ROWS: Any = {"a": {"n": 1}, "b": [{"n": 2}, {"n": 3, "t": "x"}], "c": None, ("a", 1): {"t": "y"}}


def run(fake: FakeEnricher, main: Callable[[], Awaitable[Any]]) -> Any:
    async def opened() -> Any:
        await fake.open()
        try:
            return await main()
        finally:
            await fake.close()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(opened())


async def outcomes(fake: FakeEnricher, *keys: Any) -> list[str]:
    """What becomes of lookups, one after the other."""
    for key in keys:
        try:
            await fake.lookup(key)
        except Exception:
            continue
    return [call.outcome for call in fake.calls]


def test_it_gives_its_rows() -> None:
    fake = FakeEnricher(ROWS, max_batch=10)
    keys = ["b", ("a", 1), "x", "a", "c", "a"]
    expected = [[{"n": 2}, {"n": 3, "t": "x"}], {"t": "y"}, None, {"n": 1}, None, {"n": 1}]
    assert run(fake, lambda: fake.lookup_many(keys)) == expected
    assert [call.keys for call in fake.calls] == [tuple(keys)]


def test_the_schema_is_that_of_all_rows_or_as_given() -> None:
    assert FakeEnricher(ROWS).schema() == pa.schema([("n", pa.int64()), ("t", pa.string())])
    assert FakeEnricher({}, schema="n int").schema() == pa.schema([("n", pa.int32())])


def test_latency_is_on_the_time_of_the_loop() -> None:
    fake = FakeEnricher(ROWS, latency=60)
    run(fake, lambda: outcomes(fake, "a", "b"))
    assert [(call.started, call.ended) for call in fake.calls] == [(0, 60), (60, 120)]


def test_what_is_random_comes_from_the_seed() -> None:
    def durations(seed: int) -> list[float]:
        fake = FakeEnricher(ROWS, latency=lambda random: random.expovariate(1), failures=0.5, seed=seed)
        run(fake, lambda: outcomes(fake, *"abcabcabcabc"))
        return [call.ended - call.started for call in fake.calls if call.ended is not None]

    assert durations(1) == durations(1)
    assert len(set(durations(1))) == 12
    assert durations(1) != durations(2)


def test_the_first_calls_of_each_key_fail() -> None:
    fake = FakeEnricher(ROWS, failures=2)
    assert (
        run(fake, lambda: outcomes(fake, *"aaabbaab"))
        == [*["failed"] * 2, "answered", *["failed"] * 2] + ["answered"] * 3
    )
    assert run(fake, lambda: outcomes(fake, "a"))[-1] == "failed", "a new open begins anew"


def test_a_batch_fails_with_any_of_its_keys() -> None:
    fake = FakeEnricher(ROWS, failures=lambda key, call: key == "b")
    with pytest.raises(EnricherError, match="key 'b' fails, because `failures` says so") as raised:
        run(fake, lambda: fake.lookup_many(["a", "b"]))
    assert raised.value.retryable is True
    assert run(fake, lambda: fake.lookup_many(["a", "x"])) == [{"n": 1}, None]


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0, 0), (1.0, 400, 400), (0.25, 60, 140)])
def test_an_error_rate_is_kept(rate: float, least: int, most: int) -> None:
    fake = FakeEnricher(ROWS, failures=rate)
    assert least <= run(fake, lambda: outcomes(fake, *"a" * 400)).count("failed") <= most


def test_a_function_gives_the_error_itself() -> None:
    error = ConnectionResetError("by peer")
    fake = FakeEnricher(ROWS, failures=lambda key, call: error if call == 2 else None)
    run(fake, lambda: fake.lookup("a"))
    with pytest.raises(ConnectionResetError):
        run(fake, lambda: outcomes_then_raise(fake))


async def outcomes_then_raise(fake: FakeEnricher) -> None:
    await fake.lookup("a")
    await fake.lookup("a")


def test_a_cancelled_call_is_recorded() -> None:
    fake = FakeEnricher(ROWS, latency=10)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await fake.lookup("a")

    run(fake, main)
    [call] = fake.calls
    assert (call.outcome, call.ended) == ("cancelled", 3)


async def test_it_has_to_be_open() -> None:
    fake = FakeEnricher(ROWS)
    with pytest.raises(EnricherError, match="not open"):
        await fake.lookup("a")
    await fake.open()
    await fake.close()
    with pytest.raises(EnricherError, match="not open"):
        await fake.lookup("a")
    assert fake.opened == 1


def test_a_copy_is_equal_and_has_no_record() -> None:
    fake = FakeEnricher(ROWS, failures=1, max_batch=3)
    before = fingerprint(fake)
    run(fake, lambda: outcomes(fake, "a"))
    copy = pickle.loads(pickle.dumps(fake))
    assert copy == fake == FakeEnricher(ROWS, failures=1, max_batch=3)
    assert hash(copy) == hash(fake)
    assert fingerprint(copy) == fingerprint(fake) == before
    assert (copy.calls, copy.opened) == ([], 0)
    assert fake != FakeEnricher(ROWS, failures=2, max_batch=3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rows": []}, "rows is"),
        ({"rows": {"a": 7}}, "rows contains 7"),
        ({"rows": {"a": [7]}}, "rows contains"),
        ({"rows": {}}, "schema="),
        ({"rows": {"a": {"n": 1}, "b": {"n": "x"}}}, "no common types"),
        ({"latency": -1}, "latency is -1"),
        ({"latency": "1"}, "latency is '1'"),
        ({"latency": asyncio.sleep}, "latency is"),
        ({"failures": -1}, "failures is -1"),
        ({"failures": 1.5}, "failures is 1.5"),
        ({"failures": None}, "failures is None"),
        ({"failures": True}, "failures is True"),
        ({"failures": "always"}, "failures is 'always'; it must be an int, .* or a function of a key"),
        ({"failures": lambda: True}, "it must take two arguments, the key and the number of its call"),
        ({"failures": asyncio.sleep}, "not an `async def`"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"seed": "one"}, "seed is .one.; it must be an int"),
        ({"schema": "a strin"}, "strin"),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        FakeEnricher(**{"rows": ROWS} | arguments)


def test_the_test_kit_is_imported_without_any_dependency() -> None:
    program = (
        "import sys, asyncio_operator.testing as t; t.FakeEnricher, t.check_enricher, t.check_state_backend; "
        "print(*[m for m in ('pyarrow', 'pyspark', 'pytest') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("", 0), run.stderr
