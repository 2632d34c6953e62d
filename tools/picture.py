"""Draws the picture of the README: `asyncio.gather` for each Arrow batch, beside `enrich`, on one axis of time.

    .venv/bin/python tools/picture.py                 prints both times, and draws docs/pictures/gather.svg
    .venv/bin/python tools/picture.py --output x.png

Both sides are jobs of Spark with one task. They make the same calls, as many at once, over the same batches, and a
`Trace` has the times of each call: `enrich` records it, and the other side is recorded by hand. Nothing is simulated
but the service. Of each side the fastest of some runs is drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from asyncio_operator.trace import Trace
from examples.stage import Stage, local_spark, run, workspace
from tools import schemes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "gather.svg"

KEYS = 72
BATCH = 12
"""Rows in an Arrow batch, and so the calls at once of `gather`. `enrich` gets the same number as its capacity."""

SLOW = (4, 19, 30, 41, 53, 61)
USUAL_SECONDS, SLOW_SECONDS = 0.01, 0.1
ROUNDS = 5


def seconds(key: int) -> float:
    """How long the service takes for a key."""
    return SLOW_SECONDS if key in SLOW else USUAL_SECONDS


def gathered(spark: SparkSession) -> Trace:
    """A run with `asyncio.gather` for each batch, as it is written by hand."""

    def with_times(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        async def ask(key: int) -> tuple[float, float]:
            started = time.time()
            await asyncio.sleep(seconds(key))
            return started, time.time()

        async def ask_all(keys: list[int]) -> list[tuple[float, float]]:
            return await asyncio.gather(*[ask(key) for key in keys])

        for batch in batches:
            keys = batch["id"].to_pylist()
            times = asyncio.run(ask_all(keys))
            columns = [
                pa.array(keys, pa.int64()),
                *(pa.array(column, pa.float64()) for column in zip(*times, strict=True)),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "started", "ended"])

    rows = spark.range(0, KEYS, 1, 1).mapInArrow(with_times, "id long, started double, ended double").collect()
    trace = Trace()
    trace.started(min(row.started for row in rows))
    for row in rows:
        trace.admitted(row.started, row.id, row.id)
        trace.record("attempt_started", row.started, row.id, 1)
        trace.record("attempt_ended", row.ended, row.id, 1, "result")
        trace.record("completed", row.ended, row.id, "result")
        trace.record("emitted", row.ended, row.id)
    trace.record("ended", max(row.ended for row in rows))
    return trace


def enriched(spark: SparkSession) -> Trace:
    """A run of `enrich`, with as many calls at once."""
    from asyncio_operator.spark import enrich
    from enrichers import enricher

    @enricher("answer long")
    async def ask(key: int) -> dict[str, int]:
        await asyncio.sleep(seconds(key))
        return {"answer": key}

    trace = Trace()
    enrich(spark.range(0, KEYS, 1, 1), ask, on="id", capacity=BATCH, trace=trace).collect()
    return trace


def milliseconds(trace: Trace) -> float:
    """From the first call to the end of the last."""
    calls = [event.time for event in trace.events() if event.kind in ("attempt_started", "attempt_ended")]
    return 1e3 * (max(calls) - min(calls))


def fastest(way: Callable[[SparkSession], Trace], spark: SparkSession) -> Trace:
    """The run that no other program has disturbed."""
    return min((way(spark) for _ in range(ROUNDS)), key=milliseconds)


def draw(sides: dict[str, Trace], path: Path) -> None:
    """Both sides beside each other, with what they have in common above them."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = path.stem
    figure = Figure(figsize=(8.3, 4.3), layout="constrained")
    panels = figure.subplots(1, len(sides), sharex=True, sharey=True)
    for panel, (name, trace) in zip(panels, sides.items(), strict=True):
        trace.draw(panel, f"{name}: {milliseconds(trace):.0f} ms", legend=False)
        panel.title.set_fontsize(12)
        panel.title.set_fontweight("bold")
        panel.set_xlabel("milliseconds")
    panels[0].annotate(
        "the next batch waits for one slow call",
        (1.04 * 1e3 * SLOW_SECONDS, SLOW[0]),
        xytext=(24, 0),
        textcoords="offset points",
        arrowprops={"arrowstyle": "->", "color": "#66707a"},
        color="#3d4650",
        verticalalignment="center",
    )
    panels[0].set_ylabel("keys, in the order of the rows")
    panels[1].set_ylabel("")
    panels[0].set_xlim(0, 1.02 * max(1e3 * trace.events()[-1].time for trace in sides.values()))
    figure.suptitle(
        f"{KEYS} calls, at most {BATCH} at once: {1e3 * USUAL_SECONDS:.0f} ms each, and {len(SLOW)} of them "
        f"{1e3 * SLOW_SECONDS:.0f} ms. A bar is a call.",
        fontsize=10,
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    schemes.follow(path)


def main(arguments: list[str] | None = None) -> int:
    """Run both sides and draw them; the exit status."""
    parser = argparse.ArgumentParser(prog="picture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=PICTURE, metavar="PICTURE", help="an .svg or a .png")
    path: Path = parser.parse_args(arguments).output

    def program(stage: Stage) -> None:
        directory = stage.enter(workspace("picture"))
        spark = stage.enter(local_spark(directory, spark__sql__execution__arrow__maxRecordsPerBatch=str(BATCH)))
        sides = {"asyncio.gather for each batch": fastest(gathered, spark), "enrich": fastest(enriched, spark)}
        for name, trace in sides.items():
            print(f"{name}: {milliseconds(trace):.0f} ms")
        draw(sides, path)
        print(f"Picture: {path}")

    return run(program)


if __name__ == "__main__":
    sys.exit(main())
