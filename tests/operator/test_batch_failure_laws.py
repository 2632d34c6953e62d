"""B3, B4: what becomes of a batch that fails, or gives a result of the wrong shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from asyncio_operator import (
    AsyncWaitOperator,
    Batching,
    ElementTimeoutError,
    EnricherError,
    ResultError,
)
from tests.operator.attempts import Batches, retry
from tests.operator.helpers import collect, process, virtual


def by(max_size: int = 1000, linger: float = 1.0) -> Batching:
    return Batching(max_size=max_size, linger=linger)


# -- B3: a result of the wrong length


class Odd(Sequence[Any]):
    """Says that it has three items, and gives others."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


ODD = [Odd(1), Odd(1, 2, 3, 4), Odd(1, OSError("unreadable"), 3)]


@pytest.mark.parametrize("result", [[], [1], [1, 2, 3, 4], None, "abc", {1, 2, 3}, 7, *ODD])
@virtual
async def test_B3_a_result_of_another_length_is_a_ResultError_for_every_element(mode, result):
    errors: list[Any] = []
    batches = Batches(lambda values, number: result)
    operator = AsyncWaitOperator(batches, mode=mode, retry=retry(), on_error=lambda v, e: errors.append((v, e)))
    assert await collect(operator.process(range(3))) == [None] * 3
    assert len(batches.calls) == 1
    assert [value for value, _ in errors] == [0, 1, 2]
    assert {type(error) for _, error in errors} == {ResultError}
    assert "for 3 values; it must give a sequence with one result for each" in str(errors[0][1])
    assert operator.metrics.failures == 3


# -- B4: failing batches


def poisoned(*bad: Any) -> Any:
    def act(values: list[Any], number: int) -> list[Any]:
        if any(value in bad for value in values):
            raise ValueError("poison")
        return values

    return act


@virtual
async def test_B4_a_failing_batch_is_split_down_to_the_poisonous_element(mode):
    batches = Batches(poisoned(5))
    operator = AsyncWaitOperator(batches, mode=mode, capacity=1, on_error=lambda v, e: ("bad", v, str(e)))
    got = await collect(operator.process(range(8)))
    assert sorted(got, key=str) == sorted([0, 1, 2, 3, 4, ("bad", 5, "poison"), 6, 7], key=str)
    assert batches.calls == [list(range(8)), [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [6, 7], [4], [5]]
    assert operator.metrics.failures == 1
    assert operator.metrics.retries == 0


@given(
    count=st.integers(1, 40),
    bad=st.sets(st.integers(0, 39)),
    capacity=st.integers(1, 4),
    max_size=st.integers(1, 16),
    attempts=st.integers(1, 3),
)
@virtual
async def test_B4_only_the_poisonous_elements_fail(count, bad, capacity, max_size, attempts):
    batches = Batches(poisoned(*bad), seconds=1.0)
    operator = AsyncWaitOperator(
        batches, capacity=capacity, batching=by(max_size), retry=retry(attempts), on_error=lambda v, e: ("bad", v)
    )
    got = await collect(operator.process(range(count)))
    assert got == [("bad", value) if value in bad else value for value in range(count)]
    assert batches.most <= capacity
    for value in bad & set(range(count)):
        assert sum(call == [value] for call in batches.calls) == attempts


def only_alone(values: list[Any], number: int) -> list[Any]:
    if len(values) > 1:
        raise KeyError("rows")
    return values


ONE_BY_ONE = "every call of invoke_batch with several values has failed so far, and the same values succeed one by one"


@pytest.mark.parametrize(
    ("act", "count", "warned"),
    [
        pytest.param(only_alone, 20, True, id="always"),
        pytest.param(only_alone, 1, False, id="no batch"),
        pytest.param(poisoned(1), 2, False, id="a pair with an element to blame"),
        pytest.param(poisoned(5), 20, False, id="an element to blame"),
        pytest.param(poisoned(*range(20)), 20, False, id="all elements"),
        pytest.param(lambda values, number: only_alone(values, 0) if number else values, 4, False, id="not the first"),
        pytest.param(lambda values, number: values if number else only_alone(values, 0), 8, False, id="the first"),
    ],
)
@virtual
async def test_B4_a_batch_that_fails_whatever_is_in_it_is_logged_once(act, count, warned, caplog):
    operator = AsyncWaitOperator(Batches(act), batching=by(4), on_error="skip")
    await collect(operator.process(range(count)))
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warned
    if warned:
        assert ONE_BY_ONE in messages[0]
        assert "KeyError: 'rows'" in messages[0]


@virtual
async def test_B4_a_retry_forms_batches_again(mode):
    batches = Batches(poisoned("bad", "worse"))
    options: dict[str, Any] = {"mode": mode, "capacity": 1, "batching": by(linger=0.5)}
    operator = AsyncWaitOperator(batches, retry=retry(2, 10.0), on_error="skip", **options)
    await collect(operator.process(["bad", 1, "worse", 2]))
    assert batches.calls == [
        ["bad", 1, "worse", 2], ["bad", 1], ["worse", 2], ["bad"], [1], ["worse"], [2],
        ["bad", "worse"], ["bad"], ["worse"],
    ]  # fmt: skip
    assert operator.metrics.retries == 2


class OverloadError(Exception):
    overload = True


class AskLaterError(Exception):
    retry_after = 3.0


class WholeError(Exception):
    retryable = True


class AnyKeyError(Exception):
    any_key = True


NOBODYS_FAULT = [
    TimeoutError("slow"),
    ElementTimeoutError("slow"),
    ConnectionResetError("lost"),
    OverloadError(),
    AskLaterError(),
    WholeError(),
    AnyKeyError(),
    EnricherError("x", overload=True),
]


@pytest.mark.parametrize("error", NOBODYS_FAULT, ids=lambda error: type(error).__name__)
@virtual
async def test_B4_errors_that_come_from_no_element_fail_all_at_once(mode, error):
    def act(values, number):
        raise error

    batches = Batches(act)
    got = await process(batches, range(4), mode=mode, on_error=lambda v, e: e)
    assert got == [error] * 4
    assert batches.calls == [[0, 1, 2, 3]]


@pytest.mark.parametrize("error", NOBODYS_FAULT[:6], ids=lambda error: type(error).__name__)
@virtual
async def test_B4_and_are_retried_as_a_whole_batch(mode, error):
    def act(values, number):
        if number == 0:
            raise error
        return values

    batches = Batches(act)
    assert await process(batches, range(4), mode=mode, retry=retry()) == list(range(4))
    assert batches.calls == [[0, 1, 2, 3]] * 2


@virtual
async def test_B4_halves_go_before_retries_and_new_input():
    batches = Batches(poisoned(0))
    operator = AsyncWaitOperator(
        batches, mode="unordered", capacity=1, batching=by(max_size=2), on_error="skip", retry=retry(2, 0.0)
    )
    await collect(operator.process(range(6)))
    assert batches.calls[:3] == [[0, 1], [0], [1]]
    assert batches.calls[3][0] == 0
