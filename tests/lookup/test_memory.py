"""L12: a task remembers its answers for some seconds, in bounded memory; errors and what is too old are asked again."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Cache, Retry
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.testing import VirtualTimeLoop
from tests.lookup.helpers import Recorded, at_once, batch_of, look_up, now, outcomes_of
from tests.operator.helpers import virtual

WAYS: dict[str, dict[str, Any]] = {"plain": {}, "managed": {"retry": Retry(1)}}


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
    return enricher.calls, [outcomes_of(batch) for batch in done.batches]


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
    assert outcomes_of(made[1]) == [{"x": 1}]


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
async def test_L12_an_answer_of_a_batch_that_still_waits_for_a_slow_key_is_not_reused_for_longer(way: str) -> None:
    calls, _ = await asked([[1, 2, 9], [2, 1], [1]], way, slow=9, pause=40.0)
    assert sorted(calls) == [1, 1, 2, 9]


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


@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_L12_a_failure_in_a_batch_that_is_still_open_is_asked_again(way: str) -> None:
    calls, _ = await asked([[13, 1], [13]], way, slow=1)
    assert sorted(calls) == [1, 13, 13]


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
    assert [cache.get(key) for key in (0, 1, 2)] == [{"x": 0}, ABSENT, {"x": 2}]


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
        assert [outcomes_of(batch) for batch in done.batches] == [[{"x": key} for key in batch] for batch in batches]
        return enricher

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        enricher = runner.run(run_all())
    assert enricher.most <= buffer or not ordered
