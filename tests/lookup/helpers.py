"""A pipeline of lookups on virtual time, without Spark: sources of key batches, recorded enrichers, a consumer."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from asyncio_operator import Cache, Enricher
from asyncio_operator.arrow.key_arrays import key_array
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.engine.contracts import Input
from asyncio_operator.engine.gate import Limited
from asyncio_operator.figures import Figures
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.cache import AnyCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.column_places import ColumnCache, ColumnPlaces
from asyncio_operator.lookup.key_batch import PENDING, Answer, KeyBatch, answer_of
from asyncio_operator.lookup.options import LookupOptions, batching_of
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.lookup.places import KnownAnswers
from asyncio_operator.state.entries import ABSENT

SCHEMA = pa.schema([("x", pa.int64())])

CHECK = AnswerCheck(SCHEMA)


def now() -> float:
    return asyncio.get_running_loop().time()


async def at_once(key: Any) -> Any:
    return [{"x": one} for one in key] if isinstance(key, list) else {"x": key}


async def in_a_second(key: Any) -> Any:
    await asyncio.sleep(1)
    return await at_once(key)


async def forever() -> Any:
    await asyncio.get_running_loop().create_future()


class Recorded(Enricher):
    """Answers with `answer(key)`, a coroutine function, and records calls; `most` is how many ever ran at once."""

    def __init__(self, answer: Callable[[Any], Any], max_batch: int = 1) -> None:
        self.answer = answer
        self.max_batch = max_batch
        self.calls: list[Any] = []
        self.running = 0
        self.most = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("x", pa.int64())])

    async def lookup(self, key: Any) -> Any:
        self.calls.append(key)
        return await self._count(self.answer(key))

    async def lookup_many(self, keys: Sequence[Any]) -> Any:
        self.calls.append(list(keys))
        return await self._count(self.answer(keys))

    async def _count(self, call: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await call
        finally:
            self.running -= 1


class Source(Input):
    """An `Input` of key batches; counts what was read, waits `pause` seconds before every batch, ends in `error`."""

    def __init__(self, batches: Iterable[KeyBatch], pause: float = 0.0, error: Exception | None = None) -> None:
        self._batches = iter(batches)
        self._pause = pause
        self._error = error
        self._ended = False
        self.read = 0

    async def ready(self) -> bool:
        await asyncio.sleep(self._pause)
        if self._ended and self._error is not None:
            raise self._error
        return not self._ended

    def has_some(self) -> bool:
        return not self._ended

    def __iter__(self) -> Iterator[KeyBatch]:
        for batch in self._batches:
            self.read += 1
            yield batch

    def exhausted(self) -> None:
        self._ended = True


class Trickle(Input):
    """An `Input` that gives one batch after the other, `pause` seconds apart."""

    def __init__(self, batches: Sequence[KeyBatch], pause: float) -> None:
        self._left = deque(batches)
        self._pause = pause
        self._come: deque[KeyBatch] = deque()

    async def ready(self) -> bool:
        if not self._left:
            return False
        await asyncio.sleep(self._pause)
        self._come.append(self._left.popleft())
        return True

    def has_some(self) -> bool:
        return bool(self._come)

    def __iter__(self) -> Iterator[KeyBatch]:
        while self._come:
            yield self._come.popleft()


def _ascend(keys: Sequence[Any]) -> bool:
    return set(map(type, keys)) == {int} and all(one < other for one, other in itertools.pairwise(keys))


def batch_of(keys: Iterable[Any]) -> KeyBatch:
    """A batch of distinct keys, one row each, which says whether they ascend, as those of a task do."""
    keys = list(keys)
    return KeyBatch(in_arrow(*keys), len(keys), None, _ascend(keys))


def in_arrow(*keys: Any) -> ArrowKeys:
    if keys and all(isinstance(key, tuple) for key in keys):
        return ArrowKeys(key_array([pa.array(part) for part in zip(*keys, strict=True)]))
    return ArrowKeys(pa.array(keys, pa.int64()) if set(map(type, keys)) <= {int} else pa.array(keys))


def batches_of(*sizes: int) -> list[KeyBatch]:
    """Batches of these sizes, their keys numbered through, one row each."""
    batches, start = [], 0
    for size in sizes:
        batches.append(batch_of(range(start, start + size)))
        start += size
    return batches


def outcomes_of(batch: KeyBatch) -> list[Any]:
    """The outcomes of a batch, with answers as Python has them."""
    return [
        replace(outcome, answer=_plain(answer_of(found))) if type(outcome) is Answer else _plain(found)
        for outcome, found in zip(batch.outcomes, batch.found(), strict=True)
    ]


def _plain(answer: Any) -> Any:
    return answer.answer() if hasattr(answer, "table") else answer


class Consumer:
    """Takes deliveries as the main thread of a task does, `pause` seconds for each, and checks that they are in order.

    Attributes:
        deliveries: time, number of the batch, keys ready, and whether it has ended.
        left: of each batch, how many keys have left.
        opened: a cache that is closed after the run.
    """

    def __init__(self, batches: Sequence[KeyBatch], ordered: bool, pause: float = 0.0) -> None:
        self.pipeline: LookupPipeline
        self.opened: AnyCache | None = None
        self.deliveries: list[tuple[float, int, int, bool]] = []
        self.left = [0] * len(batches)
        self.batches = list(batches)
        self._ordered = ordered
        self._pause = pause
        self._free_at = 0.0

    def deliver(self, batch: KeyBatch, ready: int) -> None:
        number = self.batches.index(batch)
        self.deliveries.append((now(), number, ready, batch.ended))
        if self._ordered:
            assert all(b.ended for b in self.batches[:number]), "a batch overtook another one"
            assert PENDING not in batch.outcomes[:ready]
        assert ready <= len(batch.keys) - batch.outcomes.count(PENDING)
        self._free_at = max(self._free_at, now()) + self._pause
        asyncio.get_running_loop().call_at(self._free_at, self._emit, number, ready, batch.ended)

    def _emit(self, number: int, ready: int, ended: bool) -> None:
        batch = self.batches[number]
        if not self._ordered:
            # The rows are built from what is there when they are built.
            ready = batch.answered()
        self.pipeline.emitted(ready - self.left[number], batch if ended else None)
        self.left[number] = ready

    def ended(self) -> list[int]:
        """The numbers of the batches that were delivered for the last time, in order."""
        return [number for _, number, _, ended in self.deliveries if ended]

    async def run(self) -> None:
        """Run the pipeline to its end; one that would wait for ever is a `TimeoutError` at the end of time. All that
        was delivered leaves."""
        async with asyncio.timeout(1e6):
            await self.pipeline.run()
        if self.opened is not None:
            self.opened.close()
        await asyncio.sleep(max(0.0, self._free_at - now()))
        await asyncio.sleep(0)
        ended = self.ended()
        assert (ended if self._ordered else sorted(ended)) == list(range(len(self.batches)))
        assert self.left == [len(batch.keys) for batch in self.batches]

    @property
    def figures(self) -> Figures:
        return self.pipeline.figures

    def sources(self) -> list[list[str]]:
        """Where the answers came from."""
        return [[outcome.source for outcome in batch.outcomes] for batch in self.batches]


def lookups_of(
    enricher: Enricher,
    batches: Sequence[KeyBatch | Iterable[Any]],
    *,
    every: float | None = None,
    source_pause: float = 0.0,
    pause: float = 0.0,
    cache: Cache | AnyCache | None = None,
    meter: Any = None,
    **options: Any,
) -> Consumer:
    """A pipeline for batches, or for batches of keys, that is not run yet.

    Args:
        every: seconds from one batch to the next; None: all come at once.
        pause: seconds that the consumer takes for a delivery.
        cache: one without a time of its own, or the one that is used.
        meter: what the calls may take of a budget.
        options: of lookups, `trace`, `check`, `tables`, and `known` places.
    """
    made = [one if isinstance(one, KeyBatch) else batch_of(one) for one in batches]
    trace = options.pop("trace", None)
    tables, known = options.pop("tables", None), options.pop("known", ())
    batching = batching_of(enricher, options.pop("batching", None))
    opened: AnyCache | None = None
    if isinstance(cache, Cache):
        opened = ColumnCache(cache, now) if cache.store == "heap" else open_cache(cache, "s", now)
    used = cache if isinstance(cache, AnyCache) else opened
    spec = None if used is None else used.options
    in_columns = used is None or not used.has_objects
    check = options.pop("check", None) or AnswerCheck(enricher.schema(), in_columns)
    chosen = LookupOptions(**{"fail": False, "batching": batching, "cache": spec} | options)
    consumer = Consumer(made, chosen.ordered, pause)
    consumer.opened = opened
    source = Source(made, source_pause) if every is None else Trickle(made, every)
    places, limited = places_of(chosen, check, used, known), Limited(allowance=meter)
    consumer.pipeline = LookupPipeline(enricher, source, consumer.deliver, chosen, places, limited, trace, tables)
    return consumer


def places_of(
    options: LookupOptions,
    check: AnswerCheck | None = None,
    cache: AnyCache | None = None,
    known: Sequence[KnownAnswers] = (),
) -> ColumnPlaces:
    check = check or AnswerCheck(SCHEMA, in_columns=True)
    return ColumnPlaces(Figures(), check, None, cache, known, options.timed, options.remember, now)


class OneByOne:
    """A cache in columns, of which one key is asked for at a time."""

    def __init__(self, options: Cache, schema: pa.Schema, clock: Any) -> None:
        self.cache = ColumnCache(options, clock)
        self.close = self.cache.close
        self._check = AnswerCheck(schema, in_columns=True)

    def __len__(self) -> int:
        return len(self.cache)

    def put(self, key: Any, answer: Any) -> None:
        self.cache.learn(in_arrow(key), [answer], self._check)

    def get(self, key: Any) -> Any:
        return self.get_many([key], ABSENT)[0][0]

    def get_many(self, keys: list[Any], absent: Any) -> tuple[list[Any], list[int]]:
        answers = [absent] * len(keys)
        for positions, found in self.cache.recall(in_arrow(*keys)):
            for i, answer in zip(positions.tolist(), found, strict=True):
                answers[i] = None if answer is None else answer.answer()
        return answers, [i for i, answer in enumerate(answers) if answer is absent]

    def is_old(self, key: Any) -> bool:
        return bool(self.cache.old(in_arrow(key))[0])

    def stale(self, key: Any) -> Any:
        answer = self.cache.stale(key)
        return answer.answer() if hasattr(answer, "table") else answer


async def look_up(enricher: Enricher, batches: Sequence[KeyBatch | Iterable[Any]], **options: Any) -> Consumer:
    """Run the pipeline of `lookups_of` with these options to its end."""
    consumer = lookups_of(enricher, batches, **options)
    await consumer.run()
    return consumer
