"""An enricher whose calls are written down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_arrays import canonical_array, key_values, python_keys
from asyncio_operator.clock import time_left
from asyncio_operator.enricher import Enricher, Found
from asyncio_operator.policies.retry import Retry
from asyncio_operator.quota.usage import running
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.canonical import row_of
from asyncio_operator_proof.simulation.heard_call import HeardCall
from asyncio_operator_proof.simulation.reasons import Reasons, Watched, refused_of, watched_of
from asyncio_operator_proof.simulation.simulated_service import as_rows
from asyncio_operator_proof.simulation.world import ROUNDING
from asyncio_operator_proof.simulation.writing import Notes, attempt_of

if TYPE_CHECKING:
    import pyarrow as pa

NO_ROW = 0
"""An answer that is no row."""


class RecordedEnricher(Enricher):
    """Another enricher, whose calls are written down as they start and end.

    Args:
        name: of its specification: two with equal names share a client.
        reasons: takes the errors of its calls.
    """

    def __init__(self, inner: Enricher, number: int, notes: Notes, name: str, hedged: bool, reasons: Reasons) -> None:
        self._inner = inner
        self._number = number
        self._notes = notes
        self._name = name
        self._hedged = hedged
        self._reasons = reasons
        # The calls that may be repeated: each with its task, and the time at which the library cancels it.
        self._running: dict[tuple[str, str], tuple[str, asyncio.Task[Any] | None, float]] = {}
        self._schema: pa.Schema | None = None
        self.in_memory = inner.in_memory
        self.max_batch = inner.max_batch
        # None for a class that does not answer in columns, as in the class itself.
        self.lookup_columns = None if inner.lookup_columns is None else self._lookup_columns
        self.default_retry: Retry | None = inner.default_retry
        self.idempotent = inner.idempotent

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self._name,)

    def __repr__(self) -> str:
        return repr(self._inner)

    def schema(self) -> pa.Schema:
        """See `Enricher`."""
        self._schema = self._inner.schema()
        return self._schema

    def key_schema(self) -> pa.Schema | None:
        """See `Enricher`."""
        return self._inner.key_schema()

    def weigh(self, keys: Sequence[Any]) -> Mapping[str, float]:
        """See `Enricher`."""
        weights = self._inner.weigh(keys)
        with suppress(Exception):
            # The library refuses what is no weight.
            heaviest = self._notes.heaviest
            for unit, amount in (("keys", len(keys)), *weights.items()):
                heaviest[unit] = max(amount, heaviest.get(unit, 0.0))
        return weights

    async def open(self) -> None:
        """See `Enricher`."""
        await self._inner.open()

    async def close(self) -> None:
        """See `Enricher`."""
        await self._inner.close()

    async def lookup(self, key: Any) -> Found:
        """See `Enricher`."""
        answer: Found = await self._noted([key], lambda: self._inner.lookup(key), lambda answer: [answer])
        return answer

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """See `Enricher`."""
        answers: Sequence[Found] = await self._noted(list(keys), lambda: self._inner.lookup_many(keys), list)
        return answers

    async def _lookup_columns(self, keys: pa.Array) -> pa.Table:
        """See `Enricher`."""
        asked, ask = python_keys(canonical_array(keys)), self._inner.lookup_columns
        assert ask is not None
        return await self._noted(asked, lambda: ask(keys), lambda table: self._each(asked, table))

    def _each(self, keys: list[Any], table: Any) -> list[Any]:
        """The rows of each key in a table; for a table that is not right, something that is no row."""
        declared, key_schema = self.schema(), self._inner.key_schema()
        rows: dict[Any, list[Any]] = {key: [] for key in keys}
        try:
            right = all(table.schema.field(field.name).type == field.type for field in declared)
            parts = [key_values(table[name]) for name in (["key"] if key_schema is None else key_schema.names)]
            named = parts[0] if len(parts) == 1 else zip(*parts, strict=True)
            for key, row in zip(named, table.select(declared.names).to_pylist(), strict=True):
                rows[key].append(row)
        except Exception:
            right = False
        return [rows[key] if right else NO_ROW for key in keys]

    async def _noted(self, keys: list[Any], ask: Callable[[], Awaitable[Any]], each: Callable[[Any], list[Any]]) -> Any:
        notes, task = self._notes, attempt_of.get("")
        notes.calls += 1
        call = f"{self._number}.{notes.calls}"
        now, left = asyncio.get_running_loop().time, time_left()
        begun = now()
        limit = inf if left is None else begun + left
        same = task, repr(keys)
        copied = self._copied(same, begun)
        self._running.setdefault(same, (call, asyncio.current_task(), limit))
        about = {"task": task, "lookup": self._number, "call": call}
        weights = dict(self._inner.weigh(keys)) or None
        noted = [list(key) if type(key) is tuple else key for key in keys]
        notes.add("call_started", keys=noted, copy_of=copied, weights=weights, **about)
        ended: dict[str, Any] = {"outcome": "result"}
        free: bool | None = None
        heard = HeardCall(running.get(None), lambda **said: task in notes.killed or notes.add("said", **about, **said))
        mark = running.set(heard)
        refused_of.set([])
        watched = Watched()
        watched_of.set(watched)
        try:
            answer = await ask()
            if watched.disobeys() and notes.open and self._reasons.disobeyed is None:
                self._reasons.disobeyed = keys
            # What is no answer is an error of its keys, which is found later than the call has ended.
            ended["answers"] = [digest(one, self._schema) for one in each(answer)]
            # The other call of a pair is cancelled now.
            self._ended(same, call, copied)
            return answer
        except asyncio.CancelledError:
            ended["outcome"] = "timed_out" if now() >= limit - ROUNDING else "cancelled"
            raise
        except BaseException as error:
            ended = {"outcome": "error", **facts_of(error)}
            free = costs_nothing(error) or None
            if isinstance(error, Exception):
                self._reasons.failed(keys, error)
            if isinstance(error, KeyboardInterrupt):
                notes.interrupted = error
            raise
        finally:
            self._reasons.ended(keys, now() - begun, self.in_memory)
            self._ended(same, call)
            heard.ended = True
            running.reset(mark)
            if task not in notes.killed:
                if heard.billed is not None:
                    free = not heard.billed
                notes.add("call_ended", **about, **ended, settled=heard.settled or None, free=free or None)

    def _copied(self, same: tuple[str, str], now: float) -> str | None:
        """The running call that a call for the same keys repeats; not one that the library has cancelled at its limit.
        Before its limit, an enricher may have cancelled it by a limit of its own: then it runs on for the library."""
        call, task, limit = self._running.get(same, (None, None, inf))
        if task is not None and task.cancelling() and now >= limit - ROUNDING:
            del self._running[same]
            return None
        return call if self._hedged else None

    def _ended(self, same: tuple[str, str], *calls: str | None) -> None:
        """These calls are not repeated any more."""
        if same in self._running and self._running[same][0] in calls:
            del self._running[same]


class RecordedTable(RecordedEnricher):
    """The same of an enricher that has `lookup_rows`."""

    async def lookup_rows(self, keys: pa.Array) -> tuple[pa.Table, Any, Any]:
        """See `Enricher`."""
        asked, ask = python_keys(canonical_array(keys)), self._inner.lookup_rows
        assert ask is not None
        found: tuple[pa.Table, Any, Any] = await self._noted(
            asked, lambda: ask(keys), lambda answer: self._picked(len(asked), *answer)
        )
        return found

    def _picked(self, count: int, table: pa.Table, numbers: Any, positions: Any) -> list[Any]:
        """The rows of each position; for an answer that is not right, something that is no row."""
        declared = self.schema()
        rows: list[list[Any]] = [[] for _ in range(count)]
        try:
            right = all(table.schema.field(field.name).type == field.type for field in declared)
            values = table.select(declared.names).to_pylist()
            for number, position in zip(numbers, positions, strict=True):
                rows[position].append(values[number])
        except Exception:
            right = False
        return [*rows] if right else [NO_ROW] * count


def facts_of(error: BaseException) -> Event:
    """What an error says of itself, read without the library's own readers, which may be wrong."""
    retryable, overload = getattr(error, "retryable", None), getattr(error, "overload", None)
    return {
        "error": type(error).__name__,
        "retryable": retryable if isinstance(retryable, bool) else None,
        "retry_after": _seconds(getattr(error, "retry_after", None)),
        "overload": True if overload else None,
        "lost": True if isinstance(error, ConnectionError) else None,
    }


def costs_nothing(error: BaseException) -> bool:
    """Whether an error says that its call was answered with an error, and so costs nothing (law G11)."""
    if isinstance(error, BaseExceptionGroup):
        return all(costs_nothing(one) for one in error.exceptions)
    billed = getattr(error, "billed", None)
    if billed is not None:
        return billed is False
    return getattr(error, "retry_after", None) is not None or bool(getattr(error, "overload", False))


def _seconds(wait: Any) -> float | None:
    """A wait that an error asks for: a number, its text, or a timedelta; None if it is none of these."""
    if isinstance(wait, timedelta):
        return _seconds(wait.total_seconds())
    if isinstance(wait, bool) or not isinstance(wait, int | float | str):
        return None
    try:
        return float(wait) if 0 <= float(wait) < inf else None
    except (ValueError, OverflowError):
        return None


def digest(answer: Any, schema: pa.Schema) -> Any:
    """An answer as plain data: for each row its values in the order of the columns. Equal answers have equal ones."""
    try:
        rows = as_rows(answer)
        if any(row and not set(row) & set(schema.names) for row in rows):
            return {"invalid": repr(answer)}
        return [row_of(row, schema) for row in rows]
    except Exception:
        # A value does not fit its column.
        return {"invalid": repr(answer)}
