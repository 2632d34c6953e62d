"""Draws the diagrams of the pages as SVG: `python tools/diagrams.py` writes them into docs/pictures.

A diagram is a function that places boxes, arrows and words on a canvas by hand, in pixels from the upper left corner.
Nothing is measured, so the same diagram is the same file everywhere, and a test compares the two. The colours follow
the reader's choice of a light or a dark page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"

STYLE = """
svg { background: #ffffff }
text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933 }
.bold { font-weight: 600 }
.small { font-size: 13px; fill: #52606d }
.code { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12.5px }
rect { fill: #f5f7fa; stroke: #9aa5b1 }
.area { fill: none; stroke: #9aa5b1; stroke-dasharray: 5 4 }
.ours { fill: #e3f0fb; stroke: #1f77b4 }
.outside { fill: #fdf1e3; stroke: #d97a12 }
.bad { fill: #fbe3e6; stroke: #c8324a }
.waits { fill: #fdf6dd; stroke: #b8912a }
path { fill: none; stroke: #52606d; stroke-width: 1.5 }
.limit { stroke: #c8324a; stroke-dasharray: 6 4 }
marker path { fill: #52606d; stroke: none }
@media (prefers-color-scheme: dark) {
  svg { background: #1e2129 }
  text { fill: #e4e7eb }
  .small { fill: #b0b8c1 }
  rect { fill: #2a2f38; stroke: #7b8794 }
  .area { fill: none }
  .ours { fill: #17384f; stroke: #58a6dc }
  .outside { fill: #47331a; stroke: #e89a45 }
  .bad { fill: #4d2229; stroke: #ea7384 }
  .waits { fill: #443b1c; stroke: #d3b04f }
  path { stroke: #b0b8c1 }
  marker path { fill: #b0b8c1 }
}
"""

LINE = 18
"""Pixels from one line of words to the next."""


class Canvas:
    """Collects the elements of a diagram.

    Args:
        width, height: of the diagram.
        title: what it shows, in a sentence, for readers who do not see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._parts: list[str] = []
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
        )

    def words(self, x: float, y: float, *lines: str, look: str = "", anchor: str = "middle") -> None:
        """Lines of words, the first with its foot at y; one between back-quotes is code."""
        for number, line in enumerate(lines):
            code = line.startswith("`")
            looks = " ".join(filter(None, [look, "code" if code else ""]))
            self._parts.append(
                f'<text x="{x:g}" y="{y + number * LINE:g}" text-anchor="{anchor}" class="{looks}">'
                f"{escape(line.strip('`') if code else line)}</text>"
            )

    def box(self, x: float, y: float, width: float, height: float, *lines: str, look: str = "") -> None:
        """A box with lines of words in its middle, the first of them bold."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7" class="{look}"/>')
        top = y + height / 2 - (len(lines) - 1) * LINE / 2 + 5
        for number, line in enumerate(lines):
            self.words(x + width / 2, top + number * LINE, line, look="" if number else "bold")

    def area(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """A dashed frame around other boxes, with a name above its upper left corner."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10" class="area"/>')
        self.words(x + 4, y - 7, name, look="small", anchor="start")

    def arrow(self, *points: tuple[float, float], both: bool = False) -> None:
        """A line through points, with a tip at its end, or at both ends."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        ends = 'marker-end="url(#tip)"' + (' marker-start="url(#tip)"' if both else "")
        self._parts.append(f'<path d="M{path}" {ends}/>')

    def line(self, *points: tuple[float, float], look: str = "") -> None:
        """A line through points without a tip."""
        self._parts.append(f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}" class="{look}"/>')

    def svg(self) -> str:
        """The text of the file. The tip of an arrow's start points backwards."""
        text = self._head + "\n".join(self._parts) + "\n</svg>\n"
        return text.replace('orient="auto"', 'orient="auto-start-reverse"')


def batch() -> str:
    """What happens to a batch of rows."""
    canvas = Canvas(
        980,
        330,
        "A batch of rows goes from Spark to a Python worker. Its distinct keys are looked up, unless they are null, in "
        "the cache, or being looked up already. The answers become columns, and the batch goes back to Spark.",
    )
    canvas.area(10, 40, 130, 275, "Spark (JVM)")
    canvas.area(160, 40, 660, 275, "Python worker")
    canvas.area(840, 40, 130, 275, "outside")
    canvas.box(22, 70, 106, 70, "a batch", "of rows", "in Arrow")
    canvas.box(172, 70, 104, 70, "distinct", "keys", look="ours")
    canvas.box(306, 70, 104, 70, "null?", look="ours")
    canvas.box(436, 70, 104, 70, "in the", "cache?", look="ours")
    canvas.box(566, 70, 104, 70, "looked up", "already?", look="ours")
    canvas.box(696, 70, 112, 70, "call", "one key", "or many", look="ours")
    canvas.box(852, 70, 106, 70, "database", "or service", look="outside")
    for left, right in ((128, 172), (276, 306), (410, 436), (540, 566), (670, 696)):
        canvas.arrow((left, 105), (right, 105))
    canvas.arrow((808, 105), (852, 105), both=True)
    for middle, words in ((358, "a miss"), (488, "that answer"), (618, "the same answer"), (752, "answer")):
        canvas.arrow((middle, 140), (middle, 232))
        canvas.words(middle + 6, 202, words, look="small", anchor="start")
    canvas.words(808, 60, "`capacity, rate_limit, timeout, retry`", look="small", anchor="end")
    canvas.box(306, 232, 502, 56, "the outcome of each key", "found, missing, failed or timed out", look="ours")
    canvas.box(172, 225, 104, 70, "columns", "built once", "for a key", look="ours")
    canvas.box(22, 225, 106, 70, "the batch", "with", "new columns")
    canvas.arrow((306, 260), (276, 260))
    canvas.arrow((172, 260), (128, 260))
    canvas.words(556, 307, "keys in progress in the worker: at most buffer", look="small")
    return canvas.svg()


def deadline() -> str:
    """How long a key may take, and each of its calls."""
    canvas = Canvas(
        980,
        300,
        "The timeout of a key runs from its first call, over all attempts and the waits between them. The attempt "
        "timeout is for each call. No attempt is planned past the deadline.",
    )
    zero, end = 190, 860
    canvas.line((zero, 62), (end, 62))
    for x in (zero, end):
        canvas.line((x, 54), (x, 70))
    canvas.words((zero + end) / 2, 50, "`timeout: one deadline for the key`", look="bold")
    canvas.line((end, 72), (end, 270), look="limit")
    canvas.words(end, 288, "deadline", look="small")
    canvas.words(170, 117, "this key", "gets an answer", anchor="end")
    canvas.box(zero, 95, 110, 44, "call 1 fails", look="bad")
    canvas.box(zero + 110, 103, 80, 28, "back-off", look="waits")
    canvas.box(zero + 190, 95, 170, 44, "call 2 is cut", look="bad")
    canvas.box(zero + 360, 103, 120, 28, "back-off", look="waits")
    canvas.box(zero + 480, 95, 140, 44, "call 3: answer", look="ours")
    canvas.line((zero + 190, 154), (zero + 360, 154))
    for x in (zero + 190, zero + 360):
        canvas.line((x, 148), (x, 160))
    canvas.words(zero + 275, 173, "`attempt_timeout`")
    canvas.words(zero + 370, 88, "a key in back-off holds no slot", look="small")
    canvas.words(170, 214, "this key", "fails at once", anchor="end")
    canvas.box(zero, 195, 110, 44, "call 1 fails", look="bad")
    canvas.box(zero + 110, 203, 160, 28, "back-off", look="waits")
    canvas.box(zero + 270, 195, 110, 44, "call 2 fails", look="bad")
    canvas.line((zero + 380, 217), (zero + 760, 217), look="limit")
    canvas.words(zero + 386, 207, "the next call would begin after the deadline", look="small", anchor="start")
    canvas.words(zero + 766, 222, "x", anchor="start")
    return canvas.svg()


def secrets() -> str:
    """Who connects from where, and who knows the secret."""
    canvas = Canvas(
        980,
        380,
        "The driver asks PostgreSQL for names and types. The Python workers make the lookups. Both read the secret "
        "from their own environment; the job, the plans and the event log do not hold it.",
    )
    canvas.area(10, 40, 250, 210, "driver")
    canvas.box(26, 60, 218, 84, "your program", "a function reads the secret", "from the environment")
    canvas.box(26, 170, 218, 60, "environment", "the secret", look="waits")
    canvas.arrow((135, 170), (135, 144))
    canvas.area(390, 40, 250, 210, "every executor")
    canvas.box(406, 60, 218, 84, "Python workers", "one for each task", "and each enrich", look="ours")
    canvas.box(406, 170, 218, 60, "environment", "the secret", look="waits")
    canvas.arrow((515, 170), (515, 144))
    canvas.box(790, 60, 180, 84, "the outside system", "PostgreSQL, Redis,", "an HTTP service", look="outside")
    canvas.arrow((244, 102), (406, 102))
    canvas.words(325, 92, "the job", look="bold")
    canvas.words(325, 122, "the function,", "no secret", look="small")
    canvas.arrow((624, 102), (790, 102))
    canvas.words(714, 92, "lookups", look="bold")
    canvas.words(714, 122, "pool_size connections", "for each worker", look="small")
    canvas.box(26, 300, 598, 56, "Spark: plans, web UI, event log, logs at INFO", "no secret, however you give it")
    canvas.arrow((135, 250), (135, 300))
    canvas.arrow((515, 250), (515, 300))
    canvas.arrow((244, 134), (274, 134), (274, 275), (880, 275), (880, 144))
    canvas.words(762, 248, "PostgreSQL only: names and types,", "once, before a job runs", look="small")
    return canvas.svg()


def limits() -> str:
    """The limit of a task and that of a job."""
    canvas = Canvas(
        980,
        320,
        "With capacity=100 each of four tasks may make 100 calls at once, and the source sees up to 400. With "
        "rate_limit=100 the four tasks together start at most 100 calls a second.",
    )
    for left, limit, each, seen in (
        (10, "capacity=100; four tasks at a time", "100 at once", "up to 400 calls at once"),
        (510, "rate_limit=100; four tasks at a time", "what it needs", "up to 100 calls a second"),
    ):
        canvas.area(left, 40, 300, 265, limit)
        for task in range(4):
            top = 58 + task * 60
            canvas.box(left + 16, top, 90, 46, f"task {task + 1}")
            canvas.box(left + 150, top, 134, 46, each, look="ours")
            canvas.line((left + 106, top + 23), (left + 150, top + 23))
            canvas.arrow((left + 284, top + 23), (left + 350, 172 + (task - 1.5) * 16))
        canvas.box(left + 350, 122, 110, 100, "the source", *seen.split(" calls "), look="outside")
    return canvas.svg()


def budget() -> str:
    """Who asks whom under a budget."""
    canvas = Canvas(
        980,
        330,
        "Workers ask a coordinator some times a second, beside their calls: they report what started, and get permits "
        "for the next second. With these they call the source without asking anyone. The coordinator is the driver of "
        "the application, or a Redis or PostgreSQL that several applications share.",
    )
    canvas.box(350, 16, 280, 64, "the coordinator of the budget", "driver, Redis or PostgreSQL", look="ours")
    canvas.words(
        646, 42, "what has started when, who wants how much,", "what the source has said", look="small", anchor="start"
    )
    for left, name, held in (
        (40, "worker 1", "30 permits"),
        (360, "worker 2", "10 permits"),
        (680, "worker 3", "none, it is idle"),
    ):
        canvas.box(left, 156, 260, 58, name, held)
    canvas.arrow((170, 156), (400, 80), both=True)
    canvas.arrow((490, 156), (490, 80), both=True)
    canvas.arrow((810, 156), (580, 80), both=True)
    canvas.words(
        24, 112, "5 to 20 times a second:", "\u201c12 calls started, I want 40\u201d", look="small", anchor="start"
    )
    canvas.box(350, 268, 280, 46, "the source", look="outside")
    canvas.arrow((170, 214), (170, 291), (350, 291))
    canvas.arrow((490, 214), (490, 268))
    canvas.words(182, 262, "calls, as long as permits last", look="small", anchor="start")
    return canvas.svg()


def chain() -> str:
    """A chain of enrichments."""
    canvas = Canvas(
        980,
        240,
        "Two enrichments behind each other: every task has one Python worker for both. Each has its own calls, "
        "connections and cache. Rows that have left the first go on to the second at once.",
    )
    canvas.area(10, 40, 960, 100, "one task of Spark: enrich(enrich(df, customers, ...), prices, ...)")
    canvas.box(26, 60, 120, 60, "rows", "Spark (JVM)")
    canvas.box(206, 60, 190, 60, "enrich: customers", "a Python worker", look="ours")
    canvas.box(576, 60, 190, 60, "enrich: prices", "the same worker", look="ours")
    canvas.box(826, 60, 128, 60, "more columns", "Spark (JVM)")
    for left, right in ((146, 206), (396, 576), (766, 826)):
        canvas.arrow((left, 90), (right, 90))
    for middle, name, own in (
        (301, "customers", "capacity, connections and cache of its own"),
        (671, "prices", "capacity, connections and cache of its own"),
    ):
        canvas.arrow((middle, 120), (middle, 180), both=True)
        canvas.box(middle - 80, 180, 160, 40, name, look="outside")
        canvas.words(middle + 10, 162, own, look="small", anchor="start")
    return canvas.svg()


def queue() -> str:
    """The queue of an ordered operator, and who puts elements in and takes them out."""
    canvas = Canvas(
        980,
        232,
        "Elements enter the ordered queue at one end and their calls start. Calls end in any order; results leave at "
        "the other end in the order of the elements.",
    )
    canvas.box(10, 70, 130, 62, "input", "read one by one")
    canvas.arrow((140, 101), (198, 101))
    canvas.words(169, 60, "`try_put`")
    canvas.area(205, 40, 560, 130, "OrderedStreamElementQueue: no more elements than its capacity")
    entries = (("5", "running", "waits"), ("4", "complete", "ours"), ("watermark", "complete", "ours"))
    for place, (name, state, look) in enumerate((*entries, ("2", "running", "waits"), ("1", "complete", "ours"))):
        canvas.box(218 + place * 109, 66, 98, 62, name, state, look=look)
    canvas.words(703, 154, "head", look="small")
    canvas.words(267, 154, "tail", look="small")
    canvas.arrow((765, 101), (826, 101))
    canvas.words(796, 60, "emitter")
    canvas.box(832, 70, 138, 62, "output", "1 leaves now")
    canvas.words(485, 198, "2 still runs: the watermark and 4 are complete, and wait behind it.")
    canvas.words(485, 216, "A full queue takes nothing more, so the input waits: backpressure.", look="small")
    return canvas.svg()


def segments() -> str:
    """The segments of the unordered queue."""
    canvas = Canvas(
        980,
        212,
        "Watermarks divide the elements into segments. Within a segment records leave as they complete; no record "
        "passes a watermark.",
    )
    rooms = (
        (20, "segment 3: after W2", ("7 complete", "6 running"), None),
        (345, "segment 2: between W1 and W2", ("5 complete", "4 complete"), "W2"),
        (670, "segment 1: before W1", ("2 running", "1 complete"), "W1"),
    )
    for left, name, records, watermark in rooms:
        canvas.area(left, 40, 290, 92, name)
        for place, record in enumerate(records):
            look = "waits" if record.endswith("running") else "ours"
            canvas.box(left + 12 + place * 98, 56, 90, 60, *record.split(), look=look)
        if watermark is not None:
            canvas.box(left + 212, 56, 66, 60, watermark, look="outside")
    canvas.words(490, 164, "Only the first segment gives outputs: 1 leaves now, 2 when its call has returned, then W1.")
    canvas.words(490, 184, "4 and 5 are complete and leave when W1 has left, in the order in which they completed.")
    return canvas.svg()


def windows() -> str:
    """The life of a window of event time."""
    canvas = Canvas(
        980,
        264,
        "A window takes elements from its start, fires when the watermark reaches its last millisecond, fires again "
        "for each late element, and is removed when the allowed lateness is over.",
    )
    left, end, over, right = 60, 460, 740, 950
    canvas.box(left, 62, end - left, 50, "TimeWindow(0, 10000)", "elements are added", look="ours")
    canvas.box(end, 62, over - end, 50, "late", "each element fires it anew", look="waits")
    canvas.box(over, 62, right - over, 50, "removed", "elements are dropped", look="bad")
    canvas.arrow((left, 170), (right, 170))
    canvas.words(right, 192, "watermark", anchor="end", look="small")
    for place, time, what in (
        (left, "0", ""),
        (end, "9,999", "fires: end - 1"),
        (over, "14,999", "state and timers go: end - 1 + allowed_lateness"),
    ):
        canvas.line((place, 40), (place, 176), look="limit")
        canvas.words(place, 192, time)
        canvas.words(place, 212, what, look="small")
    canvas.words(480, 246, "At each element and timer the trigger says CONTINUE, FIRE, PURGE or FIRE_AND_PURGE.")
    return canvas.svg()


def house() -> str:
    """The folders of the package, each above those that it may import."""
    floors: tuple[tuple[tuple[str, str], ...], ...] = (
        (("enrichers", "PostgreSQL, HTTP, Redis, tables, functions: public names only"),),
        (("spark", "enrich, send, register_lookup, async_udf, map_partitions, plan"),),
        (
            ("spark/driver", "options become tasks"),
            ("spark/worker", "links of a task"),
            ("testing", "fakes, contracts"),
        ),
        (("lookup", "keys, memory, caches"), ("operator", "elements in, results out"), ("loop", "thread, channels")),
        (("engine", "calls in flight: lanes, deadlines, attempts, batches"),),
        (("quota/coordinators", "where budgets are kept"), ("function, enricher", "what users write")),
        (
            ("quota", "what is allowed"),
            ("journal", "answers in files"),
            ("services", "errors, secrets"),
            ("timers, windows", "when"),
            ("trace", "pictures of runs"),
            ("telemetry", "spans"),
        ),
        (
            ("arrow", "keys, columns"),
            ("policies", "retries, limits"),
            ("state", "heap, RocksDB"),
            ("queues", "order"),
            ("metrics, view", "figures, watermarks"),
        ),
        (("errors, elements, clock, checks, hints, fingerprint, lazy", "what all others use"),),
    )
    height, left, width = 62, 10, 960
    canvas = Canvas(
        980,
        len(floors) * height + 20,
        "The folders of the package on nine floors, from the words that all use at the bottom to enrichers on top. "
        "A folder imports only what is below it.",
    )
    for floor, rooms in enumerate(floors):
        room = (width - 12 * (len(rooms) - 1)) / len(rooms)
        for number, (name, what) in enumerate(rooms):
            look = "outside" if name == "enrichers" else "ours" if name in ("engine", "lookup", "operator") else ""
            lines = (name, what) if what else (name,)
            canvas.box(left + number * (room + 12), 10 + floor * height, room, height - 12, *lines, look=look)
    return canvas.svg()


DIAGRAMS: dict[str, Callable[[], str]] = {
    "batch.svg": batch,
    "budget.svg": budget,
    "chain.svg": chain,
    "deadline.svg": deadline,
    "house.svg": house,
    "limits.svg": limits,
    "queue.svg": queue,
    "secrets.svg": secrets,
    "segments.svg": segments,
    "windows.svg": windows,
}


def main(arguments: list[str] | None = None) -> int:
    """Write the diagrams; the exit status."""
    parser = argparse.ArgumentParser(prog="diagrams", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("--out", type=Path, default=PICTURES, metavar="DIRECTORY", help="docs/pictures by default")
    directory: Path = parser.parse_args(arguments).out
    for name, draw in DIAGRAMS.items():
        (directory / name).write_text(draw(), encoding="utf-8")
        print(directory / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
