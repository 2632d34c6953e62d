"""What is in flight in a run, to be taken up by another one. It knows nothing but elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """The inputs that a run had not emitted yet, in an order in which replay is correct.

    It is picklable if the elements are. It may be restored more than once, with other options, and in another mode.

    Attributes:
        elements: pairs of an element (a value, a `Record` or a `Watermark`) and the attempts that it has used: those
            that have ended in failure.
    """

    elements: tuple[tuple[Any, int], ...] = ()

    def __len__(self) -> int:
        """How many elements there are."""
        return len(self.elements)
