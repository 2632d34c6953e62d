"""L1 to L6 in the pipeline of a task, on virtual time: keys that are in the cache, on their way, or called for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import Cache, EnricherError, FixedBackoff, Hedge, ResultError, Retry
from asyncio_operator.arrow.column_memory import MOST_KEYS
from asyncio_operator.lookup import Lookup, open_batch
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.column_places import ColumnCache
from enrichers import TableEnricher
from tests.lookup import helpers
from tests.lookup.helpers import CHECK, Consumer, Recorded, at_once, in_a_second, now, outcomes_of
from tests.operator.helpers import virtual


async def look_up(enricher: Recorded, keys: Sequence[Sequence[Any]], cache: Any, **options: Any) -> Consumer:
    return await helpers.look_up(enricher, keys, cache=cache, check=CHECK, **{"timed": True} | options)


@pytest.mark.parametrize("max_batch", [1, 4])
@virtual
async def test_L1_the_cache_goes_before_sharing_and_sharing_before_calls(max_batch: int) -> None:
    enricher = Recorded(in_a_second, max_batch)
    keys = [[1, 2], [2, 3], [1, 2, 3, 4]]
    done = await look_up(enricher, keys, Cache(), every=0.6)
    assert done.sources() == [["call"] * 2, ["shared", "call"], ["cache", "cache", "shared", "call"]]
    assert enricher.calls == ([1, 2, 3, 4] if max_batch == 1 else [[1, 2], [3], [4]])
    assert (done.figures.cache_hits, done.figures.shared, done.figures.calls) == (
        2,
        2,
        4 if max_batch == 1 else 3,
    )


@virtual
async def test_L6_a_refresh_holds_up_no_row_is_made_once_at_a_time_and_ended_before_the_run() -> None:
    async def slowly(key: Any) -> Any:
        await asyncio.sleep(3)
        return {"x": key}

    enricher = Recorded(slowly)
    done = await look_up(enricher, [[1]] * 4, Cache(refresh_after=1), every=2.0)
    assert done.sources() == [["call"], ["shared"], ["cache"], ["cache"]]
    assert (enricher.calls, done.figures.calls) == ([1, 1], 2)
    assert now() == pytest.approx(9)


@virtual
async def test_L6_a_refresh_that_fails_ends_no_run_and_is_counted() -> None:
    async def once(key: Any) -> Any:
        if len(enricher.calls) > 1:
            raise EnricherError("down")
        return {"x": key}

    enricher = Recorded(once)
    done = await look_up(enricher, [[1]] * 3, Cache(refresh_after=1), every=2.0, fail=True)
    assert done.sources() == [["call"], ["cache"], ["cache"]]
    assert enricher.calls == [1, 1, 1]
    assert (done.figures.failures, sum(done.figures.errors.values())) == (2, 2)


@virtual
async def test_L6_no_refresh_while_a_batch_waits_for_the_key_whose_answer_another_task_has_put_into_the_cache() -> None:
    async def answer(key: int) -> dict[str, int]:
        await asyncio.sleep(10)
        return {"x": key}

    enricher, cache = Recorded(answer), Cache(refresh_after=1)
    kept = open_cache(cache, "s", now)
    asyncio.get_running_loop().call_later(7, kept.put, 1, {"x": 1})
    await look_up(enricher, [[1], [1, 2]], kept, every=5)
    assert sorted(enricher.calls) == [1, 2]


@pytest.mark.parametrize("every", [0.5, 5.0])
@pytest.mark.parametrize("options", [{}, {"retry": Retry(2)}], ids=str)
@virtual
async def test_L5_L13_an_answer_of_a_batch_that_is_still_open_is_shared_until_it_expires(
    options: dict[str, Any], every: float
) -> None:
    async def answer(key: int) -> dict[str, int]:
        await asyncio.sleep(20 if key == 9 else 0.01)
        return {"x": key}

    enricher = Recorded(answer)
    options |= {"remember": 60.0, "timeout": None}
    await look_up(enricher, [[1, 9], [1, 2]], Cache(expire_after_write=1), every=every, **options)
    assert sorted(enricher.calls) == ([1, 1, 2, 9] if every > 1 else [1, 2, 9])


@virtual
async def test_X9_a_batch_that_is_all_in_the_cache_leaves_at_once() -> None:
    done = await look_up(Recorded(in_a_second), [[1, 2]] * 3, Cache(), every=2.0)
    assert [at for at, *_ in done.deliveries] == pytest.approx([3.0, 4.0, 6.0], abs=0.001)


@virtual
async def test_L6_what_stands_in_for_a_failure_is_told_as_stale_to_all_and_the_failure_with_it() -> None:
    async def once(key: Any) -> Any:
        await asyncio.sleep(1)
        if len(enricher.calls) > 1:
            raise EnricherError("down")
        return {"x": key}

    enricher = Recorded(once)
    cache = Cache(expire_after_write=1, stale_if_error=True)
    done = await look_up(enricher, [[1], [1], [1]], cache, every=2.4, retry=Retry(2, FixedBackoff(1.0)))
    stale = [outcomes_of(batch)[0] for batch in done.batches[1:]]
    assert [(told.answer, told.source, told.attempts, str(told.error)) for told in stale] == [
        ({"x": 1}, "stale", 2, "down"),
        ({"x": 1}, "shared", 2, "down"),
    ]
    assert (done.figures.retries, done.figures.shared, done.figures.cache_hits) == (1, 1, 0)


@virtual
async def test_H3_L6_a_stale_answer_says_that_two_calls_have_failed() -> None:
    async def once(key: Any) -> Any:
        await asyncio.sleep(1)
        if now() > 5:
            raise EnricherError("down")
        return {"x": key}

    cache, hedge = Cache(expire_after_write=1, stale_if_error=True), Hedge(0.5, extra=0.5)
    done = await look_up(Recorded(once), [[1], [1]], cache, every=2.4, hedge=hedge)
    stale = outcomes_of(done.batches[1])[0]
    assert (stale.answer, stale.source, stale.attempts) == ({"x": 1}, "stale", 2)


@pytest.mark.parametrize("wrong", [{"x": "text"}, "text", [{"x": 1}, {"x": 2**70}]])
@virtual
async def test_L6_L9_a_wrong_answer_is_never_kept_and_an_old_one_stands_in_for_it(wrong: Any) -> None:
    async def once(key: Any) -> Any:
        await asyncio.sleep(0.1)
        return {"x": key} if len(enricher.calls) == 1 else wrong

    for cache, told in (
        (Cache(refresh_after=1), ["call", "cache", "cache"]),
        (Cache(expire_after_write=1, stale_if_error=True), ["call", "stale", "stale"]),
    ):
        enricher = Recorded(once)
        done = await look_up(enricher, [[1], [1], [1]], cache, every=2.0)
        outcomes = [outcomes_of(batch)[0] for batch in done.batches]
        assert [outcome.answer for outcome in outcomes] == [{"x": 1}] * 3
        assert [outcome.source for outcome in outcomes] == told
        assert len(enricher.calls) == 3
        assert told[1] == "cache" or all(isinstance(outcome.error, ResultError) for outcome in outcomes[1:])


@virtual
async def test_latency_is_that_of_a_key_over_its_attempts_and_attempt_latency_that_of_a_call() -> None:
    async def at_the_second_attempt(key: Any) -> Any:
        await asyncio.sleep(1)
        if len(enricher.calls) == 1:
            raise EnricherError("down")
        return {"x": key}

    enricher = Recorded(at_the_second_attempt)
    done = await look_up(enricher, [[1]], Cache(), retry=Retry(2, FixedBackoff(3.0)))
    assert done.figures.latency.percentiles().max == pytest.approx(5.0)
    assert done.figures.attempt_latency.percentiles().max == pytest.approx(1.0)


def test_L7_a_cache_on_disk_is_warm_for_an_enricher_that_has_asked_its_source_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> list[dict[str, Any]]:
        return [{"k": 1, "x": 1}]

    enricher = TableEnricher(load, key="k")
    cache = Cache(store="rocksdb", directory=tmp_path)

    async def main() -> None:
        for one in (enricher, enricher, TableEnricher(load, key="k")):
            async with Lookup(one, cache=cache) as lookup:
                assert await lookup.get(1) == {"x": 1}

    asyncio.run(main())
    assert not caplog.text


# -- L13: the task's memory behind the cache

SMALL = [
    Cache(max_rows=1),
    Cache(max_rows=10, expire_after_write=60),
    Cache(max_rows=10, expire_after_access=60, stale_if_error=True),
    Cache(max_rows=10, missing_ttl=30, expire_after_write=500),
    Cache(max_rows=10, refresh_after=50),
    Cache(max_rows=10, cache_missing=False),
    Cache(max_rows=10, store="rocksdb", directory="/somewhere"),
]


@pytest.mark.parametrize("cache", SMALL, ids=str)
@pytest.mark.parametrize("missing", [False, True])
@virtual
async def test_L13_a_small_cache_costs_no_calls(cache: Cache, missing: bool, tmp_path: Path) -> None:
    if cache.store == "rocksdb":
        cache = replace(cache, directory=tmp_path)

    async def answer(key: Any) -> Any:
        return None if missing else {"x": key}

    enricher = Recorded(answer)
    keys = [list(range(30)), list(range(29, -1, -1)), list(range(30))]
    done = await look_up(enricher, keys, cache, remember=60.0, every=1.0)
    assert sorted(enricher.calls) == list(range(30))
    assert {one.source for batch in done.batches[1:] for one in outcomes_of(batch)} <= {"cache", "shared"}


@virtual
async def test_L13_a_small_cache_costs_no_calls_for_what_an_open_batch_has_an_answer_for() -> None:
    async def answers(keys: Sequence[int]) -> list[dict[str, int]]:
        await asyncio.sleep(20 if 9 in keys else 0.01)
        return [{"x": key} for key in keys]

    enricher = Recorded(answers, 2)
    options: dict[str, Any] = {"remember": 60.0, "timeout": None}
    await look_up(enricher, [[1, 2, 3, 4, 9], [1, 2, 3, 4]], Cache(max_rows=1), every=0.015, **options)
    assert enricher.calls == [[1, 2], [3, 4], [9]]


def test_L12_L13_a_task_remembers_what_a_cache_holds_unless_told_otherwise() -> None:
    assert Cache().max_rows == 100_000 <= MOST_KEYS


@pytest.mark.parametrize(
    ("cache", "missing", "life"),
    [
        (Cache(max_rows=1, expire_after_write=5), False, 5.0),
        (Cache(max_rows=1, expire_after_access=5), False, 5.0),
        (Cache(max_rows=1, refresh_after=5), False, 5.0),
        (Cache(max_rows=1, missing_ttl=5), True, 5.0),
        (Cache(max_rows=1, missing_ttl=5), False, 60.0),
        (Cache(max_rows=1, expire_after_write=5, missing_ttl=20), False, 5.0),
        (Cache(max_rows=1, expire_after_write=5, missing_ttl=20), True, 20.0),
        (Cache(max_rows=1, cache_missing=False), True, 60.0),
        (Cache(max_rows=1, cache_missing=False, expire_after_write=5), True, 5.0),
        (Cache(max_rows=1, expire_after_write=500), False, 60.0),
    ],
    ids=str,
)
@virtual
async def test_L13_an_answer_is_served_for_the_shorter_of_remember_and_the_expiry(
    cache: Cache, missing: bool, life: float
) -> None:
    async def answer(key: Any) -> Any:
        return None if missing else {"x": key}

    for ago, asked in ((life - 0.001, False), (life * 1.01 if life == 60 else life, True)):
        if ago < 0:
            continue
        enricher = Recorded(answer)
        # The second key pushes the first one out of the cache.
        await look_up(enricher, [[1], [2], [1]], cache, remember=60.0, every=ago / 2)
        assert (enricher.calls == [1, 2, 1]) is asked


@virtual
async def test_L13_an_answer_is_never_served_longer_than_the_cache_allows_whatever_its_age_there() -> None:
    # Answers that come within one block of the memory expire each for itself.
    enricher = Recorded(at_once)
    cache = Cache(max_rows=1, expire_after_write=10)
    await look_up(enricher, [[1], [2], [3], [4], [1, 2, 3]], cache, remember=60.0, every=2.5)
    assert enricher.calls == [1, 2, 3, 4, 1]
    enricher = Recorded(at_once)
    await look_up(enricher, [[key] for key in range(200)] + [[0], [1]], cache, remember=60.0, every=0.05)
    assert enricher.calls == [*range(200), 0, 1]


@pytest.mark.parametrize("at_once", [2, 1_000])
@virtual
async def test_L1_L8_what_another_run_has_been_answered_is_in_their_cache_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(key: int) -> Any:
        await asyncio.sleep(1.03 if key < 4 else key)
        return {"x": key}

    monkeypatch.setattr(open_batch, "AT_ONCE", at_once)
    cache, enricher = ColumnCache(Cache(), now), Recorded(answer)
    async with asyncio.TaskGroup() as group:
        # The second one asks between two searches for ready rows, for which answers wait.
        group.create_task(helpers.look_up(enricher, [[1, 2, 3, 9]], cache=cache))
        later = group.create_task(helpers.look_up(enricher, [[7], [1, 2, 3]], every=0.525, cache=cache, timed=True))
    assert later.result().sources() == [["call"], ["cache"] * 3]
    assert sorted(enricher.calls) == [1, 2, 3, 7, 9]


@virtual
async def test_L4_an_invalid_answer_ends_before_those_that_came_earlier_are_kept_and_their_order_counts() -> None:
    async def in_time(key: int) -> Any:
        await asyncio.sleep({2: 0.06, 4: 0.05, 5: 0.08}.get(key, 1))
        return 7 if key == 2 else {"x": key}

    enricher = Recorded(in_time)
    cache = ColumnCache(Cache(max_rows=1, expire_after_write=60, stale_if_error=True), now)
    runs = [helpers.lookups_of(enricher, keys, cache=cache, check=CHECK) for keys in ([[3, 4], [5]], [[1, 2]])]
    running = [asyncio.ensure_future(run.run()) for run in runs]
    await asyncio.sleep(0.09)
    await look_up(enricher, [[4]], cache)
    assert enricher.calls.count(4) == 2
    await asyncio.wait(running)
