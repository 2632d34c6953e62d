"""The options of State TTL, and no code that acts on them.

Source: Flink's ``StateTtlConfig`` (FLIP-25).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TypeVar

from asyncio_operator.checks import flag, positive_int
from asyncio_operator.clock import LIMIT
from asyncio_operator.errors import ConfigurationError, describe

LONGEST = LIMIT // 1000
"""The longest time to live, in seconds: 292 million years."""


class UpdateType(Enum):
    """Which accesses restart the time to live of an entry."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


class StateVisibility(Enum):
    """Whether an expired entry that is still stored is returned, once."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"


@dataclass(frozen=True, slots=True)
class CleanupIncrementally:
    """Looks at `size` entries on every access, with `every_record` also on every change of key, and removes the
    expired.

    The looks of several accesses are made together, and none while no entry can have expired (see the page on state).
    The default of 5 is Flink's: after a number of accesses that is a fifth of its entries the store was swept once.
    """

    size: int = 5
    every_record: bool = False

    def __post_init__(self) -> None:
        positive_int("size of CleanupIncrementally", self.size)
        flag("every_record of CleanupIncrementally", self.every_record)


@dataclass(frozen=True, slots=True)
class CleanupFullSnapshot:
    """Leaves expired entries out of snapshots; the live state keeps them."""


@dataclass(frozen=True, slots=True)
class CleanupInCompaction:
    """Removes every expired entry when the backend's ``compact()`` is called, and by itself if `every` is given.

    Once `every` entries may have expired, and a quarter of the state, each write looks at the next 256 entries until
    all were looked at. So the work for each write is bounded, and at most that number of expired entries stays while
    writes come. Expired entries are estimated from the times of writes.
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            positive_int("every of CleanupInCompaction", self.every, ", a number of entries, or None")


Cleanup = CleanupIncrementally | CleanupFullSnapshot | CleanupInCompaction
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """Time to live of a state's entries: a value, each list element, each map entry, an accumulator.

    Args:
        ttl: seconds, or a timedelta; from a millisecond to 2**63 - 1 of them. An entry is expired once this much time
            has passed.
        update_type: which accesses restart the time to live of an entry; the enum or its name.
        visibility: whether expired entries may be returned; the enum or its name.
        cleanup: one strategy, or several, or ``()`` for none beside removal on reading.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    ttl: float | timedelta
    update_type: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    visibility: StateVisibility = StateVisibility.NEVER_RETURN_EXPIRED
    cleanup: Cleanup | Sequence[Cleanup] = CleanupIncrementally()

    def __post_init__(self) -> None:
        if not _is_duration(self.ttl) or not 1 <= self.milliseconds < LIMIT:
            raise ConfigurationError(
                f"StateTtlConfig(ttl={describe(self.ttl)}): seconds or a timedelta are needed, from 0.001 s to "
                f"{LONGEST} s (2**63 - 1 milliseconds); for state that lives for ever leave ttl out of the descriptor"
            )
        for field, kind in (("update_type", UpdateType), ("visibility", StateVisibility)):
            value = getattr(self, field)
            if isinstance(value, str):
                value = next((member for member in kind if member.value == value.lower()), value)
                object.__setattr__(self, field, value)
            if not isinstance(value, kind):
                allowed = ", ".join(member.value for member in kind)
                raise ConfigurationError(f"StateTtlConfig({field}={describe(value)}): one of {allowed} is needed")
        kinds = [type(strategy) for strategy in self.strategies]
        if not set(kinds) <= set(Cleanup.__args__) or len(set(kinds)) < len(kinds):
            raise ConfigurationError(
                f"StateTtlConfig(cleanup={describe(self.cleanup)}): CleanupIncrementally, CleanupFullSnapshot, "
                "CleanupInCompaction, each at most once, or () are allowed"
            )
        compaction = self.strategy(CleanupInCompaction)
        if compaction is not None and compaction.every is not None and CleanupIncrementally in kinds:
            raise ConfigurationError(
                f"StateTtlConfig(cleanup={describe(self.cleanup)}): CleanupIncrementally goes through the state "
                "already, so leave it out, or every"
            )

    @property
    def milliseconds(self) -> int:
        """The time to live in whole milliseconds."""
        seconds = self.ttl.total_seconds() if isinstance(self.ttl, timedelta) else self.ttl
        return round(seconds * 1000)

    @property
    def strategies(self) -> tuple[Cleanup, ...]:
        """The clean-up strategies, as a tuple."""
        cleanup = self.cleanup
        return tuple(cleanup) if isinstance(cleanup, Sequence) else (cleanup,)

    def strategy(self, kind: type[C]) -> C | None:
        """The strategy of that class, or None."""
        return next((found for found in self.strategies if isinstance(found, kind)), None)


def _is_duration(ttl: object) -> bool:
    if isinstance(ttl, timedelta):
        return True
    return isinstance(ttl, int | float) and not isinstance(ttl, bool) and abs(ttl) <= LONGEST
