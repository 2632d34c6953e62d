"""Benchmarks. Each measures two sides in one run, side by side.

    python -m benchmarks            S1 to S21 and some more with a target, in one table
    python -m benchmarks all        all of them
    python -m benchmarks S5 S7      only these
    python -m benchmarks.peers      the same work beside other libraries (see `peers`)
    python -m benchmarks.growth     how the cost grows with the work (see `growth`)

The other modules here contain measurements: functions named after what they measure (``s5``, ``s12``). They take no
arguments and yield rows ``(id, what, ours, theirs, ratio, target)``: two figures with their units, their ratio, and the
target of the ratio, such as ``"<= 0.5"``, ``">= 0.8"``, ``"<= 1/15"`` or ``"= 1"``. The target is "" if there is none.
Times of two runs cannot be compared, ratios can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = Sequence[str | float]
Rows = Iterable[Row]
