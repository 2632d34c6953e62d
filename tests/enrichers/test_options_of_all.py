"""Options that several enrichers have: each refuses the same wrong values, and names the option with its value."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from asyncio_operator import ConfigurationError, Enricher
from asyncio_operator.quota.usage import overridden
from enrichers import (
    BlockingEnricher,
    EmbeddingEnricher,
    FunctionEnricher,
    HttpEnricher,
    ModelEnricher,
    PostgresEnricher,
    RedisEnricher,
    SqlEnricher,
    TableEnricher,
)


async def nothing(key: Any) -> None:
    """A miss."""


MADE: dict[Any, dict[str, Any]] = {
    BlockingEnricher: {"function": len, "function_many": len, "schema": "a int"},
    EmbeddingEnricher: {"model": "small"},
    FunctionEnricher: {"async_function": nothing, "schema": "a int"},
    HttpEnricher: {"url": "http://h/{key}", "schema": "a int"},
    ModelEnricher: {"model": "small", "prompt": "{text}", "schema": "a int"},
    PostgresEnricher: {"dsn": "postgresql://h/d", "table": "t", "key": "id"},
    RedisEnricher: {"url": "redis://h", "schema": "a int"},
    SqlEnricher: {"url": "sqlite+aiosqlite:///x.db", "table": "t", "key": "id"},
    TableEnricher: {"source": "x", "key": "id"},
}

WRONG: dict[str, list[Any]] = {
    "batch": [0],
    "cluster": [1],
    "coerce": [1, "string"],
    "columns": [[], [""], ["a", None], ["a", "a"]],
    "connect_timeout": [-1, "1s"],
    "dimensions": [0],
    "headers_max_age": ["1"],
    "hints": [60],
    "idempotent": [1, "no"],
    "key": ["", [], 5, {"a"}, ["a", "a"], ["a", 5], ["a", ""], "a\0b"],
    "max_batch": [0, True],
    "max_header_bytes": [0],
    "max_response_bytes": [0],
    "max_tokens": [0],
    "max_url_length": [-1],
    "max_workers": [0],
    "per_host": [0],
    "pool_size": [0, 2.0],
    "reload_every": [0, -1],
    "schema": [7],
    "statement_cache_size": [-1],
    "table": ["", [], ["a", 5], "a\0b", 7],
    "trust_env": [1],
    "weigh": [5, nothing, lambda: {"tokens": 2}],
}


def kinds_with(option: str) -> list[Any]:
    return [kind for kind in MADE if option in inspect.signature(kind).parameters]


@pytest.mark.parametrize("option", WRONG)
def test_X4_a_wrong_value_is_named_with_its_option(option: str) -> None:
    assert kinds_with(option)
    for kind in kinds_with(option):
        for value in WRONG[option]:
            # A name of a table is shown as its parts, and a function without its address.
            shown = "" if option == "table" else re.escape(repr(value).partition(" at ")[0])
            with pytest.raises(ConfigurationError, match=rf"{option} is .*{shown}.*; it must"):
                kind(**MADE[kind] | {option: value})


def test_X4_a_type_that_spark_does_not_have_is_named() -> None:
    for kind in kinds_with("schema"):
        with pytest.raises(ConfigurationError, match=r"schema 'a strin': .*'strin': unknown type; did you mean"):
            kind(**MADE[kind] | {"schema": "a strin"})


@pytest.mark.parametrize("kind", MADE)
def test_H2_a_class_says_that_its_calls_must_not_be_repeated(kind: Any) -> None:
    assert kind(**MADE[kind]).idempotent
    assert not type("Writes", (kind,), {"idempotent": False})(**MADE[kind]).idempotent


@pytest.mark.parametrize("kind", kinds_with("weigh"))
def test_G4_a_weight_is_an_ordinary_function_of_the_keys(kind: Any) -> None:
    assert kind(**MADE[kind], weigh=lambda keys: {"tokens": 2}).weigh([1]) == {"tokens": 2}
    unweighed = kind(**MADE[kind]).weigh
    assert overridden(unweighed, Enricher.weigh) is None, "each call is weighed although it weighs nothing"
