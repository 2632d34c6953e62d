"""Speeds, each measured side by side with what it is held against, in one run.

    python -m benchmarks            all of them, in one table
    python -m benchmarks S5 S7      only these
    python -m benchmarks.peers      the same work beside other libraries (see `peers`)
    python -m benchmarks.growth     how the cost grows with the work (see `growth`)

Any other module here is a list of measurements: its functions are named after what they measure (``s5``, ``s12``), take
no arguments, and yield rows ``(id, what, ours, theirs, ratio, target)``: two figures with their units, the ratio that
the target speaks of, and the target, such as ``"<= 0.5"``, ``">= 0.8"``, ``"<= 1/15"`` or ``"= 1"``; "" for a row that
informs and has no target. Times of two runs cannot be compared, ratios can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Row = Sequence[str | float]
Rows = Iterable[Row]
