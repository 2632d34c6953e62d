"""What a Python worker lacks fails the task with the remedy, whatever `on_error` says: no key is to blame."""

from __future__ import annotations

import os
from typing import Any

import pytest

from asyncio_operator import Batching, Cache, Retry
from asyncio_operator.testing import FakeService
from enrichers import BlockingEnricher, FunctionEnricher, HttpEnricher
from tests.enrichers.test_blocking_enricher import needs_a_module, needs_another_version

pytestmark = pytest.mark.spark

SCHEMA = "name string"


async def function(key: int) -> Any:
    return needs_a_module() if key == 3 else {"name": "a"}


def blocking(key: int) -> Any:
    return needs_a_module() if key == 3 else {"name": "a"}


async def fall_back(key: int) -> Any:
    try:
        return needs_a_module()
    except ImportError:
        return {"name": {0: "a", 1: "b"}[key]}


async def of_an_account(key: int) -> Any:
    return {"name": os.environ[f"NAME_OF_{key}"]}


def ended(spark: Any, enricher: Any, **options: Any) -> str:
    """What a job ends with in which failures are to be nulls."""
    from asyncio_operator.spark import enrich

    rows = enrich(spark.range(0, 5, 1, 1), enricher, on="id", on_error="null", **options)
    with pytest.raises(Exception, match="FunctionError") as raised:
        rows.collect()
    return str(raised.value)


@pytest.mark.parametrize("options", [{}, {"cache": Cache(), "retry": Retry()}, {"status_column": "s"}], ids=[*"abc"])
def test_X6_an_import_that_fails_in_a_function_is_not_hidden(spark: Any, options: Any) -> None:
    for enricher in (FunctionEnricher(function, SCHEMA), BlockingEnricher(blocking, SCHEMA)):
        text = ended(spark, enricher, **options)
        assert "no_such_driver" in text
        assert "install it in the Python of every executor, or send it with spark.submit.pyFiles" in text


def test_X6_nor_is_a_name_that_a_module_of_another_version_lacks(spark: Any) -> None:
    text = ended(spark, BlockingEnricher(lambda key: needs_another_version(), SCHEMA))
    assert "cannot import name 'no_such_name'" in text
    assert "the cause is in this Python worker, not in the key" in text


def test_X6_nor_in_batches(spark: Any) -> None:
    many = BlockingEnricher(None, SCHEMA, function_many=lambda keys: needs_a_module())
    assert "spark.submit.pyFiles" in ended(spark, many, batching=Batching(max_size=3))


@pytest.mark.parametrize(
    ("lack", "says"),
    [(needs_a_module, "spark.submit.pyFiles"), (lambda: {"X": os.environ["NO_SUCH"]}, "spark.executorEnv.NO_SUCH")],
    ids=["module", "variable"],
)
def test_X6_nor_what_the_headers_need(spark: Any, lack: Any, says: str) -> None:
    with FakeService({}) as service:
        assert says in ended(spark, HttpEnricher(service.url + "/rows/{key}", schema=SCHEMA, headers=lack))
        assert service.requests == []


def test_X6_what_may_be_of_the_key_is_null_as_before(spark: Any) -> None:
    from asyncio_operator.spark import enrich

    for way, found in ((fall_back, ["a", "b", None]), (of_an_account, [None] * 3)):
        rows = enrich(spark.range(0, 3, 1, 1), FunctionEnricher(way, SCHEMA), on="id", on_error="null")
        assert [row["name"] for row in rows.collect()] == found
