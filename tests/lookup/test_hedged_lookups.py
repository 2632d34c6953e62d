"""H1 to H3 for keys: in a pipeline of a task, and through `Lookup`; on virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import Cache, ConfigurationError, EnricherError, Hedge, ResultError
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.key_batch import Answer
from tests.lookup.helpers import CHECK, Recorded, batches_of, look_up, now, outcomes_of
from tests.operator.helpers import virtual

ALL = Hedge(2.0, extra=0.5)


class Slow(Recorded):
    """The first call takes 100 seconds, or fails at the end of `fails`; others take one."""

    def __init__(self, fails: float | None = None, max_batch: int = 1) -> None:
        super().__init__(self._answer, max_batch)
        self.fails = fails

    async def _answer(self, key: Any) -> Any:
        if len(self.calls) == 1:
            await asyncio.sleep(self.fails or 100.0)
            raise EnricherError("slow")
        await asyncio.sleep(1.0)
        return [{"x": one} for one in key] if isinstance(key, list) else {"x": key}


@pytest.mark.parametrize("max_batch", [1, 3])
@virtual
async def test_H3_the_status_counts_both_calls(max_batch: int) -> None:
    batches = batches_of(3)
    enricher = Slow(max_batch=max_batch)
    consumer = await look_up(enricher, batches, timed=True, hedge=ALL, capacity=4, ordered=False)
    outcomes = outcomes_of(batches[0])
    assert all(type(outcome) is Answer and outcome.source == "call" for outcome in outcomes)
    assert [outcome.attempts for outcome in outcomes] == ([2, 1, 1] if max_batch == 1 else [2, 2, 2])
    assert outcomes[0].latency == 3.0
    pipeline = consumer.pipeline
    assert (pipeline.figures.hedged, pipeline.figures.hedges_won, pipeline.figures.retries) == (1, 1, 0)
    assert pipeline.figures.calls == len(enricher.calls) == (4 if max_batch == 1 else 2)
    assert enricher.running == 0


@virtual
async def test_H1_all_who_wait_for_a_key_share_the_copy() -> None:
    enricher = Slow()
    async with Lookup(enricher, hedge=ALL) as lookup:
        assert await asyncio.gather(*[lookup.get(7) for _ in range(5)]) == [{"x": 7}] * 5
    assert (enricher.calls, now()) == ([7, 7], 3.0)


@virtual
async def test_L2_when_the_last_one_who_waits_is_gone_both_calls_are_cancelled() -> None:
    enricher = Recorded(lambda key: asyncio.sleep(100.0))
    async with Lookup(enricher, hedge=ALL) as lookup:
        waiting = [asyncio.ensure_future(lookup.get(7)) for _ in range(2)]
        await asyncio.sleep(5.0)
        assert enricher.running == 2
        waiting[0].cancel()
        await asyncio.sleep(1.0)
        assert enricher.running == 2
        waiting[1].cancel()
        await asyncio.sleep(1.0)
        assert enricher.running == 0
        assert enricher.calls == [7, 7]


@virtual
async def test_L2_when_the_copy_has_failed_the_first_call_is_cancelled() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(1.0 if len(enricher.calls) == 2 else 100.0)
        raise EnricherError("lost")

    enricher = Recorded(answer)
    async with Lookup(enricher, hedge=ALL) as lookup:
        waiting = asyncio.ensure_future(lookup.get(7))
        await asyncio.sleep(5.0)
        assert enricher.running == 1
        waiting.cancel()
        await asyncio.sleep(0.5)
        assert enricher.running == 0


@virtual
async def test_L6_a_refresh_in_the_background_is_one_call() -> None:
    async def answer(key: Any) -> Any:
        await asyncio.sleep(1.0 if len(enricher.calls) == 1 else 30.0)
        return {"x": len(enricher.calls)}

    enricher = Recorded(answer)
    async with Lookup(enricher, hedge=ALL, cache=Cache(refresh_after=10.0, expire_after_write=100.0)) as lookup:
        assert await lookup.get(7) == {"x": 1}
        await asyncio.sleep(20.0)
        assert await lookup.get(7) == {"x": 1}
        await asyncio.sleep(40.0)
        assert enricher.calls == [7, 7]
        assert await lookup.get(7) == {"x": 2}


def test_H2_an_enricher_whose_calls_must_not_be_repeated_refuses_hedge() -> None:
    enricher = Slow()
    enricher.idempotent = False
    with pytest.raises(ConfigurationError, match=r"hedge is Hedge.*, and Slow has idempotent = False; hedge"):
        Lookup(enricher, hedge=ALL)
    Lookup(enricher)


@virtual
async def test_L9_O5_a_run_ends_whose_hedged_call_gave_an_answer_that_a_cache_on_disk_cannot_keep(
    tmp_path: Path,
) -> None:
    async def wrong(key: Any) -> Any:
        return {"x": "no number"}

    cache = Cache(store="rocksdb", directory=tmp_path)
    done = await look_up(Recorded(wrong), [[1], [2]], cache=cache, check=CHECK, hedge=Hedge(), timed=True)
    assert [type(outcome.error) for batch in done.batches for outcome in outcomes_of(batch)] == [ResultError] * 2
