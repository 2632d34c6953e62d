"""Notices that calls with several elements always fail, though each of their elements alone is answered.

Law B4 divides a failed batch until the element to blame is alone. If none is to blame, all results are right, and each
element costs a call of its own: only the log can say so. The sign is a pair that failed while both of its elements were
answered alone, in a run in which no call with several elements has succeeded. It is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from asyncio_operator.errors import describe_error

logger = logging.getLogger("asyncio_operator.calls")

WATCHED: Final = 1_000
"""Elements that are watched at a time. One that passes its deadline is never answered, and keeps its place."""


class FailingBatches:
    """Watches the calls of a run.

    Args:
        name: of what is called.
        method: what a call with several elements is called.
        watching: whether calls may have several elements.
    """

    def __init__(self, name: str, method: str, watching: bool = True) -> None:
        self._name = name
        self.method = method
        self._watching = watching
        # The elements of pairs that failed: each with the error, and those of its pair that were answered alone.
        self._pairs: dict[Any, tuple[BaseException, list[Any]]] = {}

    def divided(self, elements: Sequence[Any], error: BaseException) -> None:
        """A call for several elements has failed, and each half of it is called."""
        if len(elements) == 2 and self._watching and len(self._pairs) < WATCHED:
            self._pairs.update(dict.fromkeys(elements, (error, [])))

    def answered(self, elements: Sequence[Any]) -> None:
        """A call for elements has succeeded."""
        if not self._watching:
            return
        if len(elements) > 1:
            self.end()
        elif (pair := self._pairs.pop(elements[0], None)) is not None:
            error, alone = pair
            alone.append(elements[0])
            if len(alone) == 2:
                self.end()
                self._warn(error)

    def failed(self, elements: Sequence[Any]) -> None:
        """Elements have failed, and are not divided any more."""
        for element in elements:
            self._pairs.pop(element, None)

    def end(self) -> None:
        """A call for several elements has succeeded: nothing is watched any more."""
        self._watching = False
        self._pairs.clear()

    def _warn(self, error: BaseException) -> None:
        logger.warning(
            "%s: every call of %s with several values has failed so far, and the same values succeed one by one. So no "
            "value is to blame, and each one costs a call of its own. Correct how several values are asked for and how "
            "their answer is read, or turn batching off with a batch size of 1. The last error: %s",
            self._name,
            self.method,
            describe_error(error),
        )
