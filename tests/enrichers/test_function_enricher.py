"""`FunctionEnricher` and the decorator `enricher`."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, Enricher
from enrichers import BlockingEnricher, FunctionEnricher, enricher


async def weather(key: str) -> Mapping[str, Any] | None:
    return {"temperature": 1.5} if key == "JFK" else None


@enricher("temperature double, wind double")
async def decorated(key: Any) -> Mapping[str, Any]:
    return {"temperature": float(key)}


def test_the_schema_is_ddl_or_arrow() -> None:
    schema = pa.schema([("temperature", pa.float64())])
    assert FunctionEnricher(weather, schema).schema() is schema
    assert FunctionEnricher(weather, "temperature double").schema() == schema


async def test_the_decorator_makes_an_enricher_without_a_session() -> None:
    assert isinstance(decorated, Enricher)
    assert decorated.schema().names == ["temperature", "wind"]
    assert await decorated.lookup(3) == {"temperature": 3.0}
    assert decorated.key_schema() is None
    assert decorated.max_batch == 1


class Client:
    async def get(self, key: Any) -> None: ...

    async def __call__(self, key: Any) -> None: ...


@pytest.mark.parametrize("function", [Client().get, Client(), functools.partial(weather)])
def test_whatever_gives_coroutines_is_a_function(function: Any) -> None:
    assert FunctionEnricher(function, "a int").lookup == function


def hands_out_a_coroutine(key: str) -> Any:
    return weather(key)


@pytest.mark.parametrize("function", [len, hands_out_a_coroutine, Client, None, "weather"])
def test_anything_else_is_a_configuration_error(function: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"async_function is .*async def.* to BlockingEnricher"):
        FunctionEnricher(function, "a int")


async def of_two(origin: str, hour: int) -> None: ...


async def of_nothing() -> None: ...


@pytest.mark.parametrize(("function", "signature"), [(of_two, "(origin, hour)"), (of_nothing, "()")])
def test_a_function_that_cannot_take_a_key_is_a_configuration_error(function: Any, signature: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        enricher("a int")(function)
    assert f"which takes {signature}; it must take one argument, the key: one value, or a tuple" in str(caught.value)


def test_it_survives_cloudpickle_from_main_into_another_process() -> None:
    program = """
import sys, asyncio
from pyspark import cloudpickle
from enrichers import enricher
factor = 3
@enricher("a int")
async def triple(key):
    await asyncio.sleep(0)
    return {"a": key * factor}
sys.stdout.buffer.write(cloudpickle.dumps(triple))
"""
    reader = """
import sys, asyncio, pickle
print(asyncio.run(pickle.load(sys.stdin.buffer).lookup(5)))
"""
    pickled = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, check=True).stdout
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", reader], input=pickled, capture_output=True, check=True)
    assert run.stdout.decode().strip() == "{'a': 15}"


def test_an_asynchronous_generator_is_told_what_to_do_instead() -> None:
    async def rows(key: int) -> Any:
        yield {"x": key}

    with pytest.raises(ConfigurationError, match="an asynchronous generator; return a list of rows"):
        FunctionEnricher(rows, "x long")


def test_X4_a_decorator_without_parentheses_is_told_what_comes_first() -> None:
    with pytest.raises(ConfigurationError, match="the columns come first, as in @enricher"):

        @enricher
        async def f(key: int) -> None:
            pass


def test_G4_a_function_takes_its_weight_beside_it() -> None:
    async def look(key: Any) -> Any:
        return {"x": 1}

    def weigh(keys: Sequence[Any]) -> dict[str, float]:
        return {"tokens": len(keys)}

    made = FunctionEnricher(look, "x int", weigh=weigh, idempotent=False)
    assert made.weigh([1, 2]) == {"tokens": 2}
    assert not made.idempotent
    assert made == FunctionEnricher(look, "x int", weigh=weigh, idempotent=False)
    assert made != FunctionEnricher(look, "x int", idempotent=False)
    assert made != FunctionEnricher(look, "x int", weigh=weigh)
    plain = enricher("x int")(look)
    assert plain.weigh([1]) == {}
    assert plain.idempotent
    assert enricher("x int", weigh=weigh, idempotent=False)(look) == made


@pytest.mark.parametrize("as_partial", [False, True])
def test_H2_a_function_says_itself_that_its_calls_must_not_be_repeated(as_partial: bool) -> None:
    async def look(key: Any) -> Any:
        return {"x": 1}

    def blocks(key: Any) -> Any:
        return {"x": 1}

    look.idempotent = blocks.idempotent = False  # type: ignore[attr-defined]
    made = [functools.partial(look), functools.partial(blocks)] if as_partial else [look, blocks]
    assert not FunctionEnricher(made[0], "x int").idempotent
    assert not BlockingEnricher(made[1], "x int").idempotent
    assert not BlockingEnricher(None, "x int", function_many=made[1]).idempotent
