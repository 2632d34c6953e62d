"""What of a model's request is shown: never the API key, the system text or the prompt; a row only in its own error
(law M4)."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import EmbeddingEnricher, ModelEnricher
from enrichers.models.endpoint import RUN, ProseSecrets
from tests.enrichers.helpers import failure, opened, told
from tests.enrichers.model_service import completion

KEY = "sk-s3cr3t-0123456789"
SYSTEM = "You know the margin of Zephyr Corp: it is exactly fourteen percent.\nNever say it, même en français!"
PROMPT = 'Judge "{text}" for the takeover of Quantum Widgets,\nthen {{name}} the mood of {who} in one word.'

PARTS = ("s3cr3t", "0123456", "zephyr", "fourteen", "même", "eacute", "quantum", "takeover", "the mood of", "u00ea")


def hidden(text: str) -> bool:
    return not [part for part in PARTS if part in text.lower()]


def secretive(service: FakeService | None = None, **options: Any) -> ModelEnricher:
    base = "http://models.example/v1" if service is None else service.url + "/v1"
    given = {"prompt": PROMPT, "system": SYSTEM, "api_key": KEY, "base_url": base, "schema": "mood string"} | options
    return ModelEnricher("small", **given)


ECHOES: list[Callable[[FakeRequest], str]] = [
    lambda sent: sent.body.decode(),
    lambda sent: json.dumps({"error": {"message": f"invalid: {sent.body.decode()}"}}),
    lambda sent: sent.json()["messages"][0]["content"],
    lambda sent: sent.json()["messages"][1]["content"],
    lambda sent: json.dumps({"error": {"message": "no: " + sent.json()["messages"][0]["content"][:40]}}),
    lambda sent: "… " + sent.json()["messages"][0]["content"][9:50].upper(),
    lambda sent: json.dumps(sent.json()["messages"][1]["content"])[:30],
    lambda sent: repr(sent.json()["messages"]),
    lambda sent: " ".join(sent.json()["messages"][0]["content"].split()),
    lambda sent: "x" * 3_950 + sent.json()["messages"][0]["content"],
    lambda sent: str(sent.headers),
    lambda sent: f"Incorrect API key provided: {KEY}",
    lambda sent: json.dumps(sent.json(), ensure_ascii=True, indent=2),
]


@pytest.mark.parametrize("status", [200, 400, 401, 500])
@pytest.mark.parametrize("echo", ECHOES, ids=range(len(ECHOES)))
async def test_M4_what_a_service_repeats_of_a_request_is_not_shown(
    echo: Callable[[FakeRequest], str], status: int
) -> None:
    async with (
        FakeService(handler=lambda sent: FakeAnswer(echo(sent), status)) as service,
        opened(secretive(service)) as enricher,
    ):
        error = await failure(enricher, ("row of Ann", "Ann"))
    assert hidden(told(error)), told(error)
    assert "key ('row of Ann', 'Ann')" in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        completion(SYSTEM),
        completion({"mood": 7, "why": SYSTEM}),
        completion({"mood": [SYSTEM, PROMPT]}),
        completion(None, refusal=f"I was told: {SYSTEM}"),
        completion("x", finish=f"by {KEY}"),
        {"choices": [SYSTEM, PROMPT]},
    ],
    ids=range(6),
)
async def test_M4_what_a_model_repeats_of_its_instructions_is_not_in_an_error(answer: Any) -> None:
    async with FakeService(handler=lambda _: answer) as service, opened(secretive(service)) as enricher:
        error = await failure(enricher, ("row", "Ann"))
    assert hidden(told(error)), told(error)


async def test_M4_no_log_shows_a_prompt_a_key_or_a_row(caplog: pytest.LogCaptureFixture) -> None:
    """Neither where answers fail, nor where texts in one request are to blame, nor where an answer has no usage."""
    caplog.set_level(logging.DEBUG)
    caplog.handler.setLevel(logging.INFO)

    def answer(request: FakeRequest) -> Any:
        return FakeAnswer(request.body, 400) if "two" in request.body.decode() else completion({"mood": "ok"})

    async with FakeService(handler=answer) as service, Lookup(secretive(service)) as lookup:
        keys = [(f"private row {word}", "Ann") for word in ("one", "two")]
        found = await asyncio.gather(*map(lookup.get, keys), return_exceptions=True)
    assert found[0] == {"mood": "ok"}
    assert "private row two" in str(found[1])

    def vectors(request: FakeRequest) -> Any:
        texts = request.json()["input"]
        if len(texts) > 1:
            return FakeAnswer(request.body, 400)
        return {"data": [{"index": 0, "embedding": [1.0]}]}

    async with (
        FakeService(handler=vectors) as service,
        Lookup(EmbeddingEnricher("small", base_url=service.url, api_key=KEY), batching=4) as lookup,
    ):
        await asyncio.gather(*map(lookup.get, ["private row three", "private row four"]))

    def echo(request: FakeRequest) -> Any:
        return completion({"mood": "ok"} if "number" not in request.body.decode() else request.body.decode())

    async with FakeService(handler=echo) as service, Lookup(secretive(service, batch=2), batching=2) as lookup:
        await asyncio.gather(*map(lookup.get, [("private row five", "Ann"), ("private row six", "Ann")]))
    records = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert [record for record in records if "failed so far" in record.getMessage()]
    for record in records:
        text = caplog.handler.format(record)
        assert hidden(text), text
        assert "private row" not in text


def test_M4_neither_a_repr_nor_a_journal_shows_a_text_or_a_key() -> None:
    enricher = secretive(base_url="https://bob:pa55word@models.example/v1?sig=s3cr3t-sig", api_key=None)
    shown = repr(enricher)
    assert shown == ("ModelEnricher('small', https://models.example/v1/chat/completions?sig=..., key=['text', 'who'])")
    for text in (shown, repr(secretive()), identity_of(secretive()), str(secretive())):
        assert hidden(text), text


def test_M4_a_key_from_a_function_is_in_no_pickle() -> None:
    enricher = secretive(api_key=_key)
    made = pickle.loads(pickle.dumps(enricher))
    assert made == enricher
    assert KEY.encode() not in pickle.dumps(enricher)
    assert hidden(repr(made))


def _key() -> str:
    return "sk-s3cr3t-" + "0123456789"


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": KEY + "\n"},
        {"system": [SYSTEM]},
        {"prompt": "takeover of quantum widgets"},
        {"prompt": "{text} \ud800"},
        {"system": SYSTEM + "\ud800"},
        {"extra": {"messages": SYSTEM}},
        {"base_url": f"ftp://{KEY}@host"},
        {"extra": {"seed": object(), "other": SYSTEM}},
    ],
    ids=range(8),
)
def test_M4_an_error_about_an_argument_shows_no_text(options: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        secretive(**options)
    assert hidden(str(caught.value)), caught.value


async def test_M4_spans_have_the_model_and_no_text() -> None:
    async with FakeService() as service, opened(secretive(service)) as enricher:
        attributes = enricher.call_attributes()
    assert attributes["gen_ai.request.model"] == "small"
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["url.template"] == "/v1/chat/completions"
    assert hidden(str(attributes))


@given(st.text(min_size=1), st.text(), st.text())
def test_M4_a_text_of_some_length_is_hidden_wherever_it_stands_and_the_rest_stays(
    text: str, before: str, after: str
) -> None:
    secrets = ProseSecrets([text])
    shown = secrets.hide(f"{before} {text} {after}")
    letters = "".join(filter(str.isalnum, text))
    if len(letters) > RUN and letters.isascii():
        assert "***" in shown
        assert text not in shown
    assert ProseSecrets([]).hide(before) == before


def test_M4_a_word_that_a_message_shares_with_a_prompt_stays() -> None:
    secrets = ProseSecrets(["Is this review positive? ", "\n(", ")"])
    assert secrets.hide("the review (1) is too long") == "the review (1) is too long"
    assert secrets.hide('said: "is  this\\nreview pos"') == 'said: "***"'
