"""The growth of cost with the work. Each measurement is shown beside the law that it should follow.

    python -m benchmarks.growth                        some minutes: prints a table
    python -m benchmarks.growth --full                 also 10,000,000 rows
    python -m benchmarks.growth --out docs/pictures    draws growth.svg

The laws: a row costs the same, however many there are; a key is looked up once per worker with a cache; the rate of
calls follows Little's law (at most `capacity / latency` calls per second, up to the limit of one loop); memory does not
grow; the garbage collection that ends each task walks through the keys that are cached on the heap. Some laws need
prices (of a row, of a key), which are taken from points of the chart. These points prove nothing, so the table shows
"fit" in place of their ratio. Each point is the faster of two runs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from asyncio_operator import AsyncWaitOperator, Cache
from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.column_places import ColumnCache
from benchmarks.measuring import passed, peak_memory, seconds_of
from benchmarks.peers.report import check_places, paste
from enrichers import FunctionEnricher
from examples.stage import ProblemError, Stage, local_spark, run, workspace
from tools import schemes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGIN, END = "<!-- growth: begin -->", "<!-- growth: end -->"
"""Around the table on the page that shows it."""

Function = Callable[[Any], Awaitable[Mapping[str, Any] | None]]

TURNS = 2
CAPACITY = 100
BATCH = 10_000
"""The number of rows in a batch of Spark."""

ANSWER = {"answer": 1}


@dataclass(slots=True)
class Chart:
    """The measurements of one law.

    Attributes:
        points: the growing quantity, the measured value, and the value of the law.
        fit: the growing quantity at the points from which prices were taken.
    """

    grows: str
    measured: str
    law: str
    points: list[tuple[float, float, float]] = field(default_factory=list)
    fit: Sequence[float] = ()


# -- in Spark


def _rows(spark: SparkSession, full: bool) -> Chart:
    counts = [10**4, 10**5, 10**6] + ([10**7] if full else [])
    chart = Chart("rows", "seconds", "a start and a price for each row", fit=(counts[0], counts[-1]))
    seconds = [_seconds(partial(_enriched, spark.range(0, count, 1, 2), _at_once)) for count in counts]
    price = (seconds[-1] - seconds[0]) / (counts[-1] - counts[0])
    start = seconds[0] - price * counts[0]
    chart.points = [(count, spent, start + price * count) for count, spent in zip(counts, seconds, strict=True)]
    return chart


def _partitions(spark: SparkSession, full: bool) -> Chart:
    chart = Chart("partitions", "seconds", "Little: rows x latency / calls at once, beside Spark's own")
    count, latency, cores = 100_000, 0.005, 2
    for partitions in (1, 2, 4, 8, 16, 32, 64):
        rows = spark.range(0, count, 1, partitions)
        own = _seconds(partial(rows.mapInArrow, passed, rows.schema))
        spent = _seconds(partial(_enriched, rows, _waits(latency)))
        chart.points.append((partitions, spent, own + count * latency / (CAPACITY * min(partitions, cores))))
    return chart


def _keys(spark: SparkSession, full: bool) -> Chart:
    """A million rows in two tasks. Lookups answer at once, and every key is cached."""
    count, counts = 500_000, [10, 100, 1_000, BATCH, 100_000, 1_000_000]
    law = "the rows, and a price for each remembered and each looked-up key"
    chart = Chart("distinct keys", "seconds", law, fit=(counts[0], BATCH, counts[-1]))
    seconds = []
    for keys in counts:
        rows = spark.range(0, 2 * count, 1, 2).selectExpr(f"id % {keys} AS id")
        seconds.append(_seconds(partial(_remembered, rows, keys)))
    chart.points = list(zip(counts, seconds, _law_of_keys(count, counts, seconds), strict=True))
    return chart


def _law_of_keys(count: int, counts: list[int], seconds: list[float]) -> Iterator[float]:
    """A task finds the distinct keys of each of its batches, and calls for each of them once.

    The price of a call is that of the last point, where each key occurs once. The price of a cache hit is that of the
    point with as many keys as a batch has rows.
    """
    asking = (seconds[-1] - seconds[0]) / count
    remembering = (seconds[counts.index(BATCH)] - seconds[0] - BATCH * asking) / (count - BATCH)
    for keys in counts:
        asked = min(keys, count)
        yield seconds[0] + asked * asking + (count // BATCH * min(keys, BATCH) - asked) * remembering


def _memory(spark: SparkSession, full: bool) -> Chart:
    """The memory of the Python worker of one partition. It measures itself near its end. Every run has a new worker."""
    counts = [10**4, 10**5, 10**6] + ([10**7] if full else [])
    chart = Chart("rows in a partition", "MB at most", "constant", fit=counts[:1])
    peaks = []
    for count in counts:
        rows = _enriched(spark.range(0, count, 1, 1), peak_memory, "peak double").agg({"peak": "max"}).collect()
        peaks.append(rows[0][0])
    chart.points = [(count, peak, peaks[0]) for count, peak in zip(counts, peaks, strict=True)]
    return chart


def _enriched(rows: DataFrame, function: Function, schema: str = "answer long") -> DataFrame:
    from asyncio_operator.spark import enrich

    return enrich(rows, FunctionEnricher(function, schema), on="id", capacity=CAPACITY)


_runs = iter(range(1_000_000))


def _remembered(rows: DataFrame, keys: int) -> DataFrame:
    """The rows, enriched with a cache that no other run shares, because each run has a different enricher."""
    from asyncio_operator.spark import enrich

    number = next(_runs)

    async def call(_key: int) -> dict[str, int]:
        return {"answer": number}

    enricher = FunctionEnricher(call, "answer long")
    return enrich(rows, enricher, on="id", capacity=CAPACITY, cache=Cache(max_rows=keys))


def _seconds(frame: Callable[[], DataFrame]) -> float:
    """The seconds of the faster of two runs."""
    return min(seconds_of(frame()) for _ in range(TURNS))


# -- in one loop


def _latency() -> Chart:
    chart = Chart("latency, ms", "calls/s", "Little: min(capacity / latency, ceiling)")
    ceiling = _rate(0.0, CAPACITY, 50_000)
    for latency in (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1):
        law = min(CAPACITY / latency, ceiling)
        chart.points.append((latency * 1000, _rate(latency, CAPACITY, law), law))
    return chart


def _capacity() -> Chart:
    chart = Chart("capacity", "calls/s", "Little: min(capacity / 10 ms, ceiling)")
    latency = 0.01
    ceiling = _rate(0.0, 5_000, 50_000)
    for capacity in (1, 5, 20, 100, 500, 1_000, 5_000):
        law = min(capacity / latency, ceiling)
        chart.points.append((capacity, _rate(latency, capacity, law), law))
    return chart


def _garbage(full: bool) -> Chart:
    """The CPU time of a garbage collection beside a cache of answers in columns. PySpark collects garbage at the end of
    each task."""
    counts = [1, 10**4, 10**5, 2 * 10**5] + ([10**6] if full else [])
    chart = Chart("keys cached", "ms of collection", "at most that beside one key", fit=counts[:1])
    pauses = []
    for count in counts:
        with closing(_cached(count)):
            pauses.append(_pause() * 1000)
    chart.points = [(count, pause, pauses[0]) for count, pause in zip(counts, pauses, strict=True)]
    return chart


def _pause() -> float:
    """The median time of a garbage collection."""
    gc.collect()
    times = []
    for _ in range(9):
        started = time.thread_time()
        gc.collect()
        times.append(time.thread_time() - started)
    return median(times)


def _cached(keys: int) -> ColumnCache:
    """A cache in memory, filled by calls of 1,000 keys."""
    cache = ColumnCache(Cache(max_rows=keys), None)
    for start in range(0, keys, 1000):
        table = pa.table({"number": range(start, start + 1000), "name": [f"name {n}" for n in range(1000)]})
        cache.learn(ArrowKeys(pa.array(range(start, start + 1000))), in_order(table), AnswerCheck(table.schema, True))
    return cache


def _rate(latency: float, capacity: int, expected: float) -> float:
    """Calls per second of the faster of two runs. Each takes about a second, and at least a few rounds of calls."""
    count = round(max(expected, 4 * capacity))
    return max(count / asyncio.run(_run(latency, capacity, count)) for _ in range(TURNS))


async def _run(latency: float, capacity: int, count: int) -> float:
    async def call(value: int) -> int:
        # A timer costs the loop more than the operator does: the ceiling is that of a loop with timers.
        await asyncio.sleep(latency or 1e-9)
        return value

    started = time.perf_counter()
    async for _ in AsyncWaitOperator(call, capacity=capacity).process(range(count)):
        pass
    return time.perf_counter() - started


# -- measured functions; they are sent to the workers


async def _at_once(_key: int) -> dict[str, int]:
    return ANSWER


def _waits(latency: float) -> Function:
    async def call(_key: int) -> dict[str, int]:
        await asyncio.sleep(latency)
        return ANSWER

    return call


# -- tables and pictures


def _measured(full: bool) -> Iterator[Chart]:
    for measure in (_latency, _capacity, partial(_garbage, full)):
        yield _told(measure)
    with workspace("growth") as directory, local_spark(directory) as spark:
        spark.range(2).count()
        _seconds(partial(_enriched, spark.range(0, 10_000, 1, 2), _at_once))
        for on_spark in (_rows, _partitions, _keys):
            yield _told(partial(on_spark, spark, full))
    with workspace("growth") as directory, local_spark(directory, spark__python__worker__reuse="false") as spark:
        yield _told(partial(_memory, spark, full))


def _told(measure: Callable[[], Chart]) -> Chart:
    started = time.perf_counter()
    chart = measure()
    print(f"{chart.grows}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return chart


def _table(charts: list[Chart]) -> Iterator[str]:
    yield BEGIN
    yield f"Measured on {os.cpu_count()} cores, Python {sys.version.split()[0]}."
    for chart in charts:
        yield from ("", f"| {chart.grows} | {chart.measured} | law: {chart.law} | measured / law |")
        yield "| ---: | ---: | ---: | ---: |"
        for x, measured, law in chart.points:
            ratio = "fit" if x in chart.fit else f"{measured / law:.2f}"
            yield f"| {_figure(x)} | {_figure(measured)} | {_figure(law)} | {ratio} |"
    yield END


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read(page: Path) -> list[Chart]:
    """The charts of the tables on a page, with the figures as they are written there."""
    table = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    charts: list[Chart] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[2].startswith("law: "):
            charts.append(Chart(cells[0], cells[1], cells[2].removeprefix("law: ")))
        elif len(cells) == 4 and cells[0][:1].isdecimal():
            x, measured, law = (float(cell.replace(",", "")) for cell in cells[:3])
            charts[-1].points.append((x, measured, law))
    return charts


def _picture(charts: list[Chart], path: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    rcParams["svg.hashsalt"] = "growth"
    drawing = Figure(figsize=(8.3, 9.6), layout="constrained")
    panels = [panel for line in drawing.subplots(4, 2) for panel in line]
    for panel in panels[len(charts) :]:
        panel.axis("off")
    for chart, panel in zip(charts, panels, strict=False):
        xs, measured, laws = zip(*chart.points, strict=True)
        panel.plot(xs, laws, color="#9aa5b1", linewidth=3, label="the law")
        panel.plot(xs, measured, "o", color="#1f77b4", markersize=6, label="measured")
        panel.set_title(f"{chart.measured} by {chart.grows}", fontsize=10, fontweight="bold", loc="left", pad=27)
        # On at most two lines, and at the width of the panel: a longer text would push the next panel away.
        law = panel.text(0, 1.03, fill(chart.law, 52), fontsize=8.5, color="#66707a", transform=panel.transAxes)
        law.set_in_layout(False)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_ylim(min(*measured, *laws) / 4, max(*measured, *laws) * 4)
        panel.xaxis.set_major_formatter(FuncFormatter(_short))
        panel.yaxis.set_major_formatter(FuncFormatter(_short))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.tick_params(labelsize=8.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, loc="lower left")
    drawing.supxlabel("Both axes of each chart are logarithmic.", fontsize=9)
    drawing.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    schemes.follow(path)


def _short(value: float, _position: int | None = None) -> str:
    """A number of an axis: 0.1, 1, 100, 10k, 1M."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


def main() -> int:
    """The exit status: 0, also if a law is missed, because a busy machine may miss it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="also 10,000,000 rows")
    parser.add_argument("--page", type=Path, help="a page that shows the tables: it gets the new ones")
    parser.add_argument("--out", type=Path, help="the directory in which growth.svg is drawn, such as docs/pictures")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: draw the tables of --page into --out")
    options = parser.parse_args()

    def program(_stage: Stage) -> None:
        drawing = None if options.out is None else options.out / "growth.svg"
        check_places(options.page, BEGIN, END, drawing)
        if options.redraw:
            if options.page is None or drawing is None:
                raise ProblemError("--redraw needs --page, whose tables it reads, and --out, where it draws")
            _picture(_read(options.page), drawing)
            return
        charts = list(_measured(options.full))
        lines = list(_table(charts))
        print(*lines, sep="\n")
        if options.page is not None:
            paste(lines, options.page)
        if drawing is not None:
            _picture(charts, drawing)

    return run(program)


if __name__ == "__main__":
    sys.exit(main())
