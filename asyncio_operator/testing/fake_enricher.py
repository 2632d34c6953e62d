"""For tests around enrichers: a fake without a source, and the contract of all enrichers as a plain check.

    fake = FakeEnricher({"JFK": {"city": "New York"}}, latency=lambda random: random.expovariate(20), failures=1)

    check_enricher(lambda: MyEnricher(url), known={"JFK": {"city": "New York"}}, missing=["XXX"], secrets=[password])

`FakeEnricher` is an enricher like any other (the check passes on it). Its answers, delays and errors are the same in
every run: a delay is an `asyncio.sleep`, which takes no real time on a `VirtualTimeLoop`, and random values come from a
seed. `check_enricher` checks an enricher against the rules in `enricher_contract`. Neither needs a test
framework.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import canonical_key
from asyncio_operator.checks import number, plain_function, positive_int
from asyncio_operator.enricher import Enricher, Found, Row
from asyncio_operator.errors import ConfigurationError, EnricherError, describe, describe_error
from asyncio_operator.hints import not_installed
from asyncio_operator.testing.enricher_contract import life as enricher_life
from asyncio_operator.testing.enricher_contract import rules as enricher_rules
from asyncio_operator.testing.enricher_contract import steps as enricher_steps
from asyncio_operator.testing.enricher_contract.rules import Check, Make

if TYPE_CHECKING:
    import pyarrow as pa

# First come the rules on which all others rest: without them every other rule would fail, or take long.
RULES = (
    enricher_life.rule_close,
    enricher_steps.rule_loop_is_free,
    *enricher_rules.RULES,
    *enricher_life.RULES,
)

Latency = float | Callable[[random.Random], float]
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
        latency: seconds that a call takes, or a function that gets a `random.Random` and returns them.
        failures: an int: the number of first calls that fail for each key. A float from 0.0 to 1.0: the share of all
            calls that fail. Or a function of a key and the number of its call, from 1: it returns true for a failure,
            or the error to raise. A call for many keys fails if one of its keys fails. The error is an
            `EnricherError` with `retryable=True`, unless the function returns another one.
        schema: the columns, as a `pyarrow.Schema` or DDL text; by default those that Arrow infers from all rows.
        max_batch: the maximum number of keys in one `lookup_many`.
        seed: seed of all random values; every `open` starts the sequence again.

    Attributes:
        calls: a `FakeCall` for each call in this process since the enricher was made. A pickle does not contain them.
        opened: how often it was opened in this process.

    Raises:
        ConfigurationError: an argument has the wrong type or value.
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
            from asyncio_operator.enricher import as_schema  # here, because it loads pyarrow
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
        """The error that a call for these keys raises, or None."""
        if isinstance(self.failures, float):
            return self._error(keys[0]) if chance.random() < self.failures else None
        first: BaseException | None = None
        for key in dict.fromkeys(keys):  # each key once, in order
            asked = self._asked[key] = self._asked.get(key, 0) + 1
            failed = self.failures(key, asked) if callable(self.failures) else asked <= self.failures
            if failed and first is None:
                first = failed if isinstance(failed, BaseException) else self._error(key)
        return first

    def _error(self, key: Any) -> EnricherError:
        return EnricherError(f"{self!r}: key {describe(key)} fails, because `failures` says so", retryable=True)

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
    raise ConfigurationError(
        f"rows contains {describe(found)}; each value must be a row (a mapping), a sequence of rows, or None"
    )


def _schema_of(rows: Sequence[Row]) -> pa.Schema:
    import pyarrow as pa

    names = {name: None for row in rows for name in row}
    if not names:
        raise ConfigurationError("rows has no columns to infer a schema from; pass schema=, as in schema='city string'")
    try:
        return pa.schema([(name, pa.array([row.get(name) for row in rows]).type) for name in names])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigurationError(f"rows have no common types ({describe_error(error)}); pass schema=") from error


def check_enricher(
    make: Make,
    *,
    known: Mapping[Any, Found] | Iterable[Any] | None = None,
    missing: Iterable[Any] | None = None,
    secrets: Iterable[str] = (),
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    patience: float = 10.0,
) -> None:
    """Check that an enricher keeps the contract. It runs its own loops and makes some dozens of lookups.

    Without `known` and `missing` it looks nothing up, and checks the rules that need no key: schema, life and pickles.

    Args:
        make: returns a new enricher at each call. All of them must be equal and use the same source.
        known: keys that are found: a mapping to the expected row or rows, or only the keys; at least one. None: none is
            known.
        missing: keys of the same type that are not found; at least one. None: none is known.
        secrets: texts that must appear nowhere, such as a password that `make` uses.
        loop_factory: makes the loops; by default asyncio's own. `VirtualTimeLoop` suits enrichers without sockets.
        patience: the maximum seconds for one call, for the end of a cancelled call, and for `close`.

    Raises:
        ConfigurationError: an argument is wrong. Nothing was checked.
        AssertionError: a rule is broken. The message begins with the rule's name.
    """
    if _within_a_loop():
        raise ConfigurationError(
            "check_enricher was called in a running loop, but runs loops of its own: call it from an ordinary "
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
