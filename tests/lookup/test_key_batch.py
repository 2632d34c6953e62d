"""A batch of keys and its outcomes."""

from __future__ import annotations

from asyncio_operator.lookup.key_batch import Answer, Failure, KeyBatch, shared


def test_ready_is_the_run_of_outcomes_from_the_first_and_answered_counts_them_all() -> None:
    batch = KeyBatch([f"key {i}" for i in range(5)], rows=5)
    batch.outcomes[0] = batch.outcomes[1] = batch.outcomes[3] = None
    assert (batch.ready(), batch.answered()) == (2, 3)
    batch.delivered = 2
    batch.outcomes[2] = None
    assert (batch.ready(), batch.answered()) == (4, 4)


def test_who_shares_an_outcome_is_told_so() -> None:
    answer = {"x": 1}
    assert shared(answer) is answer
    told = shared(Answer(answer, "call", 3, 0.5))
    assert (told.answer, told.source, told.attempts, told.latency) == (answer, "shared", 3, 0.5)
    failure = shared(Failure(ValueError("no"), 0.5, attempts=2))
    assert (str(failure.error), failure.source, failure.attempts) == ("no", "shared", 2)


def test_failure_says_what_it_is() -> None:
    assert repr(Failure(ValueError("no"), 1.5)) == "Failure(ValueError('no'), call, after 1 attempts)"
