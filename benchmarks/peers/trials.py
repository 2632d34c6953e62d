"""The service of the works "q13", "texts", "storm" and "faults", which counts what it is asked, and their keys.

It answers in two ways: ``GET /api/rows/KEY``, and like a model of OpenAI, with one or several keys in a request: as
openaivec asks it, ``POST /api/v1/responses``, and as `ModelEnricher` does, ``POST /api/v1/chat/completions``. Every
answer names its key, so the runner sees which rows were lost and which came twice.

Law: in "faults", what a key meets depends on the key and on how often it was asked, never on the peer or on the order
of requests. Storms begin with the first request.

| work | the service |
| --- | --- |
| q13, texts | takes 30 ms and a random time of 20 ms on average; no faults |
| storm | takes 10 ms, refuses what is above `RATE` requests in any second, and everything for one second in three |
| faults | takes 10 ms; resets 4 % of the connections, never answers 2 % of the requests, answers 4 % with a 503 |
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from benchmarks.peers.nexmark import bids
from benchmarks.peers.services import ASKED, LATENCY, RATE
from benchmarks.peers.task import Task

PERIOD, CALM = 3.0, 1.0
"""Seconds from storm to storm, and of the calm before each; a storm lasts a second."""

RESET, SILENT, BUSY = 0.04, 0.02, 0.04
"""Shares of the requests of "faults" that are reset, never answered, and answered with a 503."""

SILENCE = 60.0
PATIENCE = {"q13": 10.0, "texts": 10.0, "storm": 5.0, "faults": 2.0}
"""Seconds after which a client gives a request up."""

CHAT = "/api/v1/chat/completions"

CHARACTERS = 4
"""Of a token."""

EACH_MORE = 0.01
"""Seconds for each further key of a request, because a model writes its answers one after the other."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a service was asked.

    Attributes:
        calls: requests that arrived.
        refused: those that were answered with a 429.
        keys: keys of the requests that were not refused. These are paid for.
        repeated: those that had been asked before.
    """

    calls: int
    refused: int
    keys: int
    repeated: int


class TrialService:
    """The service of a work, for one turn.

    Args:
        half: called once, on a thread, when half of `rows` keys have been asked.
    """

    def __init__(self, work: str, rows: int, half: Callable[[int], None] | None = None) -> None:
        self._work = work
        self._half = half
        self._rows = rows
        self._first: float | None = None
        self._asked: Counter[str] = Counter()
        rate = RATE if work == "storm" else None
        self._service = FakeService(handler=self._answer, rate_limit=rate)

    def __enter__(self) -> Self:
        self._service.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        """What a task gets."""
        return f"{self._service.url}/api"

    @property
    def requests(self) -> list[FakeRequest]:
        """What it was asked."""
        return self._service.requests

    async def _answer(self, request: FakeRequest) -> FakeAnswer | None:
        keys = keys_of(request)
        if not keys:
            return None
        self._first = request.time if self._first is None else self._first
        since = (request.time - self._first) % PERIOD - CALM
        if self._work == "storm" and 0 <= since < 1:
            return FakeAnswer({"error": {"message": "too many"}}, 429, {"Retry-After": "1"})
        self._asked.update(keys)
        if self._half is not None and self._asked.total() >= self._rows // 2:
            half, self._half = self._half, None
            await asyncio.to_thread(half, int(self._service.url.rpartition(":")[2]))
        drawn = random.Random(f"{self._work} {keys[0]} {self._asked[keys[0]]}")
        await asyncio.sleep(self._latency(drawn) + EACH_MORE * (len(keys) - 1))
        fault = drawn.random() if self._work == "faults" else 1.0
        if fault < RESET:
            return FakeAnswer(reset=True)
        if fault < RESET + SILENT:
            return FakeAnswer(delay=SILENCE)
        if fault < RESET + SILENT + BUSY:
            return FakeAnswer({"error": {"message": "busy"}}, 503, {"Retry-After": "1"})
        if request.path == CHAT:
            return FakeAnswer(as_chat(request, keys))
        return FakeAnswer(as_model(request, keys) if request.method == "POST" else {"name": name_of(keys[0])})

    def _latency(self, drawn: random.Random) -> float:
        return 0.03 + drawn.expovariate(50) if self._work in ("q13", "texts") else LATENCY


def counts_of(requests: Sequence[FakeRequest]) -> Counts:
    """The counts of these requests."""
    taken = [key for request in requests if request.status != 429 for key in keys_of(request)]
    refused = sum(request.status == 429 for request in requests)
    return Counts(len(requests), refused, len(taken), len(taken) - len({*taken}))


def tokens_of(requests: Sequence[FakeRequest]) -> int:
    """A quarter of the characters that a model reads and writes for these requests, as if no service had repeated one.

    It reads instructions, texts and the JSON schema of the answer; what else a request has costs nothing.
    """
    characters = 0
    for request in requests:
        keys, given = keys_of(request), request.json()
        if request.path == CHAT:
            characters += sum(len(message["content"]) for message in given["messages"])
            characters += len(json.dumps(given["response_format"]["json_schema"]["schema"]))
            characters += len(as_chat(request, keys)["choices"][0]["message"]["content"])
        elif keys:
            characters += len(given.get("instructions") or "") + sum(map(len, _input_of(given)))
            characters += len(json.dumps(given.get("text", {}).get("format", {}).get("schema", "")))
            characters += len(as_model(request, keys)["output"][0]["content"][0]["text"])
    return characters // CHARACTERS


def name_of(key: Any) -> str:
    """The answer for a key."""
    return f"row {key}"


def keys_of(request: FakeRequest) -> list[str]:
    """The keys that a request asks for."""
    if "/rows/" in request.path:
        return [request.path.rpartition("/")[2]]
    if request.path == CHAT:
        asked = request.json()["messages"][-1]["content"]
        return [str(one["text"]) for one in json.loads(asked)] if asked.startswith("[{") else [asked]
    return [str(message["body"]) for message in _messages(request)]


def texts(count: int, seed: int = 0) -> list[str]:
    """Reviews, about half of which occur more than once."""
    drawn = random.Random(seed)
    words = [f"{start}{end}" for start in ("ba", "ke", "li", "mo", "tu") for end in ("r", "st", "nd", "lly", "ck")]
    kinds = [f"review {i}: {' '.join(drawn.choices(words, k=12))}" for i in range(count)]
    return [kinds[drawn.randrange(count)] for _ in range(count)]


def _messages(request: FakeRequest) -> list[dict[str, Any]]:
    """The messages of a request to a model: JSON in the text of its last input."""
    if request.path != "/api/v1/responses":
        return []
    content = _input_of(request.json())[-1]
    messages: list[dict[str, Any]] = json.loads(content)["user_messages"]
    return messages


def _input_of(body: Any) -> list[str]:
    """The texts of a request to a model, without its instructions."""

    def of(content: Any) -> list[str]:
        if isinstance(content, str):
            return [content]
        if isinstance(content, list):
            return [text for one in content for text in of(one)]
        return of(content.get("text") or content["content"])

    return of(body["input"])


def as_model(request: FakeRequest, keys: list[str]) -> dict[str, Any]:
    """A response of a model that has done what it was asked."""
    answers = [{"id": one["id"], "body": name_of(key)} for one, key in zip(_messages(request), keys, strict=True)]
    text = {"type": "output_text", "text": json.dumps({"assistant_messages": answers}), "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": "r",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": "fake",
        "output": [message],
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
    }


def as_chat(request: FakeRequest, keys: list[str]) -> dict[str, Any]:
    """A completion of a chat with the row, or the rows of a batch, of `ModelEnricher`."""
    rows = [{"number": number, "row": {"name": name_of(key)}} for number, key in enumerate(keys)]
    is_batch = "rows" in request.json()["response_format"]["json_schema"]["schema"]["properties"]
    message = {"role": "assistant", "content": json.dumps({"rows": rows} if is_batch else rows[0]["row"])}
    used = {"prompt_tokens": 20 * len(keys), "completion_tokens": 5 * len(keys), "total_tokens": 25 * len(keys)}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "fake", "choices": [choice], "usage": used}


def prepared(task: Task, directory: Path) -> Task:
    """The task with the keys of its work, the patience of its clients, and the rate that they shall keep."""
    task = replace(task, count=True, patience=PATIENCE[task.work], rate=ASKED if task.work == "storm" else 0)
    if task.work not in ("q13", "texts"):
        return task
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {"key": texts(task.rows)}
    if task.work == "q13":
        made = bids(task.rows)
        columns = {name: [getattr(bid, name) for bid in made] for name in ("auction", "bidder", "price", "time", "key")}
    keys, table = directory / f"{task.work}.json", directory / f"{task.work}.parquet"
    keys.write_text(json.dumps(columns["key"]), encoding="utf-8")
    pq.write_table(pa.table(columns), table)
    return replace(task, keys=str(keys), table=str(table), column="key")
