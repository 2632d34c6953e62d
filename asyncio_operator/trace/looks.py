"""How the parts of a life look: one table for the picture and the page.

The colours differ in grey and for every common kind of colour blindness. A tall bar is a call, which holds
a slot. A flat bar is an element that waits.
"""

from __future__ import annotations

from typing import NamedTuple

from asyncio_operator.trace.stories import Life, Story


class Look(NamedTuple):
    """Colour, words for the legend, top and bottom of the bar as parts of its row, and whether it is hatched."""

    colour: str
    label: str
    top: float = 0.1
    bottom: float = 0.9
    hatched: bool = False

    @property
    def is_call(self) -> bool:
        """Whether the bar is tall."""
        return self.bottom - self.top > 0.6


SPANS = {
    "waiting": Look("#c9ced6", "waits for its turn", 0.38, 0.62),
    "held": Look("#a9d3f5", "complete, not yet emitted", 0.3, 0.7),
    "backing_off": Look("#dfb438", "backs off", 0.25, 0.75, hatched=True),
    "result": Look("#1f77b4", "call gave a result"),
    "error": Look("#c8324a", "call failed"),
    "timed_out": Look("#f08a24", "call timed out"),
    "cancelled": Look("#8d7f9c", "call cancelled"),
    "running": Look("#6fae78", "call still running"),
    "ignored": Look("#7a3b00", "cut, still holds its slot", 0.7, 0.95, hatched=True),
}
"""In the order in which they are drawn: later ones cover earlier ones."""

MARKS = {
    "emitted": Look("#101418", "emitted"),
    "skipped": Look("#8a1c7c", "skipped"),
    "failed": Look("#c8324a", "failed, which ended the run"),
}

WATERMARK = Look("#6a3d9a", "watermark")
CIRCUIT = {
    "open": Look("#f6cfd3", "circuit open"),
    "half_open": Look("#fbe8c9", "circuit half open"),
}


def mark_of(life: Life) -> tuple[str, float] | None:
    """How and when a life ended: a key of `MARKS` and a time; None if it has not ended."""
    if life.outcome == "failed" and life.completed is not None:
        return "failed", life.completed
    if life.emitted is None:
        return None
    return ("skipped" if life.outcome == "skipped" else "emitted"), life.emitted


def rows_before(story: Story) -> list[int]:
    """For each watermark, the number of elements before it."""
    places, row = [], 0
    for mark in story.watermarks:
        while row < len(story.lives) and story.lives[row].element < mark.element:
            row += 1
        places.append(row)
    return places
