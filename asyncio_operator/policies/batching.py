"""How many elements go into one call, and which failed batches are split.

At the default size, a query that takes its keys as an array has used up the advantage of one round trip for many keys.
The default linger is short compared with such a round trip, and long enough to gather elements that arrive together.
This module knows neither timers nor calls: the operator forms the batches (law B1).
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncio_operator.checks import Duration, duration, positive_int
from asyncio_operator.errors import CircuitOpenError, said
from asyncio_operator.policies.retry import refusal_wait


@dataclass(frozen=True, slots=True)
class Batching:
    """One call is made with up to `max_size` elements.

    Attributes:
        max_size: a batch of this size is called at once.
        linger: how long the first element waits for others, in seconds or as a timedelta. With 0 it waits until the
            event loop is idle.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    max_size: int = 1000
    linger: Duration = 0.002

    def __post_init__(self) -> None:
        positive_int("max_size", self.max_size)
        object.__setattr__(self, "linger", duration("linger", self.linger))


def splits(error: BaseException) -> bool:
    """Whether a batch that failed with this error is called again in halves, because one element may cause it (law B4).

    It is not split if no single element causes the error: a refusal, a timeout, a lost connection, overload, an error
    that any other key would meet too, or one that the source itself calls retryable. More calls would make these worse.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(splits(one) for one in error.exceptions)
    if isinstance(error, CircuitOpenError | TimeoutError | ConnectionError) or "IncompleteRead" in type(error).__name__:
        return False
    return not (refusal_wait(error) is not None or said(error, "any_key", bool) or said(error, "retryable") is True)
