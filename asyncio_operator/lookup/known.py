"""Places with answers outside of the task, such as a cache that workers share: what a task asks of them.

A source asks them before calls are made (`asking`), and `Places` passes on the answers of calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from asyncio_operator.arrow.key_identity import identity
from asyncio_operator.lookup.key_batch import ONE_CALL, Calls
from asyncio_operator.state.entries import ABSENT

MOST: Final = 500_000
"""Keys of `NotedKeys`: about 60 MB. A key that is forgotten is written once more, which changes no answer."""

HELD: Any = object()  # Instead of an answer of `renew`: another worker looks the key up.


class KnownAnswers(ABC):
    """A place with answers. All methods are called on the loop of the run."""

    source: str  # What the outcomes say of where they came from.
    keeps: str | None = None  # A name for where it keeps answers of caches too; None: it does not.

    @property
    @abstractmethod
    def most(self) -> int:
        """The maximum number of keys in the next question."""

    @abstractmethod
    async def find(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The answers for canonical keys, aligned with them: as `AnswerCheck` returns them, or ABSENT."""

    async def renew(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The same for keys whose old answer is to be replaced: a new answer, `HELD`, or ABSENT to call for it."""
        return [ABSENT] * len(keys)

    @abstractmethod
    def learn(self, keys: Sequence[Any], answers: Sequence[Any], calls: Calls = ONE_CALL) -> None:
        """Calls have given these answers. It must not take long: writing goes on in the background."""

    @property
    def has_room(self) -> bool:
        """Whether calls may be made, because their answers can be kept. It is asked before each call."""
        return True

    async def room(self) -> None:
        """Wait until there is room. What it raises ends the run."""

    def keep(self, key: Any, answer: Any, came: float) -> bool:
        """Keep an answer of a cache or of another place, for which no call was made. Returns whether there is room.

        Args:
            came: when it came from the source, in seconds since the epoch.
        """
        return True

    @abstractmethod
    async def flush(self) -> None:
        """Write what was learnt. The run has ended. It limits its own time."""

    async def close(self) -> None:
        """Disconnect. A place of a cache is kept with it from run to run until then."""


class NotedKeys:
    """The keys of a cache that were used last, and whose answers a journal has already: an answer of the cache is
    written once."""

    def __init__(self, most: int) -> None:
        self._most = min(most, MOST)
        self._names: OrderedDict[Any, None] = OrderedDict()

    def add(self, key: Any) -> bool:
        """Note that a canonical key is used. Returns whether it is new."""
        name = _name(key)
        is_new = name not in self._names
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._most:
            self._names.popitem(last=False)
        return is_new

    def remove(self, key: Any) -> None:
        """Forget a key."""
        self._names.pop(_name(key), None)


def _name(key: Any) -> Any:
    """What is held of a key: of text a hash of 64 bits. If two texts have the same hash, one answer is not written."""
    return hash(key) if type(key) is str else identity(key)
