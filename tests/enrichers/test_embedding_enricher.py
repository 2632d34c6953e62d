"""`EmbeddingEnricher`: a vector for each text, many texts in a request (law M2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import EmbeddingEnricher
from tests.enrichers.helpers import failure, opened
from tests.enrichers.model_service import vectors


def embedding(service: FakeService, **options: Any) -> EmbeddingEnricher:
    return EmbeddingEnricher("small", **({"base_url": service.url + "/v1"} | options))


def of_text(text: str) -> list[float]:
    return [float(len(text)), 0.5, -1]


async def test_M2_each_text_gets_its_vector_by_index_many_texts_in_a_request() -> None:
    texts = ["x" * n + '"é\n{keys}' for n in range(25)]
    async with vectors(of_text) as service:
        enricher = embedding(service, text="review", max_batch=10, api_key="sk-test")
        assert enricher.schema() == pa.schema([("embedding", pa.list_(pa.field("element", pa.float32())))])
        assert enricher.key_schema().names == ["review"]
        async with Lookup(enricher, batching=10) as lookup:
            found = await asyncio.gather(*map(lookup.get, texts))
    assert found == [{"embedding": of_text(text)} for text in texts]
    assert sorted(len(request.json()["input"]) for request in service.requests) == [5, 10, 10]
    for request in service.requests:
        assert (request.path, request.headers["authorization"]) == ("/v1/embeddings", "Bearer sk-test")
        assert {*request.json()} == {"model", "input"}


async def test_M2_one_text_is_a_list_of_one_and_numbers_are_sent_as_text() -> None:
    async with vectors(of_text) as service, opened(embedding(service, dimensions=3)) as enricher:
        assert await enricher.lookup("four") == {"embedding": [4.0, 0.5, -1.0]}
        assert await enricher.lookup_many([12, None, True]) == [
            {"embedding": [2.0, 0.5, -1.0]},
            None,
            {"embedding": [4.0, 0.5, -1.0]},
        ]
    assert [request.json() for request in service.requests] == [
        {"model": "small", "input": ["four"], "dimensions": 3},
        {"model": "small", "input": ["12", "true"], "dimensions": 3},
    ]


@pytest.mark.parametrize(
    "places", [[0, 0], [0, 2], [1], [0, 1, 2], [None, None], ["0", "1"], [False, True], [0.0, 1.0]], ids=str
)
async def test_M2_a_list_without_each_place_once_is_an_error_of_all_its_texts(places: list[Any]) -> None:
    data = [{"index": place, "embedding": [1.0]} for place in places]
    async with FakeService(handler=lambda _: {"data": data}) as service, opened(embedding(service)) as enricher:
        error = await failure(enricher, "a", "b")
    assert "each of 0 to 1 was expected once" in str(error)
    assert error.any_key


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"embedding": [1.0, 2.0]}, "the embedding has 2 numbers, and dimensions is 3"),
        ({"embedding": [1.0, "x", 2.0]}, "a number is needed"),
        ({"embedding": [1.0, 1e300, 2.0]}, "it is too large"),
        ({"embedding": "AACAPw=="}, "an array is needed"),
        ({"embedding": None}, "has no embedding"),
        ({}, "has no embedding"),
    ],
)
async def test_M2_what_is_no_vector_is_an_error_of_its_text(entry: Any, says: str) -> None:
    data = [{"index": 0} | entry]
    async with (
        FakeService(handler=lambda _: {"data": data}) as service,
        opened(embedding(service, dimensions=3)) as enricher,
    ):
        error = await failure(enricher, "a")
    assert "key 'a': " in str(error)
    assert says in str(error)
    assert error.retryable is False


async def test_M2_a_text_that_the_service_refuses_does_not_disturb_the_others() -> None:
    def answer(request: FakeRequest) -> Any:
        texts = request.json()["input"]
        if "" in texts:
            return FakeAnswer({"error": {"message": "input cannot be empty"}}, 400)
        return {"data": [{"index": i, "embedding": of_text(text)} for i, text in enumerate(texts)]}

    async with FakeService(handler=answer) as service, Lookup(embedding(service), batching=8) as lookup:
        found = await asyncio.gather(*map(lookup.get, ["a", "bb", "", "ccc"]), return_exceptions=True)
    assert [row["embedding"][0] for row in found if isinstance(row, dict)] == [1.0, 2.0, 3.0]
    assert "input cannot be empty" in str(found[2])


async def test_M2_a_missing_path_is_asked_for_once_and_not_for_each_text() -> None:
    async with FakeService() as service, opened(embedding(service)) as enricher:
        error = await failure(enricher, "a", "b")
    assert error.any_key
    assert "404" in str(error)


@pytest.mark.parametrize("answer", [{}, [], {"data": {}}, {"error": "x"}])
async def test_M2_an_answer_without_a_list_names_base_url(answer: Any) -> None:
    async with FakeService(handler=lambda _: FakeAnswer(answer)) as service, opened(embedding(service)) as enricher:
        error = await failure(enricher, "a")
    assert "which is not a list of embeddings; correct base_url" in str(error)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": ""}, "text is ''"),
        ({"text": ["a", "b"]}, "text is"),
        ({"text": "a b"}, "text is 'a b'"),
        ({"dimensions": 0}, "dimensions is 0"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"price": "0.02"}, "price is '0.02'"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_M2_a_wrong_argument_is_refused_when_the_enricher_is_made(options: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        EmbeddingEnricher("small", **options)
