"""For tests around enrichers: one without a source, and the contract of all of them as a plain check.

    fake = FakeEnricher({"JFK": {"city": "New York"}}, latency=lambda random: random.expovariate(20), failures=1)

    check_enricher(lambda: MyEnricher(url), known={"JFK": {"city": "New York"}}, missing=["XXX"], secrets=[password])

`FakeEnricher` is an enricher like any other (the check passes on it), with answers, delays and errors that are the same
in every run: delays are `asyncio.sleep`, so that a `VirtualTimeLoop` makes them pass at once, and whatever is random
comes from its seed. `check_enricher` holds an enricher against the rules in `enricher_rules`, `enricher_steps` and
`enricher_life`. Neither needs a test framework.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncio_operator.enricher import Enricher, Found, Row
from asyncio_operator.environment import not_installed
from asyncio_operator.errors import ConfigurationError, EnricherError, describe, describe_error
from asyncio_operator.keys import canonical_key
from asyncio_operator.policies.options import number, plain_function, positive_int
from asyncio_operator.testing import enricher_life, enricher_rules, enricher_steps
from asyncio_operator.testing.enricher_rules import Check, Make

if TYPE_CHECKING:
    import pyarrow as pa

# First of all what every other rule does on its way, and what would make all of them take long.
RULES = (
    enricher_life.rule_close,
    enricher_steps.rule_loop_is_free,
    *enricher_rules.RULES,
    *enricher_life.RULES,
)

Latency = float | Callable[[random.Random], float]
Failures = int | float | Callable[[Any, int], bool | BaseException | None]

_FAILURES = (
    "an int, of each key so many calls fail first; a float from 0.0 to 1.0, the part of all calls that fails, 1.0 for "
    "always; or a function of a key and the number of its call"
)


@dataclass(slots=True)
class FakeCall:
    """One call of a `FakeEnricher`.

    Attributes:
        keys: what was asked for.
        started, ended: seconds of the loop's time; `ended` is None while it runs.
        outcome: "running", "answered", "failed" or "cancelled".
    """

    keys: tuple[Any, ...]
    started: float
    ended: float | None = None
    outcome: str = "running"


@dataclass(frozen=True, init=False, repr=False)
class FakeEnricher(Enricher):
    """An enricher that knows its answers.

    Args:
        rows: a row, a sequence of rows, or None by key; other keys are misses. A key is one value, or a tuple.
        latency: seconds that a call takes, or a function that gives them: it gets a `random.Random`.
        failures: an int: of every key so many calls fail first. A float below 1, or 1.0: the part of all calls that
            fails. A function of a key and the number of its call, from 1: true for a failure, or the error to raise. A
            call for many keys fails as soon as one of them does. Errors are `EnricherError`, `retryable`.
        schema: the columns, as a `pyarrow.Schema` or DDL text; what Arrow makes of all rows by default.
        max_batch: how many keys `lookup_many` takes at once.
        seed: of all that is random; every `open` begins anew.

    Attributes:
        calls: a `FakeCall` for each call in this process, since it was made. A pickle takes none along.
        opened: how often it has been opened in this process.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    rows: Mapping[Any, Found]
    latency: Latency
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
        latency: Latency = 0.0,
        failures: Failures = 0,
        *,
        schema: pa.Schema | str | None = None,
        max_batch: int = 1,
        seed: int = 0,
    ) -> None:
        try:
            from asyncio_operator.enricher import as_schema  # which loads pyarrow
        except ConfigurationError as error:
            raise not_installed("FakeEnricher", "pyarrow", "spark") from error
        if not isinstance(rows, Mapping):
            raise ConfigurationError(f"rows is {describe(rows)}; it must be a mapping of keys to rows")
        given = [row for found in rows.values() for row in _rows(found)]
        if callable(latency):
            plain_function("latency", latency, "a number of seconds, or a function of a random.Random")
        else:
            number("latency", latency, "of seconds that is not negative", lambda seconds: seconds >= 0)
        rate = isinstance(failures, float) and 0 <= failures <= 1
        count = type(failures) is int and failures >= 0
        if not (rate or count):
            plain_function("failures", failures, _FAILURES, "the key", "the number of its call")
        values = {
            "rows": rows,
            "latency": latency,
            "failures": failures,
            "max_batch": positive_int("max_batch", max_batch),
            "seed": seed,
            "_schema": _schema_of(given) if schema is None else as_schema(schema),
        }
        self.__setstate__(values)

    def schema(self) -> pa.Schema:
        """The columns of a found row."""
        return self._schema

    async def open(self) -> None:
        """Begin anew with what is random, and with the count of calls by key."""
        self._set("_random", random.Random(self.seed))
        self._set("_asked", {})
        self._set("opened", self.opened + 1)

    async def close(self) -> None:
        """Answer no more."""
        self._set("_random", None)

    async def lookup(self, key: Any) -> Found:
        """The row of a key, after the latency."""
        return (await self.lookup_many((key,)))[0]

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The answers for keys, in one call.

        Raises:
            EnricherError: as `failures` says, or it is not open.
        """
        if self._random is None:
            raise EnricherError(f"{self!r} is not open", retryable=False)
        loop = asyncio.get_running_loop()
        call = FakeCall(tuple(keys), loop.time())
        self.calls.append(call)
        latency = self.latency(self._random) if callable(self.latency) else self.latency
        error = self._failure(keys, self._random)
        try:
            await asyncio.sleep(latency)
            if error is not None:
                raise error
        except asyncio.CancelledError:
            call.outcome = "cancelled"
            raise
        except BaseException:
            call.outcome = "failed"
            raise
        else:
            call.outcome = "answered"
        finally:
            call.ended = loop.time()
        return [self._answers.get(key) for key in map(canonical_key, keys)]

    def _failure(self, keys: Sequence[Any], chance: random.Random) -> BaseException | None:
        """The error that a call for these keys ends with, or None."""
        if isinstance(self.failures, float):
            return self._error(keys[0]) if chance.random() < self.failures else None
        first: BaseException | None = None
        for key in dict.fromkeys(keys):
            asked = self._asked[key] = self._asked.get(key, 0) + 1
            failed = self.failures(key, asked) if callable(self.failures) else asked <= self.failures
            if failed and first is None:
                first = failed if isinstance(failed, BaseException) else self._error(key)
        return first

    def _error(self, key: Any) -> EnricherError:
        return EnricherError(f"{self!r}: a failure of key {describe(key)}, as it was told to", retryable=True)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

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


def _rows(found: Found) -> Sequence[Row]:
    if found is None or isinstance(found, Mapping):
        return () if found is None else (found,)
    if isinstance(found, Sequence) and all(isinstance(row, Mapping) for row in found):
        return found
    raise ConfigurationError(f"rows has {describe(found)}; a row (a mapping), a sequence of rows, or None is needed")


def _schema_of(rows: Sequence[Row]) -> pa.Schema:
    import pyarrow as pa

    names = {name: None for row in rows for name in row}
    if not names:
        raise ConfigurationError("rows has no columns to take a schema from; give schema=, as in schema='city string'")
    try:
        return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(f"rows have no common types ({describe_error(error)}); give schema=") from error


def check_enricher(
    make: Make,
    *,
    known: Mapping[Any, Found] | Iterable[Any],
    missing: Iterable[Any],
    secrets: Iterable[str] = (),
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    patience: float = 10.0,
) -> None:
    """Check that an enricher keeps the contract, on loops of its own; it takes some dozens of lookups.

    Args:
        make: gives a new enricher each time it is called; all of them equal, over the same source.
        known: keys that are found, with the row or rows that are expected, or without; one at least.
        missing: keys, of the type of the others, that are not found; one at least.
        secrets: texts, such as a password that `make` uses, that may be shown nowhere.
        loop_factory: gives the loops; asyncio's own by default. `VirtualTimeLoop` suits enrichers without sockets.
        patience: seconds that one call, the end of a cancelled one, or `close` may take.

    Raises:
        ConfigurationError: an argument is wrong; nothing was checked.
        AssertionError: a rule is broken; the message begins with its name.
    """
    if _within_a_loop():
        raise ConfigurationError(
            "check_enricher was called in a running loop, and runs loops of its own: call it from an ordinary "
            "function, or in a thread, as in `await asyncio.to_thread(check)`"
        )
    check = Check(make, known, missing, secrets, loop_factory, patience)
    for rule in RULES:
        try:
            rule(check)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{rule.__name__} ({rule.__doc__}): {check.without_secrets(what)}") from error


def _within_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
