"""Figures of runs as metrics: sums over the runs that have ended in this process, and those that go on.

They are read when a reader of metrics asks, on its thread. So they cost a run nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from asyncio_operator.figures import FIGURES, Figures, Kind
from asyncio_operator.telemetry.spans import SCOPE

UNITS = {Kind.ANSWERS: "{key}", Kind.KEYS: "{key}", Kind.CALLS: "{call}", Kind.SECONDS: "s"}
"""The kinds of figures that are metrics here, with their units."""

EXPORTED = [name for name, one in FIGURES.items() if one.kind in UNITS and name != "calls"]
"""`spans` counts calls."""

Read = Callable[[], Figures]


class Sums:
    """The sums of this process, by the name of what is called."""

    def __init__(self) -> None:
        self._ended: dict[str, Counter[str]] = {}
        self._running: dict[object, tuple[str, Read]] = {}
        self._lock = threading.Lock()
        meter = metrics.get_meter(SCOPE)
        for name in EXPORTED:
            figure, callback = FIGURES[name], partial(self._observe, name)
            dotted = f"{SCOPE}.{name.replace('_', '.')}"
            meter.create_observable_counter(dotted, [callback], UNITS[figure.kind], figure.help)

    @contextmanager
    def running(self, name: str, read: Read) -> Iterator[None]:
        """Count a run while it goes on, and what it has done afterwards."""
        mark = object()
        self._running[mark] = name, read
        try:
            yield
        finally:
            figures = read()
            counted = {figure: getattr(figures, figure) for figure in EXPORTED}
            # In one step: in between, a reader would count the run twice.
            with self._lock:
                self._ended.setdefault(name, Counter()).update(counted)
                del self._running[mark]

    def _observe(self, figure: str, _options: CallbackOptions) -> list[Observation]:
        with self._lock:
            sums = Counter({name: ended[figure] for name, ended in self._ended.items()})
            running = list(self._running.values())
        for name, read in running:
            sums[name] += getattr(read(), figure)
        return [Observation(total, {f"{SCOPE}.called": name}) for name, total in sums.items()]


_sums: Sums | None = None


def running(name: str, read: Read) -> AbstractContextManager[None]:
    """See `Sums.running`; for the sums of this process."""
    global _sums
    if _sums is None:
        _sums = Sums()
    return _sums.running(name, read)
