"""What is asked in a simulation: a service with data, latency, errors, throttling, lies and outages.

What it does for a call depends on its seed, the keys, and how often they were asked: not on other calls. So a scenario
with fewer keys behaves alike for those that are left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator.enricher import as_schema
from asyncio_operator.errors import EnricherError
from asyncio_operator.quota.usage import Hint
from asyncio_operator_proof.simulation.reasons import Reasons
from asyncio_operator_proof.simulation.scenario import Key, Lookup
from asyncio_operator_proof.simulation.source_quota import Quota

Rows = list[dict[str, Any]]


class QuotaError(EnricherError):
    """The quota is used up. Its `retry_after` holds for all calls."""


KEY = "key"
PART = "part"
"""The columns of keys, in rows and in answers in columns."""

ROW = "row"
"""The column with the number of a row in its partition."""


class SimulatedService:
    """The service of one lookup.

    Args:
        lookup: whose service it is.
        seed: of what is random.
        number: of the lookup.
        kind: of the keys.
        rows: the row or rows of each key; None: drawn for each key.
        now: the true time.

    Attributes:
        reasons: what has gone wrong in its calls.
    """

    def __init__(
        self,
        lookup: Lookup,
        seed: int,
        number: int,
        kind: str,
        rows: Mapping[Key, Any] | None,
        now: Callable[[], float],
    ) -> None:
        self.behaviour = behaviour = lookup.service
        self.reasons = Reasons(lookup)
        self._seed = seed
        self._number = number
        self._kind = kind
        self._rows = rows
        self._now = now
        self._asked: Counter[str] = Counter()
        self._served: deque[float] = deque()
        self._known: dict[Key, Rows] = {}
        self._quota = Quota(behaviour.quota, behaviour.per, behaviour.refills) if behaviour.quota else None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows. Of drawn rows: a text, and a key for the next lookup."""
        if self._rows is None:
            return as_schema(f"v{self._number} string, k{self._number} {self._kind}")
        return schema_of([row for found in self._rows.values() for row in as_rows(found)])

    @property
    def is_single(self) -> bool:
        """Whether every key has at most one row."""
        if self._rows is None:
            return not self.behaviour.several
        return all(len(as_rows(found)) <= 1 for found in self._rows.values())

    def key_schema(self, pair: bool) -> pa.Schema:
        """Its key column, or both of them."""
        return as_schema(f"{KEY} {self._kind}" + (f", {PART} string" if pair else ""))

    def rows_of(self, key: Key) -> Rows:
        """What it has for a key: the truth."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._drawn(key) if self._rows is None else as_rows(self._rows.get(key))
        return found

    def _drawn(self, key: Key) -> Rows:
        source = random.Random(f"row {self._seed} {self._number} {key!r}")
        behaviour = self.behaviour
        if source.random() < behaviour.missing:
            return []
        count = source.choice((2, 3)) if source.random() < behaviour.several else 1
        following: Key = source.randrange(20)
        if self._kind == "string":
            following = f"k{following}"
        if source.random() < 0.05:
            following = None
        return [{f"v{self._number}": f"{key}-{row}", f"k{self._number}": following} for row in range(count)]

    def is_bad(self, key: Key) -> bool:
        """Whether every call for a key fails."""
        bad = self.behaviour.bad
        return bad > 0 and random.Random(f"bad {self._seed} {self._number} {key!r}").random() < bad

    async def ask(self, keys: Sequence[Key]) -> list[Any]:
        """The answers for keys, in their order: a row, a list of rows, or None.

        Raises:
            EnricherError: the call fails.
            ConnectionError: the connection is lost.
        """
        what = repr(keys)
        self._asked[what] += 1
        source = random.Random(f"call {self._seed} {self._number} {what} {self._asked[what]}")
        try:
            return await self._asked_for(keys, source)
        except asyncio.CancelledError as error:
            self.reasons.refused(keys, error)
            await self._go_on()
            raise
        except Exception as error:
            self.reasons.refused(keys, error)
            raise

    def headers(self, keys: Sequence[Key]) -> Hint | None:
        """What the answer to the last call for keys says of the quota; None: nothing."""
        quota, what = self._quota, repr(keys)
        if quota is None:
            return None
        fate = random.Random(f"headers {self._seed} {self._number} {what} {self._asked[what]}").random()
        if fate < self.behaviour.nonsense:
            return quota.nonsense(int(fate * 1e6))
        return quota.hint(self._now()) if fate < self.behaviour.nonsense + self.behaviour.tells else None

    def true_weights(self, keys: Sequence[Key]) -> dict[str, float]:
        """What the last call for keys has really weighed."""
        what, estimate = repr(keys), self.behaviour.tokens * len(keys)
        source = random.Random(f"weight {self._seed} {self._number} {what} {self._asked[what]}")
        return {"tokens": estimate * source.choice((0.5, 0.8, 1.3))}

    async def _asked_for(self, keys: Sequence[Key], source: random.Random) -> list[Any]:
        behaviour, now = self.behaviour, self._now()
        fate, kind = source.random(), source.random()
        latency = self._latency(source)
        if self._is_refused(now):
            await asyncio.sleep(min(latency, 0.001))
            raise EnricherError("too many requests", retryable=True, retry_after=0.1 + round(source.random(), 3))
        wait = 0.0 if self._quota is None else self._quota.wait(now)
        if wait and not behaviour.lenient:
            await asyncio.sleep(min(latency, 0.001))
            raise QuotaError("the quota is used up", retryable=True, retry_after=wait)
        if kind < behaviour.hangs:
            await asyncio.sleep(1e6)
        await asyncio.sleep(latency)
        if any(begin <= now < end for begin, end in behaviour.outages):
            raise EnricherError("the service is down", retryable=True, overload=True)
        if fate < behaviour.errors:
            raise error_of(behaviour.error, source)
        if any(self.is_bad(key) for key in keys):
            raise EnricherError("a key that the service cannot take")
        answers = [as_answer(self.rows_of(key)) for key in keys]
        if source.random() >= behaviour.lies:
            self.reasons.answered(keys)
            return answers
        self.reasons.refused(keys)
        return self._lie(answers, source)

    def _latency(self, source: random.Random) -> float:
        mean = self.behaviour.mean
        match self.behaviour.latency:
            case "uniform":
                return source.uniform(0.0, 2 * mean)
            case "exponential":
                return source.expovariate(1 / mean) if mean else 0.0
            case "tail":
                return mean * (20 if source.random() < 0.05 else 0.5)
        return mean

    def _is_refused(self, now: float) -> bool:
        most, served = self.behaviour.throttle, self._served
        if not most:
            return False
        while served and served[0] <= now - 1.0:
            served.popleft()
        if len(served) >= most:
            return True
        served.append(now)
        return False

    def _lie(self, answers: list[Any], source: random.Random) -> list[Any]:
        match self.behaviour.lie:
            case "short":
                return answers[:-1]
            case "long":
                return [*answers, None]
            case "misspelt":
                return [{f"w{self._number}": "misspelt"} for _ in answers]
            case "typed":
                return [{f"v{self._number}": 7, f"k{self._number}": [source.random()]} for _ in answers]
        return answers

    async def _go_on(self) -> None:
        """The call goes on after its cancellation, whatever cancels it again."""
        ends = asyncio.get_running_loop().time() + self.behaviour.ignores
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


def error_of(kind: str, source: random.Random) -> Exception:
    """An error of this kind."""
    match kind:
        case "retryable":
            return EnricherError("try again", retryable=True)
        case "lasting":
            return EnricherError("never", retryable=False, billed=False)
        case "lost":
            return ConnectionResetError("the connection is lost")
        case "overload":
            return EnricherError("too much", overload=True)
        case "asked":
            return EnricherError("later", retryable=True, retry_after=round(source.choice((0.0, 0.05, 0.5)), 3))
    return EnricherError("an error")


def schema_of(rows: Rows) -> pa.Schema:
    """The columns of rows, with the types that their values have."""
    names = {name: None for row in rows for name in row}
    return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])


def as_rows(found: Any) -> Rows:
    """The rows of an answer."""
    if found is None:
        return []
    return [dict(found)] if isinstance(found, Mapping) else [dict(row) for row in found]


def as_answer(rows: Rows) -> Any:
    """What an enricher returns for rows."""
    if not rows:
        return None
    return dict(rows[0]) if len(rows) == 1 else [dict(row) for row in rows]
