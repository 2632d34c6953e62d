"""What happens in a simulation, as plain data: lookups, their service, tasks, workers, faults.

The `repr` of each part is the Python expression that makes it, without what is at its default. So a scenario can be
printed as a program. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from inspect import signature
from typing import Any

from asyncio_operator.quota.spec import Budget

Key = Any

DEFAULTS = {name: signature(Budget).parameters[name].default for name in ("in_flight", "spend", "patience", "on_spent")}
"""The arguments of a `Budget` beside its name and limits. Its coordinator is simulated, and may be secret."""


def changed(budget: Budget, **fields: Any) -> Budget:
    """The budget with other limits, or other values of `DEFAULTS`."""
    given = {name: getattr(budget, name) for name in ("limits", *DEFAULTS)} | fields
    return Budget(budget.name, *given.pop("limits"), **given)


def not_at_default(value: Any) -> Iterator[tuple[str, Any, Any]]:
    """The fields of an object of a data class that differ from their defaults: the name, the value, and the default,
    which is `MISSING` if there is none."""
    for one in fields(value):
        given = getattr(value, one.name)
        default = one.default if one.default_factory is MISSING else one.default_factory()
        if default is MISSING or given != default:
            yield one.name, given, default


class Shown:
    """Its `repr` has the fields that differ from their defaults."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value, _ in not_at_default(self))
        return f"{type(self).__name__}({shown})"


@dataclass(frozen=True, repr=False)
class Service(Shown):
    """What answers the calls of one lookup. Shares are of calls, unless it says keys.

    Attributes:
        latency: "fixed", "uniform", "exponential" or "tail" (one call in twenty takes twenty times as long).
        mean: seconds of a call.
        missing, several: the share of keys without a row, and with two or three.
        errors: share of calls that fail, with `error`: "retryable", "lasting", "unknown", "lost" (the connection),
            "overload", "asked" (with `retry_after`).
        bad: share of keys for which every call fails.
        hangs: share of calls that return only when they are cancelled.
        lies: share of calls with a wrong answer, and which: "short", "long", "misspelt", "typed".
        throttle: calls in a second that it answers; it refuses others, with `retry_after`. 0: all.
        outages: times from and until which every call fails.
        ignores: seconds for which a cancelled call goes on.
        opens: seconds that the client takes to open.
        tokens: what a call weighs for each key.
        settles: whether a call says what it really weighed, which may be more or less.
        quota: calls that it answers in `per` seconds; it refuses others, and says when the next may come. 0: all.
        per: the length of the quota's window, in seconds.
        lenient: whether it answers calls beyond its quota too, and only says that nothing is left.
        refills: whether the quota comes back all the time. Otherwise it does when a window begins.
        tells: share of answers that say what is left of the quota.
        nonsense: share of answers that say of the quota what cannot be right.
    """

    latency: str = "fixed"
    mean: float = 0.01
    missing: float = 0.0
    several: float = 0.0
    errors: float = 0.0
    error: str = "retryable"
    bad: float = 0.0
    hangs: float = 0.0
    lies: float = 0.0
    lie: str = "short"
    throttle: int = 0
    outages: tuple[tuple[float, float], ...] = ()
    ignores: float = 0.0
    opens: float = 0.0
    tokens: float = 0.0
    settles: bool = False
    quota: int = 0
    per: float = 1.0
    lenient: bool = False
    refills: bool = False
    tells: float = 0.0
    nonsense: float = 0.0


@dataclass(frozen=True, repr=False)
class Lookup(Shown):
    """One lookup of the chain.

    Attributes:
        options: those of `enrich`, by name, without `on` and `journal`. A `Cache` on disk has a directory of its
            worker.
        service: what answers.
        batches: the enricher's `max_batch`.
        journal: options of its `Journal` but for the path; None: it has none.
        from_before: its key is a column that the lookup before it added. Else it is the key of the row.
        columns: the enricher answers in columns.
        table: the enricher is a table in memory, which answers in columns.
        pair: its key has a second column, the part of the row.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    service: Service = Service()
    batches: int = 1
    journal: Mapping[str, Any] | None = None
    from_before: bool = False
    columns: bool = False
    pair: bool = False
    table: bool = False

    def key(self, first: Any, part: str | None) -> Key:
        """What it asks for, given the first column of the key and the part of the row; None: nothing."""
        if first is None or (self.pair and part is None):
            return None
        return (first, part) if self.pair else first


@dataclass(frozen=True, repr=False)
class Task(Shown):
    """One partition.

    Attributes:
        keys: the key of each row; None is null.
        worker: number of its worker.
        starts: when its first attempt begins.
        batch: rows in a batch of the input.
        pause: seconds between two batches of the input.
        slow: seconds that the consumer takes for each batch of the output.
        closed_after: the consumer closes the output after this many rows; None: never.
        parts: of the rows, in turn: the second column of keys that have two; None is null.
    """

    keys: tuple[Key, ...]
    worker: int = 0
    starts: float = 0.0
    batch: int = 10
    pause: float = 0.0
    slow: float = 0.0
    closed_after: int | None = None
    parts: tuple[str | None, ...] = ()

    def part(self, row: int) -> str | None:
        """The part of a row."""
        return self.parts[row % len(self.parts)] if self.parts else None


@dataclass(frozen=True, repr=False)
class Kill(Shown):
    """A worker is killed at a time. What runs there is attempted again in a new one, `back` seconds later."""

    worker: int
    at: float
    back: float = 0.2


@dataclass(frozen=True, repr=False)
class Compaction(Shown):
    """The journal of a lookup is compacted while tasks run.

    Attributes:
        lookup: its number.
        at: when it begins.
        takes: seconds between its steps: it lists files, writes new ones, and replaces the old by them.
        grace: seconds for which files that were replaced stay.
        ends: steps after which its process dies; None: it does not.
    """

    lookup: int
    at: float
    takes: float = 0.01
    grace: float = 3600.0
    ends: int | None = None


@dataclass(frozen=True, repr=False)
class Coordinator(Shown):
    """Where the budget's state is.

    Attributes:
        delay: mean seconds of a message in one direction.
        lost: share of messages that never arrive; the same of replies.
        down: times from and until which it gives no answer.
        ahead: how much its clock is ahead.
    """

    delay: float = 0.001
    lost: float = 0.0
    down: tuple[tuple[float, float], ...] = ()
    ahead: float = 0.0


@dataclass(frozen=True, repr=False)
class Scenario(Shown):
    """All of a simulation.

    Attributes:
        seed: of what is random while it runs.
        lookups: one behind the other.
        tasks: partitions.
        kind: of the keys: "long" or "string".
        budget: that all lookups share which have `budget=True` among their options.
        coordinator: where the budget's state is.
        kills: of workers.
        clocks: for each worker, how much its clock is ahead, and by how much it is too fast (0.001: 1 in 1,000).
        rows: what the service has, by key; None: it is drawn for each key.
        compactions: of journals.
    """

    seed: int
    lookups: tuple[Lookup, ...]
    tasks: tuple[Task, ...]
    kind: str = "long"
    budget: Budget | None = None
    coordinator: Coordinator = Coordinator()
    kills: tuple[Kill, ...] = ()
    clocks: tuple[tuple[float, float], ...] = ()
    rows: Mapping[Any, Any] | None = None
    compactions: tuple[Compaction, ...] = ()

    @property
    def pairs(self) -> bool:
        """Whether the input has a column with the part of each row."""
        return any(lookup.pair for lookup in self.lookups)
