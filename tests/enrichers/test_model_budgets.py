"""Tokens and dollars of models under a budget, and which answers a journal may hold (law M3)."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Budget, BudgetExceeded, Enricher, Limit
from asyncio_operator.journal.identity import identity_of
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import EmbeddingEnricher, ModelEnricher
from enrichers.models.tokens import CHARACTERS, MOST_LENGTHS, Estimates, Tokens, tokens_in
from tests.enrichers.helpers import opened
from tests.enrichers.model_service import asked_of, completion, model, used, vectors

NUMBERS = itertools.count()

MODEL: dict[str, Any] = {"prompt": "{text}", "schema": "mood string, why string"}


def budget(*limits: Limit, **options: Any) -> Budget:
    return Budget(f"models {next(NUMBERS)}", *limits, **options)


def counting(answer_tokens: int = 5) -> Any:
    """A service that counts a token for each character of a prompt."""

    def answer(request: FakeRequest) -> Any:
        return completion({"mood": "ok"}, usage=(len(asked_of(request)), answer_tokens))

    return answer


async def test_M3_tokens_and_dollars_of_answers_are_settled_refused_and_cut_ones_too() -> None:
    answers = {
        "good": completion({"mood": "ok"}, usage=(1000, 100)),
        "no": completion(None, refusal="no", usage=(2000, 200)),
        "cut": completion("{", finish="length", usage=(4000, 400)),
        "misfit": completion("?", usage=(8000, 800)),
        "error": FakeAnswer({"error": {"message": "x"}}, 400),
    }
    shared = budget(Limit(1e9, unit="tokens"), spend={"usd": 10.0})
    async with (
        FakeService(handler=lambda request: answers[asked_of(request)]) as service,
        Lookup(model(service, price=(1.0, 10.0)), budget=shared, retry=None) as lookup,
    ):
        for text in answers:
            await asyncio.gather(lookup.get(text), return_exceptions=True)
    units = shared.statistics().units
    assert units["usd"].used == pytest.approx(15_000e-6 + 1500 * 10e-6)
    assert units["usd"].reserved == 0


async def test_M3_a_spend_limit_ends_before_it_is_passed_without_code_of_the_user() -> None:
    shared = budget(spend={"usd": 0.01})
    # A call costs 100 tokens, which are a thousandth of a dollar.
    async with (
        FakeService(handler=counting(95)) as service,
        Lookup(model(service, price=(10.0, 10.0), max_tokens=95), budget=shared, retry=None) as lookup,
    ):
        for n in range(10):
            await lookup.get(f"{n:05}")
        with pytest.raises(BudgetExceeded):
            await lookup.get("10000")
    assert len(service.requests) == 10


async def test_M3_an_estimate_learns_from_answers() -> None:
    async with FakeService(handler=counting(7)) as service, opened(model(service, price=(2.0, 4.0))) as enricher:
        first = enricher.weigh(["x" * 100])
        assert first == {"tokens": first["tokens"], "usd": pytest.approx(first["tokens"] * 2e-6 + 20 * 2e-6)}
        for n in range(95, 106):
            await enricher.lookup("x" * n)
        learned = enricher.weigh(["x" * 100])
        assert learned == {"tokens": pytest.approx(109, abs=3), "usd": pytest.approx(102 * 2e-6 + 7 * 4e-6, rel=0.02)}
        assert enricher.weigh(["x" * 105])["tokens"] >= 112
        assert enricher.weigh(["x" * 1000])["tokens"] > 200
        assert enricher.weigh([]) == {"tokens": 102, "usd": pytest.approx(95 * 2e-6 + 7 * 4e-6)}
    assert enricher.weigh(["x" * 105])["tokens"] >= 112
    fresh = pickle.loads(pickle.dumps(enricher))
    assert fresh == enricher
    assert fresh.weigh(["x" * 100]) == first


def test_M3_an_estimate_follows_the_highest_answers_at_once_and_lower_ones_slowly() -> None:
    estimates = Estimates(20)
    for answered in [10, 10, 90, 10]:
        estimates.learn(100, 1, Tokens(50, answered))
    assert 85 < estimates.estimate(100, 1).answered <= 90
    for _ in range(300):
        estimates.learn(100, 1, Tokens(50, 10))
    assert estimates.estimate(100, 1) == Tokens(50, 11)


def test_M3_an_estimate_for_several_rows_has_the_answer_of_each() -> None:
    estimates = Estimates(20)
    assert estimates.estimate(400, 5) == Tokens(100, 100)
    estimates.learn(400, 10, Tokens(80, 70))
    assert estimates.estimate(400, 10) == Tokens(80, 70)
    assert estimates.estimate(404, 20) == Tokens(81, 140)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3000), st.integers(0, 3000)), min_size=1, max_size=60),
    st.integers(0, 500),
)
def test_M3_an_estimate_is_never_below_the_least_that_was_seen_for_its_length(
    seen: list[tuple[int, int, int]], other: int
) -> None:
    estimates = Estimates(20)
    totals: dict[int, list[int]] = defaultdict(list)
    for length, sent, answered in seen:
        estimates.learn(length, 1, Tokens(sent, answered))
        totals[length].append(sent + answered)
    for length, of_length in totals.items():
        assert estimates.estimate(length, 1).total >= min(of_length)
    assert estimates.estimate(other, 1).total >= 0
    assert estimates.least().total == min(map(min, totals.values()))


def test_M3_before_the_first_answer_the_text_and_the_longest_answer_are_weighed() -> None:
    text = "x" * 400
    short = ModelEnricher("small", **MODEL).weigh([text])
    assert ModelEnricher("small", max_tokens=500, **MODEL).weigh([text])["tokens"] == short["tokens"] - 40 + 500
    extra = {"max_completion_tokens": 500}
    assert ModelEnricher("small", extra=extra, **MODEL).weigh([text])["tokens"] == short["tokens"] - 40 + 500
    assert ModelEnricher("small", batch=9, **MODEL).weigh([text, text])["tokens"] == short["tokens"] + 100 + 40
    system = ModelEnricher("small", system="y" * 4000, **MODEL)
    assert system.weigh([text])["tokens"] == short["tokens"] + 4000 / CHARACTERS
    assert EmbeddingEnricher("small").weigh([text, text]) == {"tokens": 200}
    assert EmbeddingEnricher("small", price=0.02).weigh([text])["usd"] == pytest.approx(100 * 0.02e-6)


def test_M3_what_is_learned_is_bounded() -> None:
    estimates = Estimates(20)
    for length in range(MOST_LENGTHS + 50):
        estimates.learn(length, 1, Tokens(length, 1))
    assert len(estimates._least) == MOST_LENGTHS
    assert len(estimates._classes) < 100


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (used(10, 5), Tokens(10, 5)),
        ({"prompt_tokens": 10, "total_tokens": 10}, Tokens(10, 0)),
        ({"prompt_tokens": 10, "total_tokens": 15}, Tokens(10, 5)),
        ({"total_tokens": 15}, Tokens(0, 15)),
        ({"prompt_tokens": 10}, Tokens(10, 0)),
        ({"prompt_tokens": "10", "total_tokens": True}, None),
        ({"prompt_tokens": -1}, None),
        (None, None),
        ([], None),
    ],
)
def test_M3_tokens_are_read_from_the_usage_of_an_answer(usage: Any, tokens: Tokens | None) -> None:
    assert tokens_in({"usage": usage}) == tokens
    assert tokens_in([usage]) is None


async def test_M3_an_answer_without_usage_keeps_the_estimate_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a budget no estimate counts."""
    shared = budget(spend={"tokens": 1e6})
    for limits in (None, shared):
        assert caplog.text == ""
        async with (
            FakeService(handler=lambda _: completion({"mood": "ok"})) as service,
            Lookup(model(service), budget=limits) as lookup,
        ):
            for text in ("a", "b"):
                await lookup.get(text)
    assert shared.statistics().units["tokens"].used > 40
    assert caplog.text.count("answers do not say how many tokens were used") == 1


