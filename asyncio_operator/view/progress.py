"""How a running job shows itself: one line that moves in a terminal, a bar in a notebook, lines in a file."""

from __future__ import annotations

import contextlib
import html
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from asyncio_operator.clock import monotonic

if TYPE_CHECKING:
    from asyncio_operator.figures import EnrichmentStatistics

MOVES = 1.0  # Seconds between two states of a line that moves, or of a bar. Tasks report as often.
Tasks = tuple[int, int]  # Finished tasks, and all tasks, of the stages that run.


@dataclass(frozen=True, slots=True)
class Moment:
    """What a job has done."""

    seconds: float  # Since the start.
    tasks: Tasks
    figures: EnrichmentStatistics
    rate: float  # Rows a second since the last moment.

    def line(self) -> str:
        """All figures, for a file."""
        return f"{self._start()}: {self.figures}"

    def short(self) -> str:
        """The figures that matter most, the first ones first."""
        now = self.figures
        parts = [f"{now.rows:,} rows", f"{self.rate:,.0f} a second", f"{now.in_flight:,} calls in flight"]
        parts += [f"{now.failures:,} failed"] if now.failures else []
        parts += [f"{now.retries:,} retries"] if now.retries else []
        parts += [f"p99 {1000 * now.attempt_latency.p99:,.0f} ms"] if now.calls else []
        return f"{self._start()}: {', '.join(parts)}"

    def _start(self) -> str:
        done, all_of_them = self.tasks
        return f"{self.seconds:.0f} s" + (f", {done} of {all_of_them} tasks" if all_of_them else "")


class Text:
    """Lines of text. With a `width` it is one line of a terminal, which the next moment overwrites. Without `out`, as
    in a process without standard error, nothing is shown."""

    def __init__(self, out: TextIO | None, width: Callable[[], int] | None = None) -> None:
        self.moves = width is not None  # Whether each moment takes the place of the one before it.
        self._out = out
        self._width = width
        self._is_begun = False

    def show(self, moment: Moment) -> None:
        if self._out is None:
            return
        if self._width is None:
            print(moment.line(), file=self._out, flush=True)
            return
        # A line as wide as the terminal would begin another one.
        room = max(1, self._width() - 1)
        print("\r" + moment.short()[:room].ljust(room), end="", file=self._out, flush=True)
        self._is_begun = True

    def close(self) -> None:
        """Go on below the line that moves."""
        if self._is_begun:
            print(file=self._out, flush=True)


class Bar:
    """A bar in a notebook. `display` is `IPython.display`."""

    moves = True

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, moment: Moment) -> None:
        done, tasks = moment.tasks
        share = f' value="{done}" max="{tasks}"' if tasks else ' value="1" max="1"'
        content = self._display.HTML(f"<div><progress{share}></progress> {html.escape(moment.short())}</div>")
        if self._handle is None:
            self._handle = self._display.display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self) -> None:
        """The last moment stays as it is."""


def display_here() -> Text | Bar:
    """The display for where this program runs."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    if running is not None and hasattr(running, "kernel"):
        from importlib import import_module

        return Bar(import_module("IPython.display"))
    with contextlib.suppress(Exception):  # It is closed, or the object of another program that takes text.
        if sys.stderr is not None and sys.stderr.isatty():
            return Text(sys.stderr, lambda: shutil.get_terminal_size().columns)
    return Text(sys.stderr)


class Watch:
    """Shows moments from a thread of its own, until it is stopped."""

    def __init__(
        self,
        every: float,  # Seconds between two lines. What moves does so each second, or more often if this is less.
        statistics: Callable[[], EnrichmentStatistics],  # Returns the figures so far.
        tasks: Callable[[], Tasks],  # Returns the tasks of the stages that run. It may raise.
        display: Text | Bar,
    ) -> None:
        self._statistics = statistics
        self._tasks = tasks
        self._display = display
        self._pause = min(every, MOVES) if display.moves else every
        self._begun = self._at = monotonic()
        self._rows = self._shown = statistics().rows
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="asyncio-operator-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the last moment, and end."""
        self._over.set()
        self._thread.join()
        self._look(last=True)
        # What it writes to may be gone, as a closed pipe is. That must not end a job.
        with contextlib.suppress(Exception):
            self._display.close()

    def _run(self) -> None:
        while not self._over.wait(self._pause):
            self._look()

    def _look(self, last: bool = False) -> None:
        now, figures = monotonic(), self._statistics()
        rate = max(0, figures.rows - self._rows) / max(now - self._at, 1e-9)
        self._at, self._rows = now, figures.rows
        # A job may be shorter than a pause, so the last line is shown in any case.
        if not (last or self._display.moves) and figures.rows == self._shown:
            return
        self._shown = figures.rows
        # Spark may raise here, for example because it is being stopped. That must not end a job.
        with contextlib.suppress(Exception):
            self._display.show(Moment(now - self._begun, self._tasks(), figures, rate))
