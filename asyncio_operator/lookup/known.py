"""Places with answers outside of the task, such as a cache that workers share: what a task asks of them.

`KnownFirst` asks them before calls are made, and `PendingKeys` passes on the answers of calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

HELD: Any = object()
"""In place of an answer of `renew`: another worker looks the key up."""


class KnownAnswers(Protocol):
    """A place with answers. All methods are called on the loop of the run.

    Attributes:
        source: what the outcomes say of where they came from.
        most: the maximum number of keys in the next question.
        keeps: a name for where it keeps answers of caches too; None: it does not.
    """

    source: str

    @property
    def most(self) -> int: ...

    @property
    def keeps(self) -> str | None: ...

    async def find(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The answers for canonical keys, aligned with them: as `AnswerCheck` returns them, or ABSENT."""

    async def renew(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The same for keys whose old answer is to be replaced: a new answer, `HELD`, or ABSENT to call for it."""

    def note(
        self, key: Any, answer: Any, attempts: int, latency: float, weights: Mapping[str, float] | None = None
    ) -> None:
        """A call has answered. Called for every answer, so it must not take long: writing goes on in the background.

        Args:
            attempts: the calls that the answer took.
            latency: seconds of the last of them.
            weights: under a budget, what the key weighed beside its call, by unit.
        """

    @property
    def has_room(self) -> bool:
        """Whether calls may be made, because their answers can be noted. It is asked before each call."""

    async def room(self) -> None:
        """Wait until there is room. What it raises ends the run."""

    def keep(self, key: Any, answer: Any, came: float) -> bool:
        """Keep an answer of a cache or of another place, for which no call was made. Returns whether there is room.

        Args:
            came: when it came from the source, in seconds since the epoch.
        """

    async def flush(self) -> None:
        """Write what was noted. The run has ended. It limits its own time."""


class BehindCache(KnownAnswers, Protocol):
    """A place that belongs to a cache, and is kept with it from run to run."""

    async def close(self) -> None:
        """Disconnect."""
