"""An enricher without a source, for tests.

    fake = FakeEnricher({"JFK": {"city": "New York"}}, latency=lambda random: random.expovariate(20), failures=1)

It is an enricher like any other: it passes `check_enricher`. Its answers, delays and errors are the same in every run:
a delay is an `asyncio.sleep`, which takes no real time on a `VirtualTimeLoop`, and random values come from a seed. It
needs no test framework.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import canonical_key
from asyncio_operator.checks import Duration, duration, must_be, natural, plain_function, positive_int
from asyncio_operator.enricher import Enricher, Found, Row
from asyncio_operator.errors import ConfigurationError, EnricherError, describe, describe_error
from asyncio_operator.hints import not_installed

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.arrow.schema import StructType

Drawn = Callable[[random.Random], float]
Failures = int | float | Callable[[Any, int], bool | BaseException | None]

_FAILURES = (
    "an int, the number of first calls that fail for each key; a float from 0.0 to 1.0, the share of all calls that "
    "fail; or a function of a key and the number of its call"
)


@dataclass(slots=True)
class FakeCall:
    """One call of a `FakeEnricher`.

    Attributes:
        keys: the keys that were looked up.
        started, ended: seconds of the loop's clock; `ended` is None while the call runs.
        outcome: "running", "answered", "failed" or "cancelled".
    """

    keys: tuple[Any, ...]
    started: float
    ended: float | None = None
    outcome: str = "running"


@dataclass(frozen=True, init=False, repr=False)
class FakeEnricher(Enricher):
    """An enricher that has its answers in memory.

    Args:
        rows: by key, a row, a sequence of rows, or None. Other keys are misses. A key is one value, or a tuple.
        latency: seconds (or a timedelta) that a call takes, or a function that gets a `random.Random` and returns them.
        failures: an int: the number of first calls that fail for each key. A float from 0.0 to 1.0: the share of all
            calls that fail. Or a function of a key and the number of its call, from 1: it returns true for a failure,
            or the error to raise. A call for many keys fails if one of its keys fails. The error is an
            `EnricherError` with `retryable=True`, unless the function returns another one.
        schema: the columns, as a `pyarrow.Schema`, DDL text or a `StructType`; by default those that Arrow infers from
            all rows.
        max_batch: the maximum number of keys in one `lookup_many`.
        seed: seed of all random values; every `open` starts the sequence again.

    Attributes:
        calls: a `FakeCall` for each call in this process since the enricher was made. A pickle does not contain them.
        opened: how often it was opened in this process.

    Raises:
        ConfigurationError: an argument has the wrong type or value.
    """

    rows: Mapping[Any, Found]
    latency: float | Drawn
    failures: Failures
    max_batch: int
    seed: int
    _schema: pa.Schema
    _answers: Mapping[Any, Found] = field(compare=False)
    calls: list[FakeCall] = field(compare=False)
    opened: int = field(compare=False)
    _random: random.Random | None = field(compare=False)
    _asked: dict[Any, int] = field(compare=False)

    def __init__(
        self,
        rows: Mapping[Any, Found],
        latency: Duration | Drawn = 0.0,
        failures: Failures = 0,
        *,
        schema: pa.Schema | str | StructType | None = None,
        max_batch: int = 1,
        seed: int = 0,
    ) -> None:
        try:
            from asyncio_operator.enricher import as_schema  # here, because it loads pyarrow
        except ConfigurationError as error:
            raise not_installed("FakeEnricher", "pyarrow", "spark") from error
        if not isinstance(rows, Mapping):
            raise must_be("rows", rows, "a mapping of keys to rows")
        given: list[Row] = []
        for found in rows.values():
            if isinstance(found, Mapping):
                given.append(found)
            elif isinstance(found, Sequence) and all(isinstance(row, Mapping) for row in found):
                given.extend(found)
            elif found is not None:
                raise ConfigurationError(
                    f"rows contains {describe(found)}; each value must be a row (a mapping), a sequence of rows, or "
                    "None"
                )
        latency = latency if callable(latency) else duration("latency", latency)
        if callable(latency):
            plain_function("latency", latency, "seconds, or a function of a random.Random", "a random.Random")
        is_rate = isinstance(failures, float) and 0 <= failures <= 1
        if not is_rate and not (type(failures) is int and failures >= 0):
            plain_function("failures", failures, _FAILURES, "the key", "the number of its call")
        values = {
            "rows": rows,
            "latency": latency,
            "failures": failures,
            "max_batch": positive_int("max_batch", max_batch),
            "seed": natural("seed", seed),
            "_schema": _schema_of(given) if schema is None else as_schema(schema),
        }
        self.__setstate__(values)

    def schema(self) -> pa.Schema:
        """The columns of a found row."""
        return self._schema

    async def open(self) -> None:
        """Restart the random values and the count of calls by key."""
        self._set("_random", random.Random(self.seed))
        self._set("_asked", {})
        self._set("opened", self.opened + 1)

    async def close(self) -> None:
        """Stop answering."""
        self._set("_random", None)

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for these keys, in one call, after the latency. Cancelling it ends the call.

        Raises:
            EnricherError: `failures` makes this call fail, or the enricher is not open.
        """
        if self._random is None:
            raise EnricherError(f"{self!r} is not open", retryable=False)
        loop = asyncio.get_running_loop()
        call = FakeCall(tuple(keys), loop.time())
        self.calls.append(call)
        latency = self.latency(self._random) if callable(self.latency) else self.latency
        error: BaseException | None = None
        for key in dict.fromkeys(keys):  # each key once, in order
            if isinstance(self.failures, float):
                error = self._error(key) if self._random.random() < self.failures else None
                break
            asked = self._asked[key] = self._asked.get(key, 0) + 1
            failed = self.failures(key, asked) if callable(self.failures) else asked <= self.failures
            if failed and error is None:
                error = failed if isinstance(failed, BaseException) else self._error(key)
        try:
            await asyncio.sleep(latency)
            if error is not None:
                raise error
        except BaseException as error:
            call.outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "failed"
            raise
        else:
            call.outcome = "answered"
        finally:
            call.ended = loop.time()
        return [self._answers.get(key) for key in map(canonical_key, keys)]

    def _error(self, key: Any) -> EnricherError:
        return EnricherError(f"{self!r}: key {describe(key)} fails, because `failures` says so", retryable=True)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __copy__(self) -> FakeEnricher:
        """A copy that notes its calls in the same list, as a probe makes one."""
        own = object.__new__(type(self))
        vars(own).update(vars(self))
        return own

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n not in ("calls", "opened", "_answers", "_random", "_asked")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "calls": [], "opened": 0, "_random": None, "_asked": {}}.items():
            self._set(name, value)
        self._set("_answers", {canonical_key(key): found for key, found in self.rows.items()})

    def __hash__(self) -> int:
        return hash((len(self.rows), tuple(self._schema.names)))

    def __repr__(self) -> str:
        return f"FakeEnricher({len(self.rows)} keys, {', '.join(self._schema.names)})"


def _schema_of(rows: Sequence[Row]) -> pa.Schema:
    import pyarrow as pa

    names = {name: None for row in rows for name in row}
    if not names:
        raise ConfigurationError("rows has no columns to infer a schema from; pass schema=, as in schema='city string'")
    try:
        return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(f"rows have no common types ({describe_error(error)}); pass schema=") from error
