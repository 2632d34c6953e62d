"""L9, X5: an answer that is none of an enricher is the failure of its key alone, and is not remembered."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Cache, EnricherError
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup.answers import FEW, AnswerCheck, run_error, size_of
from asyncio_operator.lookup.key_batch import Failure
from enrichers import HttpEnricher, RedisEnricher
from tests.lookup.helpers import Recorded, batch_of, look_up, outcomes_of
from tests.operator.helpers import virtual

SHAPE = "a mapping of column names to values"


class Torn(Sequence[Any]):
    """Rows that cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, place: Any) -> Any:
        raise OSError("torn")


class TornRow(UserDict[str, Any]):
    def __len__(self) -> int:
        raise OSError("torn")


WRONG: list[tuple[Any, str]] = [
    *(
        (answer, SHAPE)
        for answer in (7, 1.5, True, [1, 2], "text", b"bytes", [{"x": 1}, None], ["a"], {1, 2}, object())
    ),
    (iter([]), SHAPE),
    *((answer, "cannot be read: OSError: torn") for answer in (Torn(), TornRow())),
    ([[{"x": 1}]], SHAPE),
    ({"x": 1.5}, "'x' is bigint.*1.5"),
    ([{"x": 3}, {"x": 2**70}], str(2**70)),
    ({"x": "5"}, "'x' is bigint"),
    ({"z": 1}, "none of the columns"),
]


@pytest.mark.parametrize("count", [3, 2 * FEW])
@pytest.mark.parametrize("max_batch", [1, FEW])
@pytest.mark.parametrize("wrong", range(len(WRONG)))
@virtual
async def test_L9_L12_a_wrong_answer_is_the_failure_of_its_key_and_is_asked_for_again(
    wrong: int, max_batch: int, count: int
) -> None:
    answer, message = WRONG[wrong]

    async def one(keys: Any) -> Any:
        answers = [answer if key == 1 else {"x": key} for key in (keys if max_batch > 1 else [keys])]
        return answers if max_batch > 1 else answers[0]

    enricher, batches = Recorded(one, max_batch), [batch_of(range(count)), batch_of([2, 1, 0])]
    done = await look_up(enricher, batches, every=1.0, remember=60.0)
    failed, *others = outcomes_of(batches[0])[1::-1], *outcomes_of(batches[0])[2:]
    [failure, first] = failed
    assert type(failure) is Failure
    with pytest.raises(ResultError, match=f"(?s){message}"):
        raise failure.error
    assert [first, *others] == [{"x": key} for key in range(count) if key != 1]
    assert enricher.calls[-1] == ([1] if max_batch > 1 else 1)
    assert (done.figures.shared, done.figures.errors) == (2, {"ResultError": 2})


@pytest.mark.parametrize("make", [dict, OrderedDict, UserDict, lambda **row: defaultdict(int, row)])
@pytest.mark.parametrize("cache", [None, Cache()])
@virtual
async def test_A5_L9_any_mapping_is_a_row_and_is_left_as_it_is(make: Any, cache: Cache | None) -> None:
    answers = {1: make(x=1), 2: [make(x=2), make(y="b")], 3: None} | {key: make(y="c") for key in range(4, FEW + 9)}

    async def one(key: Any) -> Any:
        return answers[key]

    check = AnswerCheck(pa.schema([("x", pa.int64()), ("y", pa.string())]), in_columns=True)
    alone, others = (await look_up(Recorded(one), [[1, 2, 3], [*answers][3:]], check=check, cache=cache)).batches
    found, several, missed = outcomes_of(alone)
    assert all(row["y"] == "c" and row.get("x") is None for row in outcomes_of(others))
    assert len(answers[9]) == 1
    assert [row.get("x") for row in (found, *several)] == [1, 2, None]
    assert [row.get("y") for row in (found, *several)] == [None, None, "b"]
    assert missed is None
    assert (dict(answers[1]), list(map(dict, answers[2]))) == ({"x": 1}, [{"x": 2}, {"y": "b"}])


@virtual
async def test_X5_rows_that_fit_alone_and_not_together_are_all_found() -> None:
    answers = [{"s": {"x": 1}}, {"s": (2,)}, {"s": (2.5,)}, [{"s": [("x", 3)]}, {"s": {"x": 4}}]] * FEW

    async def one(key: Any) -> Any:
        return answers[key]

    check = AnswerCheck(pa.schema([("s", pa.struct([("x", pa.int64())]))]), in_columns=True)
    [batch] = (await look_up(Recorded(one), [range(len(answers))], check=check)).batches
    first, second, wrong, several, *_ = outcomes_of(batch)
    assert (first, second, several) == ({"s": {"x": 1}}, {"s": {"x": 2}}, [{"s": {"x": 3}}, {"s": {"x": 4}}])
    assert type(wrong.error) is ResultError


def test_J2_an_answer_weighs_all_that_is_in_it() -> None:
    text = "x" * 10_000
    table = pa.table({"text": [text] * 10})
    answers: list[Any] = [{"x": text}, [{"x": text}], {"x": {"y": [text]}}, {"x": (text,)}, ColumnAnswers(table, 3, 1)]
    for answer in answers:
        assert 10_000 <= size_of([answer]) <= 11_000
    assert 50_000 <= size_of([*answers, None]) <= 55_000


# -- the error of a lookup names its enricher and its key, each once


HTTP = HttpEnricher("http://h/rows/{key}", schema="name string")
REDIS = RedisEnricher("redis://h", schema="name string")


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("HttpEnricher('http://h/rows/{key}'), key 'a': status 500", "status 500"),
        ("HttpEnricher('http://h/rows/{key}'): Connection refused", "Connection refused"),
        ("HttpEnricher('http://h/rows/{key}'), 2 keys from 'b' to 'c': status 500",
         "HttpEnricher('http://h/rows/{key}'), 2 keys from 'b' to 'c': status 500"),
        ("no such key 'a': never", "no such key 'a': never"),
    ],
)  # fmt: skip
def test_X5_an_error_of_an_enricher_does_not_repeat_its_name_and_the_key(text: str, rest: str) -> None:
    error = EnricherError(text)
    raised = run_error(HTTP, "a", error, 2, "; on_error=...")
    assert str(raised) == f"{HTTP!r} failed for key 'a' in attempt 2: EnricherError: {rest}; on_error=..."
    assert raised.__cause__ is error


def test_X5_other_errors_are_said_as_they_are() -> None:
    assert str(run_error(REDIS, "a", ValueError("RedisEnricher(x): y"), 1, "")).endswith(
        "ValueError: RedisEnricher(x): y"
    )
    whole = f"{REDIS!r}, key 'a': timed out"
    assert str(run_error(REDIS, "a", EnricherError(whole), 1, "")).endswith("key 'a': EnricherError: timed out")
