"""Answers that are known elsewhere: asked for before calls are made, on virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from asyncio_operator import Batching, Cache, FixedBackoff, Hedge, Retry
from asyncio_operator.errors import FunctionError, ResultError
from asyncio_operator.lookup import Lookup, client
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.column_places import ColumnCache
from asyncio_operator.lookup.places import HELD, KnownAnswers
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.trace import Trace
from tests.lookup import helpers
from tests.lookup.helpers import CHECK, Consumer, Recorded, in_a_second, now, outcomes_of
from tests.operator.helpers import virtual


class Elsewhere(KnownAnswers):
    """Knows some answers, after `delay` seconds; notes what it is asked and given."""

    source = "cache"
    most = 1000
    has_room = True

    def __init__(self, answers: dict[Any, Any], delay: float = 0.1, most: int = 1000, held: Sequence[Any] = ()) -> None:
        self.answers = answers
        self.most = most
        self.delay = delay
        self.held = held
        self.asked: list[list[Any]] = []
        self.renewed: list[list[Any]] = []
        self.noted: dict[Any, Any] = {}
        self.costs: dict[Any, tuple[int, float]] = {}
        self.kept: list[tuple[Any, Any, float]] = []
        self.failed: BaseException | None = None
        self.flushed = self.closed = 0

    async def find(self, keys: Sequence[Any]) -> list[Any]:
        self.asked.append(list(keys))
        await asyncio.sleep(self.delay)
        return [self.answers.get(key, ABSENT) for key in keys]

    async def renew(self, keys: Sequence[Any]) -> list[Any]:
        self.renewed.append(list(keys))
        await asyncio.sleep(self.delay)
        return [HELD if key in self.held else ABSENT for key in keys]

    def learn(self, keys: Any, answers: Any, calls: Any = None) -> None:
        self.noted.update(zip(keys, answers, strict=True))
        costs = zip(keys, calls.latencies, strict=False)
        self.costs.update((key, (calls.attempts, round(latency, 6))) for key, latency in costs)

    def keep(self, key: Any, answer: Any, came: float) -> bool:
        if self.has_room:
            self.kept.append((key, answer, came))
        return self.has_room

    async def room(self) -> None:
        while not self.has_room:
            await asyncio.sleep(0.1)
            if self.failed is not None:
                raise self.failed

    async def flush(self) -> None:
        self.flushed += 1

    async def close(self) -> None:
        self.closed += 1


async def look_up(enricher: Recorded, keys: Sequence[Sequence[Any]], *known: Elsewhere, **options: Any) -> Consumer:
    done = await helpers.look_up(enricher, keys, known=known, check=CHECK, **{"timed": True, "every": 0.0} | options)
    await asyncio.sleep(1)
    return done


@virtual
async def test_L3_L9_a_wrong_answer_among_others_of_its_turn_is_the_failure_of_its_key_and_is_not_kept() -> None:
    async def answer(key: int) -> Any:
        await asyncio.sleep(1)
        return {"x": "wrong" if key == 2 else key}

    elsewhere = Elsewhere({})
    done = await look_up(Recorded(answer), [[1, 2, 3]], elsewhere, cache=Cache(), timed=False)
    one, wrong, three = outcomes_of(done.batches[0])
    assert (one, three) == ({"x": 1}, {"x": 3})
    assert isinstance(wrong.error, ResultError)
    assert (wrong.latency, wrong.attempts) == (pytest.approx(1), 1)
    assert elsewhere.noted == {1: {"x": 1}, 3: {"x": 3}}
    assert elsewhere.costs == dict.fromkeys((1, 3), (1, 1.0))
    assert (done.figures.latency.count, done.figures.failures) == (3, 1)


@virtual
async def test_J2_answers_of_the_turn_in_which_the_run_fails_are_kept() -> None:
    async def answer(key: int) -> Any:
        await asyncio.sleep(1)
        if key == 3:
            raise ValueError("no")
        answered[key] = {"x": key}
        return {"x": key}

    elsewhere = Elsewhere({})
    answered: dict[int, Any] = {}
    with pytest.raises(FunctionError):
        await look_up(Recorded(answer), [[1, 2, 3, 4]], elsewhere, fail=True)
    # The calls that had not returned yet were cancelled.
    assert elsewhere.noted == answered != {}
    assert elsewhere.flushed == 1


@pytest.mark.parametrize(
    "options", [{"batching": Batching(4)}, {"batching": Batching(4), "retry": Retry(if_result=callable)}]
)
@pytest.mark.parametrize("wrong", [0, 1])
@virtual
async def test_J2_an_answer_beside_a_wrong_one_of_a_call_in_trouble_is_kept(
    wrong: int, options: dict[str, Any]
) -> None:
    async def answer(keys: Any) -> Any:
        if len(keys) > 2:
            raise ValueError("too many")
        return [{"x": "wrong" if key == wrong else key} for key in keys]

    elsewhere = Elsewhere({})
    enricher = Recorded(answer, 4)
    with pytest.raises(FunctionError, match=f"invalid result for key {wrong}: "):
        await look_up(enricher, [[0, 1, 2, 3]], elsewhere, fail=True, **options)
    assert elsewhere.noted == {1 - wrong: {"x": 1 - wrong}}


@pytest.mark.parametrize("in_columns", [False, True])
@pytest.mark.parametrize("options", [{}, {"retry": Retry(2), "timed": True}, {"batching": Batching(1)}])
@virtual
async def test_L5_an_answer_lives_from_the_time_at_which_it_came(in_columns: bool, options: dict[str, Any]) -> None:
    async def answer(keys: Any) -> Any:
        key = keys[0] if options.get("batching") else keys
        await asyncio.sleep(key / 100)
        return [{"x": key}] if options.get("batching") else {"x": key}

    spec = Cache(expire_after_write=10)
    cache: Any = ColumnCache(spec, now) if in_columns else open_cache(spec, "s", now)
    # Two of them come between two searches for ready rows.
    keys = [100, 103, 500]
    await look_up(Recorded(answer, 2 if options.get("batching") else 1), [keys], cache=cache, **options)
    assert [cache.came(key) * 100 for key in keys] == keys


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_L1_what_is_known_elsewhere_is_not_called_for(ordered: bool, max_batch: int) -> None:
    elsewhere = Elsewhere({2: {"x": 20}, 3: None})
    enricher = Recorded(in_a_second, max_batch)
    done = await look_up(enricher, [[1, 2, 3, 4]], elsewhere, ordered=ordered)
    assert [outcome.answer for outcome in outcomes_of(done.batches[0])] == [{"x": 1}, {"x": 20}, None, {"x": 4}]
    assert done.sources() == [["call", "cache", "cache", "call"]]
    assert enricher.calls == ([1, 4] if max_batch == 1 else [[1, 4]])
    assert (done.figures.cache_hits, done.figures.calls, done.figures.shared) == (2, len(enricher.calls), 0)
    assert elsewhere.noted == {1: {"x": 1}, 4: {"x": 4}}
    assert elsewhere.asked == [[1, 2, 3, 4]]
    assert (elsewhere.flushed, elsewhere.closed) == (1, 0)


@virtual
async def test_L2_keys_that_are_asked_for_at_the_same_time_are_asked_once() -> None:
    elsewhere = Elsewhere({1: {"x": 10}}, delay=1.0)
    enricher = Recorded(in_a_second)
    done = await look_up(enricher, [[1, 2], [1, 2]], elsewhere, every=0.5)
    assert done.sources() == [["cache", "call"], ["shared", "shared"]]
    assert (elsewhere.asked, enricher.calls, done.figures.shared) == ([[1, 2]], [2], 2)


@virtual
async def test_keys_are_asked_for_in_groups_and_no_lane_is_taken_meanwhile() -> None:
    keys = list(range(2_000))
    elsewhere = Elsewhere({key: {"x": key} for key in keys if key % 2}, delay=0.1, most=500)
    enricher = Recorded(in_a_second)
    done = await look_up(enricher, [keys], elsewhere, capacity=1000, buffer=4000)
    assert [len(some) for some in elsewhere.asked] == [500] * 4
    assert (done.figures.calls, done.figures.cache_hits) == (1000, 1000)
    # Two questions at a time, two rounds, and the calls of the first round meanwhile.
    assert now() <= 1 + 2.4
    assert [outcome.answer["x"] for outcome in outcomes_of(done.batches[0])] == keys


@virtual
async def test_several_places_are_asked_one_after_the_other_for_what_is_left() -> None:
    first, second = Elsewhere({1: {"x": 10}}), Elsewhere({2: {"x": 20}})
    second.source = "journal"
    enricher = Recorded(in_a_second)
    done = await look_up(enricher, [[1, 2, 3]], first, second)
    assert done.sources() == [["cache", "journal", "call"]]
    assert (first.asked, second.asked, enricher.calls) == ([[1, 2, 3]], [[2, 3]], [3])
    assert (done.figures.cache_hits, done.figures.journal_hits) == (1, 1)
    assert first.noted == second.noted == {3: {"x": 3}}


def journal(answers: dict[Any, Any] | None = None) -> Elsewhere:
    place = Elsewhere(answers or {})
    place.source = place.keeps = "journal"
    return place


@pytest.mark.parametrize("refresh_after", [None, 1000.0])
@virtual
async def test_J2_a_journal_gets_each_answer_of_the_cache_once_with_the_time_when_it_came(
    refresh_after: float | None,
) -> None:
    cache = open_cache(Cache(refresh_after=refresh_after), "s", now)
    await look_up(Recorded(in_a_second), [[1, 2, 3]], cache=cache)
    came = now()
    await asyncio.sleep(50)
    place, enricher = journal(), Recorded(in_a_second)
    for _ in range(2):
        done = await look_up(enricher, [[1, 2], [2, 4], [1, 4]], place, every=5.0, cache=cache)
        assert [[outcome.answer["x"] for outcome in outcomes_of(batch)] for batch in done.batches] == [
            [1, 2],
            [2, 4],
            [1, 4],
        ]
    assert (enricher.calls, place.noted) == ([4], {4: {"x": 4}})
    assert [(key, answer) for key, answer, _ in place.kept] == [(1, {"x": 1}), (2, {"x": 2})]
    assert all(came - 2 <= one <= came for _, _, one in place.kept)
    # Another journal has none of them.
    other = journal()
    other.keeps = "other"
    await look_up(enricher, [[1, 2, 4]], other, cache=cache)
    assert [key for key, _, _ in other.kept] == [1, 2, 4]


@virtual
async def test_J3_a_journal_gets_the_calls_that_an_answer_took_copies_too_and_the_seconds_of_the_last_attempt() -> None:
    calls: Counter[int] = Counter()

    async def sometimes(key: int) -> Any:
        calls[key] += 1
        await asyncio.sleep(50 if key == 2 and calls[key] == 1 else 1)
        if key == 3 and calls[key] == 1:
            raise OSError("lost")
        return {"x": key}

    elsewhere = Elsewhere({})
    retry, hedge = Retry(2, FixedBackoff(5.0)), Hedge(after=3.0, extra=0.5)
    await look_up(Recorded(sometimes), [[1, 2, 3]], elsewhere, retry=retry, hedge=hedge)
    assert elsewhere.costs == {1: (1, 1), 2: (2, 4), 3: (2, 1)}


@virtual
async def test_J2_a_journal_without_room_gets_the_answer_when_the_cache_has_it_again() -> None:
    cache = open_cache(Cache(), "s", now)
    await look_up(Recorded(in_a_second), [[1]], cache=cache)
    place, enricher = journal(), Recorded(in_a_second)
    place.has_room = False
    await look_up(enricher, [[1]], place, cache=cache)
    place.has_room = True
    await look_up(enricher, [[1]], place, cache=cache)
    assert ([key for key, _, _ in place.kept], enricher.calls) == ([1], [])


@pytest.mark.parametrize("fails", [False, True])
@virtual
async def test_J2_no_call_begins_while_a_journal_has_no_room_and_none_after_it_has_failed(fails: bool) -> None:
    place, enricher = journal(), Recorded(in_a_second)
    begun: list[float] = []

    async def answer(key: Any) -> Any:
        begun.append(now())
        if len(begun) == 10:
            place.has_room = False
        return await in_a_second(key)

    async def later() -> None:
        await asyncio.sleep(100)
        if fails:
            place.failed = OSError("the disk is full")
        else:
            place.has_room = True

    enricher.answer = answer
    waiting = asyncio.ensure_future(later())
    looking = look_up(enricher, [list(range(1000))], place, capacity=50, buffer=2000)
    if fails:
        with pytest.raises(OSError, match="the disk is full"):
            await looking
        assert len(begun) == 10
    else:
        await looking
        assert len(begun) == 1000
        assert len([one for one in begun if one < 99]) == 10
    await waiting


@virtual
async def test_L12_a_task_remembers_what_was_known_elsewhere() -> None:
    elsewhere = Elsewhere({1: {"x": 10}})
    done = await look_up(Recorded(in_a_second), [[1], [1]], elsewhere, every=5.0, remember=60.0)
    assert done.sources() == [["cache"], ["shared"]]
    assert elsewhere.asked == [[1]]


@virtual
async def test_L6_a_refresh_that_another_worker_does_is_dropped() -> None:
    elsewhere = Elsewhere({}, held=[1])
    enricher = Recorded(in_a_second)
    cache = Cache(refresh_after=2)
    done = await look_up(enricher, [[1, 2]] * 3, elsewhere, every=4.0, cache=cache)
    assert done.sources() == [["call", "call"], ["cache", "cache"], ["cache", "cache"]]
    assert elsewhere.renewed == [[1, 2], [1, 2]]
    assert (enricher.calls, done.figures.calls) == ([1, 2, 2, 2], 4)


@virtual
async def test_an_error_of_a_place_with_known_answers_ends_the_run() -> None:
    class Broken(Elsewhere):
        async def find(self, keys: Sequence[Any]) -> list[Any]:
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await look_up(Recorded(in_a_second), [[1, 2]], Broken({}))


@virtual
async def test_nothing_is_asked_for_after_the_end() -> None:
    elsewhere = Elsewhere({}, delay=100.0)
    enricher = Recorded(in_a_second)
    running = asyncio.ensure_future(look_up(enricher, [[1, 2]], elsewhere))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (elsewhere.flushed, enricher.calls) == (1, [])


@virtual
async def test_a_trace_has_what_was_found_without_an_attempt() -> None:
    trace = Trace()
    await look_up(Recorded(in_a_second), [[1, 2]], Elsewhere({1: {"x": 10}}), trace=trace)
    lives = trace.story().lives
    assert [(life.value, len(life.attempts), life.outcome) for life in lives] == [
        ("1", 0, "result"),
        ("2", 1, "result"),
    ]
    assert [life.completed for life in lives] == pytest.approx([0.1, 1.1])


@virtual
async def test_L2_waiters_of_a_lookup_share_a_question_and_a_key_that_all_have_left_is_not_called_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = Elsewhere({1: {"x": 10}, 2: {"x": 20}}, delay=1.0)

    async def with_elsewhere(*arguments: Any) -> Any:
        cache = open_cache(*arguments[:3])
        cache.known = (elsewhere,)
        return cache

    monkeypatch.setattr(client, "open_own_cache", with_elsewhere)
    enricher = Recorded(in_a_second)
    async with Lookup(enricher, cache=Cache()) as lookup:
        one, two, left = (asyncio.ensure_future(lookup.get(key)) for key in (1, 1, 3))
        await asyncio.sleep(0.5)
        left.cancel()
        other = asyncio.ensure_future(lookup.get(2))
        found = list(await asyncio.gather(one, two, other))
        assert found == [{"x": 10}, {"x": 10}, {"x": 20}]
        assert (elsewhere.asked, enricher.calls) == ([[1, 3], [2]], [])
        assert await lookup.get(3) == {"x": 3}
        assert enricher.calls == [3]
    assert (elsewhere.flushed, elsewhere.closed) == (1, 1)
