"""X2: in unordered mode rows overtake each other only within their segment of event time."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import Batching, ConfigurationError
from asyncio_operator.spark import enrich
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.worker.rows import Gate, Segmenter
from enrichers import FunctionEnricher
from tests.spark.worker.tasks import chained, rows_of, task_for

TIMES = st.lists(st.lists(st.integers(0, 30) | st.none(), max_size=6), max_size=6)


@given(times=TIMES, delay=st.integers(0, 12), data=st.data())
def test_X2_no_row_overtakes_one_that_it_could_make_late_and_all_rows_leave(
    times: list[list[int | None]], delay: int, data: st.DataObject
) -> None:
    segmenter = Segmenter(delay)
    batches: list[Any] = [
        SimpleNamespace(number=i, segments=segmenter.number(pa.array(some, pa.int64())), left=np.zeros(len(some), bool))
        for i, some in enumerate(times)
    ]
    answered = [np.zeros(len(some), bool) for some in times]
    gate, emitted, gone = Gate(), list[tuple[int, int]](), list[int]()

    def deliver(i: int, ended: bool) -> None:
        passed = list(gate.pass_through(i, batches[i], ended, lambda i: answered[i] & ~batches[i].left))
        assert i in [number for number, _, _ in passed], "who delivers a batch hears of it"
        for number, leaving, done in passed:
            emitted.extend((number, int(row)) for row in np.flatnonzero(leaving))
            if done:
                gone.append(number)

    rows = [(i, row) for i, some in enumerate(times) for row in range(len(some))]
    for i, row in data.draw(st.permutations(rows)):
        answered[i][row] = True
        if data.draw(st.booleans()) and not answered[i].all():
            deliver(i, False)
        if answered[i].all():
            deliver(i, True)
    for i, some in enumerate(times):
        if not some:
            deliver(i, True)
    assert sorted(emitted) == rows
    assert sorted(gone) == list(range(len(times)))
    place = {row: at for at, row in enumerate(emitted)}
    for before in rows:
        for after in rows[rows.index(before) :]:
            mine, other = times[before[0]][before[1]], times[after[0]][after[1]]
            if mine is not None and other is not None and other - mine > delay:
                assert place[before] <= place[after]


@given(times=TIMES, delay=st.integers(0, 12))
def test_X2_segments_are_as_long_as_can_be(times: list[list[int | None]], delay: int) -> None:
    segmenter = Segmenter(delay)
    numbered = [
        (number, time)
        for some in times
        for number, time in zip(segmenter.number(pa.array(some, pa.int64())).tolist(), some, strict=True)
    ]
    segments: dict[int, list[int]] = {}
    for number, time in numbered:
        segments.setdefault(number, []).extend([] if time is None else [time])
    assert list(segments) == list(range(len(segments)))
    for number, inside in segments.items():
        assert not inside or max(inside) - min(inside) <= delay
        if number:
            grown = [*segments[number - 1], inside[0]]
            assert max(grown) - min(grown) > delay


async def look_up(key: Any) -> Any:
    return {"x": key} if isinstance(key, int) else [{"x": one} for one in key]


@pytest.mark.parametrize("buffer", [1, 2, 3])
@pytest.mark.parametrize("batching", [1, 2])
def test_X2_keys_whose_rows_have_to_stay_leave_room_for_the_one_that_these_wait_for(buffer: int, batching: int) -> None:
    enricher = FunctionEnricher(look_up, "x long")
    enricher.lookup_many = look_up  # type: ignore[assignment,method-assign]
    batched = Batching(2) if batching == 2 else None
    task = task_for(enricher, event_time=1, ordered=False, buffer=buffer, capacity=buffer, batching=batched)
    keys = [1, 2, 3, 1, 2, 4, 3, 1, 5, 6, 7, 1]
    batches = [pa.record_batch({"id": keys, "at": range(12 * i, 12 * i + 12)}) for i in range(3)]
    assert [row["at"] for row in rows_of(chained([task], batches))] == list(range(36))


def test_X4_event_time_and_delay_are_checked_on_the_driver(spark: Any) -> None:
    enricher = FunctionEnricher(look_up, "x long")
    df = spark.range(5).selectExpr("id", "timestamp_millis(id) AS at", "CAST(id AS int) AS small")
    for mode in ("ordered", "unordered"):
        for options, message in (
            ({"event_time": "when"}, "event_time names 'when', which is not a column"),
            ({"event_time": 5}, "event_time is 5; it must be the name of a column"),
            ({"event_time": "small"}, "event_time names 'small', which is int; it must be a timestamp"),
            ({"watermark_delay": 5}, "watermark_delay is 5 without event_time"),
            (
                {"event_time": "at", "watermark_delay": "5 seconds"},
                "watermark_delay is '5 seconds'; it must be a number",
            ),
            ({"event_time": "at", "watermark_delay": -1}, "watermark_delay is -1; it must be a number of seconds"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                enrich(df, enricher, on="id", mode=mode, **options)
        stream = spark.readStream.format("rate").load().withWatermark("timestamp", "7 seconds")
        for said, delay in ((None, 7_000_000), (0.5, 500_000)):
            given_options = EnrichOptions(on="value", mode=mode, event_time="timestamp", watermark_delay=said)
            layout = enrich_task(stream.schema, enricher, given_options)[0].layout
            assert (layout.event_time, layout.delay) == ((None, 0) if mode == "ordered" else (0, delay))
        for column in ("at", "id"):
            rows = enrich(df, enricher, on="id", mode=mode, event_time=column, watermark_delay=timedelta(seconds=1))
            assert sorted(row.x for row in rows.collect()) == [0, 1, 2, 3, 4]
