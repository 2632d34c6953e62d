"""The time that state and timers go by: a clock in whole milliseconds, whose answers are checked.

A clock gives seconds as a float. One that gives none, or something that is no number, would otherwise fail far from
where it was passed in.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncio_operator.clock import Clock, milliseconds
from asyncio_operator.errors import StateError, describe


def now_of(clock: Clock | None) -> Callable[[], int]:
    """The clock in whole milliseconds; None is the system's. What is given raises StateError for no finite number.

    Raises:
        ConfigurationError: `clock` cannot be called.
    """
    read = milliseconds(clock)

    def now() -> int:
        try:
            return read()
        except (TypeError, ValueError, OverflowError) as error:
            raise StateError(
                f"the clock {describe(clock)} gave no time ({type(error).__name__}: {error}): "
                "a clock gives seconds as a finite float"
            ) from error

    return now