async def test_M3_a_request_for_many_vectors_settles_the_tokens_of_all() -> None:
    shared = budget(spend={"usd": 1.0})
    async with (
        vectors(lambda _: [1.0]) as service,
        Lookup(EmbeddingEnricher("s", base_url=service.url, price=100.0), budget=shared, batching=10) as lookup,
    ):
        await asyncio.gather(*(lookup.get("x" * n) for n in range(1, 11)))
    assert shared.statistics().units["usd"].used == pytest.approx(55 * 100e-6)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"model": "large"},
        {"prompt": "Judge {text}"},
        {"system": "Be kind."},
        {"schema": "mood string, why string NOT NULL"},
        {"schema": "why string, mood string"},
        {"max_tokens": 10},
        {"max_tokens": 11},
        {"temperature": 0},
        {"temperature": 1},
        {"extra": {"max_completion_tokens": 10}},
        {"extra": {"seed": 1}},
        {"extra": {"seed": 2}},
        {"batch": 10},
        {"extra": {"api_key_of_a_tool": "x"}},
    ],
    ids=str,
)
def test_M3_a_journal_is_for_one_model_prompt_schema_and_all_parameters(other: dict[str, Any]) -> None:
    def made(**options: Any) -> Enricher:
        given = {"model": "small"} | MODEL | options
        return ModelEnricher(given.pop("model"), **given)

    one, two = identity_of(made()), identity_of(made(**other))
    assert one != two
    assert "ModelEnricher(model=" in two
    elsewhere = {"base_url": "http://other/v1", "api_key": "sk-other", "price": (1, 2)}
    assert identity_of(made(**other, **elsewhere)) == two


def test_M3_a_journal_of_vectors_is_for_one_model_and_one_number_of_dimensions() -> None:
    ones = [
        EmbeddingEnricher("small"),
        EmbeddingEnricher("small", dimensions=8),
        EmbeddingEnricher("small", dimensions=9),
        EmbeddingEnricher("large"),
    ]
    assert len({*map(identity_of, ones)}) == 4
    same = EmbeddingEnricher("small", text="other", base_url="http://other", api_key="k", price=1, max_batch=7)
    assert identity_of(same) == identity_of(ones[0])
