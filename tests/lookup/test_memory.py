"""L12: a task remembers its answers for some seconds, in bounded memory; errors and what is too old are asked again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Cache, Retry
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.errors import ResultError
from asyncio_operator.lookup import memory as module
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.key_batch import PENDING, Answer, Ascent, Failure, KeyBatch
from asyncio_operator.lookup.memory import Memory
from asyncio_operator.testing import ManualClock, VirtualTimeLoop
from tests.lookup.helpers import Recorded, at_once, batch_of, look_up, lookups_of, now
from tests.operator.helpers import virtual

WAYS: dict[str, dict[str, Any]] = {"plain": {}, "managed": {"retry": Retry(1)}}


def recalled(memory: Memory, *keys: Any, ascent: Ascent | None = None) -> list[Any]:
    """The outcomes of keys, which ascend as far as the `ascent` goes; PENDING for those to be asked."""
    batch = KeyBatch(list(keys), len(keys), None, ascent is not None and list(keys) == sorted(keys))
    if ascent is not None:
        ascent.add(batch)
    outcomes, left = memory.recall(batch) or ([PENDING] * len(keys), [*range(len(keys))])
    assert left == [place for place, outcome in enumerate(outcomes) if outcome is PENDING]
    return outcomes


def test_L12_an_answer_is_remembered_to_the_second_and_misses_too() -> None:
    clock = ManualClock()
    memory = Memory(60, clock)
    memory.learn(["a", "b"], [{"x": 1}, None])
    clock.advance(59.999)
    assert recalled(memory, "b", "c", "a") == [None, PENDING, {"x": 1}]
    clock.advance(0.001)
    assert recalled(memory, "a", "b") == [PENDING, PENDING]


@pytest.mark.parametrize(
    ("count", "answer", "remembered"),
    [
        pytest.param(250_000, None, module.MOST_KEYS, id="keys"),
        pytest.param(2_000, {"x": "x" * 2**17}, 500, id="bytes"),
        pytest.param(20, {"x": "x" * 2**24}, 3, id="bytes of few"),
        pytest.param(2_000, {"x": {"y": ["x" * 2**17]}}, 500, id="bytes of nested values"),
        pytest.param(2_000, [{"x": "x" * 2**16}] * 2, 500, id="bytes of several rows"),
    ],
)
def test_L12_of_more_answers_than_are_remembered_the_last_ones_are(count: int, answer: Any, remembered: int) -> None:
    """Also if they come in one batch of rows."""
    memory = Memory(60, ManualClock())
    keys = [*range(count)]
    memory.learn(keys, [answer] * count)
    known = [outcome is not PENDING for outcome in recalled(memory, *keys)]
    assert known == sorted(known)
    # Whole blocks are forgotten.
    assert 0.9 * remembered <= sum(known) <= 1.1 * remembered


class Attributes(dict[str, Any]):
    """A row whose values are attributes too, as many clients give: it has every attribute."""

    __getattr__ = dict.get


class Unreadable(Mapping[str, Any]):
    """A row of which only single columns can be read."""

    def __getitem__(self, name: str) -> Any:
        return name

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("only by name")

    def __len__(self) -> int:
        return 1


def in_itself() -> dict[str, Any]:
    row: dict[str, Any] = {"x": []}
    row["x"].append(row["x"])
    return row


@pytest.mark.parametrize("answer", [Attributes(x=1), [Attributes(x=1)], Unreadable(), in_itself()], ids=type)
def test_L12_answers_of_any_class_are_remembered(answer: Any) -> None:
    memory = Memory(60, ManualClock())
    memory.learn(["a", "b"], [answer, None])
    [outcome] = recalled(memory, "a")
    assert outcome is answer


def test_L12_a_later_answer_outlives_the_answer_that_was_of_no_use() -> None:
    clock = ManualClock()
    memory = Memory(60, clock)
    for answer in ({}, {}, {"x": 1}):
        memory.learn(["a", "b"], [answer, {"x": 2}])
        if not answer:
            memory.forget("a", answer)
        clock.advance(20)
    # Two blocks have been forgotten by now, which list the key for nothing.
    clock.advance(39)
    assert recalled(memory, "a") == [{"x": 1}]
    clock.advance(1)
    assert recalled(memory, "a") == [PENDING]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_L12_an_answer_of_no_use_that_is_found_late_leaves_a_later_answer(timed: bool, alone: bool) -> None:
    clock = ManualClock()
    memory = Memory(60, clock)
    useless, later = {"x": "text"}, {"x": 1}

    def remember(key: str, outcome: Any) -> None:
        memory.learn([key] if alone else [key, "b"], [outcome] if alone else [outcome, None])

    remember("a", Answer(useless, "call", 1, 0.5) if timed else useless)
    clock.advance(60)
    assert recalled(memory, "a") == [PENDING]
    remember("a", Answer(later, "call", 1, 0.5) if timed else later)
    memory.forget("a", Answer(useless, "shared", 1, 0.5) if timed else useless)
    [outcome] = recalled(memory, "a")
    assert (outcome.answer if timed else outcome) == later


def test_L12_keys_that_ascend_are_remembered_too_and_at_the_cost_of_no_dictionary() -> None:
    clock = ManualClock()
    memory, ascent = Memory(60, clock), Ascent()
    for start in range(0, 500_000, 5_000):
        keys = range(start, start + 5_000)
        assert recalled(memory, *keys, ascent=ascent) == [PENDING] * 5_000
        memory.learn(keys, [{"x": key} for key in keys])
    assert not memory._known
    assert memory._count < 1.1 * module.MOST_KEYS
    # They ascend inside of the batch, but not from batch to batch.
    assert recalled(memory, 499_999, 500_000, ascent=ascent) == [{"x": 499_999}, PENDING]
    assert recalled(memory, 1, 400_001) == [PENDING, {"x": 400_001}]
    clock.advance(60)
    assert recalled(memory, 499_999, ascent=ascent) == [PENDING]


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 20), max_size=5, unique=True), st.sampled_from([0.0, 0.5, 3.0, 11.0]))
)


def test_L12_it_is_what_a_list_of_the_last_answers_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEYS", 6)
    monkeypatch.setattr(module, "BLOCK", 2)

    @given(STEPS)
    def run(steps: list[tuple[list[int], float]]) -> None:
        clock = ManualClock()
        memory, ascent = Memory(10, clock), Ascent()
        answered: list[tuple[int, float]] = []
        for keys, pause in steps:
            outcomes = recalled(memory, *keys, ascent=ascent)
            alive = {key: time for key, time in answered[-6:] if clock() - time < 10}
            old = {key for key, time in answered if clock() - time >= 10 + 0.1}
            for key, outcome in zip(keys, outcomes, strict=True):
                if key in alive:
                    assert outcome == {"x": key}
                if outcome is not PENDING:
                    assert outcome == {"x": key}
                    assert key not in old - alive.keys()
            asked = [key for key, outcome in zip(keys, outcomes, strict=True) if outcome is PENDING]
            memory.learn(asked, [{"x": key} for key in asked])
            answered = [(key, time) for key, time in answered if key not in asked] + [(key, clock()) for key in asked]
            assert memory._count <= 6 + 5
            clock.advance(pause)

    run()


def test_L12_rows_of_a_table_count_with_their_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 200_000)
    memory = Memory(60, ManualClock())
    for start in range(0, 1_000, 10):
        table = pa.table({"text": ["x" * 5_000] * 10})
        memory.learn(range(start, start + 10), [ColumnAnswers(table, place, 1) for place in range(10)])
    recalled(memory, 0)
    assert 10 <= len(memory._known) <= 40


async def asked(batches: list[list[int]], way: str, *, pause: float = 1.0, slow: int = -1, **options: Any) -> Any:
    """The calls for batches that come `pause` seconds apart, and their outcomes. Key 13 fails; `slow` takes 100 s."""

    async def answer(keys: Any) -> Any:
        await asyncio.sleep(100 if keys == slow else 0.01)
        if keys == 13:
            raise ValueError("thirteen")
        return {"x": keys} if keys < 50 else None

    enricher = Recorded(answer)
    chosen: dict[str, Any] = {"remember": 60.0, "timeout": None} | WAYS[way] | options
    done = await look_up(enricher, batches, every=pause, **chosen)
    assert done.figures.shared == sum(map(len, batches)) - len(enricher.calls)
    return enricher.calls, [batch.outcomes for batch in done.batches]


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_L12_answers_are_remembered_while_a_late_call_of_their_batch_ignores_its_cancellation(way: str) -> None:
    async def answer(key: int) -> Any:
        if key:
            return {"x": key}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        await asyncio.sleep(2)
        return None

    enricher, made = Recorded(answer), [batch_of([0, 1]), batch_of([1])]
    chosen: dict[str, Any] = {"remember": 60.0, "timeout": 0.05, "fail": False, "capacity": 2} | WAYS[way]
    await look_up(enricher, made, every=1.0, **chosen)
    assert enricher.calls == [0, 1]
    assert made[1].outcomes == [{"x": 1}]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ordered", [True, False])
@virtual
async def test_L12_a_key_is_asked_once_a_minute(way: str, ordered: bool) -> None:
    batches = [[1, 2, 50], [2, 3, 50], [1, 3, 4]]
    calls, outcomes = await asked(batches, way, ordered=ordered)
    assert sorted(calls) == [1, 2, 3, 4, 50]
    assert outcomes == [[{"x": key} if key < 50 else None for key in batch] for batch in batches]
    calls, _ = await asked([[1], [1], [1]], way, pause=40.0)
    assert calls == [1, 1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ordered", [True, False])
@virtual
async def test_L12_a_key_of_batches_that_overlap_is_asked_once_a_minute_too(way: str, ordered: bool) -> None:
    """An answer is remembered from the end of its own batch on, however many later ones begin before others end."""
    times: list[float] = []

    async def answer(key: int) -> Any:
        if key == 0:
            times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(30.0 if key else 0.01)
        return {"x": key}

    made = [batch_of([0, number]) for number in range(1, 30)]
    chosen: dict[str, Any] = {"remember": 60.0, "timeout": None, "ordered": ordered} | WAYS[way]
    await look_up(Recorded(answer), made, every=20.0, **chosen)
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 4
    assert all(60.0 <= gap <= 60.0 + 30.0 + 20.0 for gap in gaps)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seconds", [10.005, 10.015, 10.02, 10.025])
@virtual
async def test_L2_L12_an_answer_that_has_come_is_not_shared_if_nothing_is_remembered(way: str, seconds: float) -> None:
    """The third batch comes when the call of the first, which the second shares, has just ended."""

    async def answer(key: int) -> Any:
        await asyncio.sleep(100.0 if key else seconds)
        return {"x": key}

    enricher, made = Recorded(answer), [batch_of([0, 1]), batch_of([0, 2]), batch_of([0, 3])]
    chosen: dict[str, Any] = {"remember": 0.0, "timeout": None} | WAYS[way]
    await look_up(enricher, made, every=5.013, **chosen)
    assert sorted(enricher.calls) == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_L12_an_answer_of_a_batch_that_still_waits_for_a_slow_key_is_remembered(way: str) -> None:
    calls, outcomes = await asked([[1, 2, 9], [2, 1, 9], [3, 1]], way, slow=9)
    assert sorted(calls) == [1, 2, 3, 9]
    assert outcomes[2] == [{"x": 3}, {"x": 1}]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O1_remembered_keys_that_leave_first_make_no_room_beyond_the_buffer(way: str, ordered: bool) -> None:
    async def answer(key: int) -> Any:
        await asyncio.sleep(5 if key >= 100 else 0.01)
        return {"x": key}

    enricher, known = Recorded(answer), list(range(10))
    batches = [batch_of(keys) for keys in (known, [*range(100, 120), *known])]
    await look_up(enricher, batches, every=1.0, remember=1e6, buffer=3, ordered=ordered, **WAYS[way])
    assert now() < 10_000
    assert len(enricher.calls) == 30
    assert enricher.most <= 3


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_L12_a_key_that_was_answered_while_it_waited_for_room_is_not_asked_again(way: str) -> None:
    calls, _ = await asked([[1, 2, 3, 4], [5, 6, 7, 8, 4], [9, 4]], way, pause=0.0, buffer=5, capacity=10)
    assert sorted(calls) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@virtual
async def test_L12_a_key_that_waits_for_room_is_not_asked_again_for_another_answer_of_no_use() -> None:
    useless: dict[str, Any] = {}

    async def answer(key: int) -> Any:
        await asyncio.sleep(key)
        return useless if key == 2 else {"x": key}

    enricher = Recorded(answer)
    options: dict[str, Any] = {"remember": 60.0, "buffer": 2, "timeout": None} | WAYS["managed"]
    consumer = lookups_of(enricher, [[2, 1], [1]], every=0.0, pause=1.0, **options)
    failure = Failure(ResultError("of no use"), 0.0)
    asyncio.get_running_loop().call_later(2.5, consumer.pipeline.forget, 2, useless, failure)
    await consumer.run()
    assert enricher.calls == [2, 1]
    assert consumer.figures.shared == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("again", [[1], [1, 9]], ids=["later", "while a key of its batch is slow"])
@virtual
async def test_L12_an_answer_of_no_use_is_asked_again_also_if_it_left_before_the_rest_of_its_batch(
    way: str, ordered: bool, again: list[int]
) -> None:
    useless: dict[str, Any] = {}

    async def answer(key: int) -> Any:
        await asyncio.sleep(50 if key == 9 else 0.01)
        return useless if key == 1 else {"x": key}

    enricher = Recorded(answer)
    options: dict[str, Any] = {"remember": 60.0, "timeout": None, "ordered": ordered} | WAYS[way]
    # The third batch comes before the slow key, or after it.
    consumer = lookups_of(enricher, [[1, 9], [2], again], every=10.0 if len(again) > 1 else 40.0, **options)
    # Its first outcome has left by then, and the rest of its batch has not.
    failure = Failure(ResultError("of no use"), 0.0)
    arrives = 10.0 if len(again) > 1 else 40.0
    asyncio.get_running_loop().call_later(arrives + 0.2, consumer.pipeline.forget, 1, useless, failure)
    await consumer.run()
    assert enricher.calls == [1, 9, 2, 1]


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_L12_failures_are_asked_again_and_0_seconds_remember_nothing(way: str) -> None:
    calls, _ = await asked([[13, 1], [13, 1]], way)
    assert sorted(calls) == [1, 13, 13]
    calls, _ = await asked([[1], [1]], way, remember=0.0)
    assert calls == [1, 1]


@pytest.mark.parametrize("kept", [Cache(expire_after_write=1.5), Cache(expire_after_access=1.5)])
@virtual
async def test_L14_the_memory_is_asked_first_unless_each_use_of_a_cached_answer_counts(kept: Cache) -> None:
    enricher = Recorded(at_once)
    figures = (await look_up(enricher, [[1]] * 4, every=1.0, cache=kept, remember=60.0)).figures
    if kept.expire_after_access is None:
        # Neither keeps an answer for longer than the other.
        assert (enricher.calls, figures.shared, figures.cache_hits) == ([1, 1], 0, 2)
    else:
        assert (enricher.calls, figures.shared, figures.cache_hits) == ([1], 0, 3)


@virtual
async def test_L14_a_key_that_the_memory_has_touches_no_cache() -> None:
    cache = open_cache(Cache(max_rows=2), "owner", now)
    cache.put(0, {"x": 0})
    done = await look_up(Recorded(at_once), [[1], [0], [1], [2]], every=1.0, cache=cache, remember=60.0)
    # What the memory answers counts as an answer of the cache whose place it takes.
    assert (done.figures.shared, done.figures.cache_hits) == (0, 2)
    # The answer of 0 was used before that of 1, but not here.
    assert cache.get_many([0, 1, 2], None) == ([{"x": 0}, None, {"x": 2}], [1])


BATCHES = st.lists(st.lists(st.integers(0, 6), max_size=5, unique=True), max_size=5)


@given(
    BATCHES,
    st.sampled_from(["plain", "managed", "cache"]),
    st.booleans(),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([0.0, 0.001, 0.5]),
    st.sampled_from([-1, 3]),
)
def test_O1_O5_L12_no_key_waits_for_the_room_of_keys_that_are_known(
    batches: list[list[int]], way: str, ordered: bool, buffer: int, pause: float, slow: int
) -> None:
    options: dict[str, Any] = {"cache": Cache(max_rows=3)} if way == "cache" else WAYS[way]

    async def answer(keys: int) -> Any:
        await asyncio.sleep(100 if keys == slow else 0.01)
        return {"x": keys}

    async def run_all() -> Recorded:
        enricher = Recorded(answer)
        done = await look_up(enricher, batches, every=pause, ordered=ordered, buffer=buffer, remember=60.0, **options)
        assert now() < 10_000
        assert [batch.outcomes for batch in done.batches] == [[{"x": key} for key in batch] for batch in batches]
        return enricher

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        enricher = runner.run(run_all())
    assert enricher.most <= buffer or not ordered
