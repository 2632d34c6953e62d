"""A service that speaks as OpenAI's does, for tests of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import ModelEnricher


def completion(content: Any, *, finish: str = "stop", refusal: str | None = None, usage: Any = None) -> dict[str, Any]:
    """The answer of an endpoint for chats. `content` is text, or becomes JSON."""
    text = content if isinstance(content, str) or content is None else json.dumps(content)
    message = {"role": "assistant", "content": text, "refusal": refusal}
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
    }
    return answer | ({} if usage is None else {"usage": used(*usage)})


def used(prompt: int, answer: int = 0) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def asked_of(request: FakeRequest) -> str:
    """The text of a request for a chat."""
    return str(request.json()["messages"][-1]["content"])


def saying(content: Any, **options: Any) -> FakeService:
    """A service that always gives one answer, or the answer of a function of the prompt."""

    def answer(request: FakeRequest) -> Any:
        return completion(content(asked_of(request)) if callable(content) else content, **options)

    return FakeService(handler=answer)


def model(service: FakeService, **options: Any) -> ModelEnricher:
    """An enricher that asks the service."""
    given = {"prompt": "{text}", "schema": "mood string", "base_url": service.url + "/v1"} | options
    return ModelEnricher("small", **given)


def vectors(vector: Callable[[str], list[float]], **more: Any) -> FakeService:
    """A service for embeddings, which lists them from the last to the first."""

    def answer(request: FakeRequest) -> Mapping[str, Any]:
        texts = request.json()["input"]
        data = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
        return {"object": "list", "data": data[::-1], "model": "small", "usage": used(sum(map(len, texts)))}

    return FakeService(handler=answer, **more)
