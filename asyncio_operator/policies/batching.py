"""How many elements go into one call, and which failing batches are worth splitting.

The default size is where a query that takes its keys as an array has used up the price of its round trip; the default
linger is short against such a round trip, and long enough for the elements that come at the same moment.

It knows neither timers nor calls: the operator forms the batches (law B1).
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncio_operator.errors import CircuitOpenError, said
from asyncio_operator.policies.options import Duration, duration, positive_int


@dataclass(frozen=True, slots=True)
class Batching:
    """A call is made with up to `max_size` elements.

    Attributes:
        max_size: a batch of this many is called at once.
        linger: how long its first element waits for others, in seconds or as a timedelta; 0: until the loop is idle.

    Raises:
        ConfigurationError: a value is wrong.
    """

    max_size: int = 1000
    linger: Duration = 0.002

    def __post_init__(self) -> None:
        positive_int("max_size", self.max_size)
        object.__setattr__(self, "linger", duration("linger", self.linger))


def splits(error: Exception) -> bool:
    """Whether a batch that failed of this is called again in halves: one of its elements may be to blame (law B4).

    A refusal, a timeout, a lost connection, overload, what any other key would have met too, and whatever the source
    itself calls worth repeating are nobody's fault in the batch, and more calls would make them worse.
    """
    if isinstance(error, CircuitOpenError | TimeoutError | ConnectionError):
        return False
    return not (
        said(error, "overload", bool)
        or said(error, "any_key", bool)
        or said(error, "retry_after") is not None
        or said(error, "retryable") is True
    )
