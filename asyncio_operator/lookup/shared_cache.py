"""The second level of a cache: a store that all workers and jobs share, behind the memory of each worker.

A key that is in no memory is asked for here before a call is made, in groups (`asking`). A found answer goes into
memory with its age, so it expires there when it expires in the store. Answers of calls are written back in the
background. `shared_format` has the names and bytes, `shared_store` what happens if the store does not answer.

Laws:
- The store never makes a lookup fail or wait for long: what it cannot answer is unknown.
- An answer is used for its lifetime by the options of the reader, counted from when it came, by the clock of the store
  (laws L3, L5). With `stale_if_error` the store keeps answers longer than that (law L6).
- An old answer is refreshed by one worker: the one that gets the lock in the store (law L6).
- What waits to be written is bounded. While the store does not answer, and when too much waits, answers are not shared.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from asyncio_operator.checks import seconds
from asyncio_operator.clock import monotonic
from asyncio_operator.engine.lent import IDLE
from asyncio_operator.engine.timers import Timers
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.lookup.known import HELD, KnownAnswers
from asyncio_operator.lookup.shared_format import LARGEST, DamagedError, Format, plain_answers
from asyncio_operator.lookup.shared_store import SharedStore
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.cells import ABSENT

if TYPE_CHECKING:
    from asyncio_operator.budget.usage import Weights
    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.services.redis_values import Write

MOST = 200
"""Keys of one question. Reading their answers holds up the loop for one or two milliseconds."""

FEWEST = 10
"""The same when answers are so large that more of them do not arrive in time."""

WRITTEN_AT_ONCE = 200

MOST_WAITING = 50_000
"""Answers that wait to be written: those of some calls with thousands of keys, which may come at the same time."""

FLUSH = 0.9
"""Seconds that the end of a run waits for its answers to be written: less than `TASK_GRACE_PERIOD`."""

MOST_HELD = 10_000
"""Refreshes of other workers that are remembered."""

LOCK = 10.0
"""Seconds for which one worker alone refreshes a key. A refresh that failed is not tried again earlier."""

ASK_AGAIN = 1.0
"""Seconds after which a worker asks again whether another one has refreshed a key."""

STALE = 3600.0
"""Seconds for which the store keeps an expired answer with `stale_if_error`; as long as it lived if that is more."""


class SharedCache(KnownAnswers):
    """The answers of one owner in a store.

    Args:
        options: those of the cache.
        memory: the first level.
        store: of the answers.
        form: names and bytes of the owner's answers.
    """

    source = "cache"
    most = MOST

    def __init__(self, options: Cache, memory: LookupCache, store: SharedStore, form: Format) -> None:
        self._options = options
        self._memory = memory
        self._store = store
        self._format = form
        self._row_life = _milliseconds(options.expire_after_write)
        self._miss_life = self._row_life if options.missing_ttl is None else _milliseconds(options.missing_ttl)
        self._fresh = 0 if options.refresh_after is None else _milliseconds(options.refresh_after)
        self._held: dict[bytes, float] = {}
        self._timers: Timers | None = None
        self._closing: asyncio.Task[None] | None = None
        # Keys, answers, and when they came. How many have come, and how many of them are written or dropped.
        self._queue: deque[tuple[Any, Any, float]] = deque()
        self._noted = self._done = 0
        self._writer: asyncio.Task[None] | None = None

    # -- reading

    async def find(self, keys: Sequence[Any]) -> list[Any]:
        names = [self._format.name(key) for key in keys]
        found = await self._read([name for name in names if name is not None])
        if found is None:
            return [ABSENT] * len(keys)
        now, values = found
        value = iter(values)
        return [
            ABSENT if name is None or (data := next(value)) is None else self._answer(key, data, now)
            for key, name in zip(keys, names, strict=True)
        ]

    async def _read(self, names: Sequence[bytes]) -> tuple[int, Sequence[bytes | None]] | None:
        late = self._store.late
        found = await self._store.read(names)
        if self._store.late > late:
            self.most = max(self.most // 2, FEWEST)
        elif found is not None:
            self.most = min(self.most + 1, MOST)
        return found

    def _answer(self, key: Any, data: bytes, now: int, life: int = 0) -> Any:
        """An answer of the store that is younger than its lifetime, or than `life` milliseconds if that is given."""
        try:
            answer, written = self._format.read(data)
        except DamagedError as error:
            self._store.tell(f"holds a value for key {describe(key)} that is not an answer: {error}", "damaged")
            return ABSENT
        if answer is None and not self._options.cache_missing:
            return ABSENT
        # A time in the future is that of another server, before a failover.
        age = max(0, now - written)
        if age < (life or (self._miss_life if answer is None else self._row_life)):
            self._memory.put(key, answer, age)
            return answer
        # Law L6: it has to be in memory if the lookup fails.
        if self._options.stale_if_error and self._memory.stale(key) is ABSENT:
            self._memory.put(key, answer, age)
        return ABSENT

    async def renew(self, keys: Sequence[Any]) -> list[Any]:
        answers: list[Any] = [ABSENT] * len(keys)
        now = monotonic()
        asked: list[tuple[int, bytes]] = []
        for place, name in enumerate(map(self._format.name, keys)):
            if name is not None and self._held.get(name, now) > now:
                answers[place] = HELD
            elif name is not None:
                asked.append((place, name))
        found = await self._read([name for _, name in asked])
        if found is None:
            return answers
        store_now, values = found
        for (place, _), data in zip(asked, values, strict=True):
            if data is not None:
                answers[place] = self._answer(keys[place], data, store_now, self._fresh)
        old = [(place, name) for place, name in asked if answers[place] is ABSENT]
        locks = await self._store.lock([self._format.lock_of(name) for _, name in old], LOCK)
        for (place, name), is_mine in zip(old, locks or [True] * len(old), strict=True):
            if not is_mine:
                answers[place] = HELD
                self._hold(name, now + ASK_AGAIN)
        return answers

    def _hold(self, name: bytes, until: float) -> None:
        if len(self._held) >= MOST_HELD:
            self._held.clear()
        self._held[name] = until

    # -- writing

    def learn(
        self, keys: Sequence[Any], answers: Sequence[Any], attempts: int, latency: float, weights: Weights | None = None
    ) -> None:
        if self._store.is_down:
            return
        self._queue.extend(zip(keys, answers, repeat(monotonic())))
        self._noted += len(keys)
        if len(self._queue) > MOST_WAITING:
            self._drop(len(self._queue) - MOST_WAITING)
            self._store.tell("is too slow for the answers that come; some are not shared", "slow")
        if self._writer is None:
            self._writer = start_task(self._write())

    def _drop(self, answers: int) -> None:
        for _ in range(answers):
            self._queue.popleft()
        self._done += answers

    async def _write(self) -> None:
        answers = True
        while self._queue and answers:
            some = [self._queue.popleft() for _ in range(min(WRITTEN_AT_ONCE, len(self._queue)))]
            answers = await self._store.write(lambda some=some: self._writes(some))  # type: ignore[misc]
            self._done += len(some)
        # Nothing is kept for a store that does not answer.
        self._done += len(self._queue)
        self._queue.clear()
        self._writer = None

    def _writes(self, some: Sequence[tuple[Any, Any, float]]) -> list[Write]:
        writes: list[Write] = []
        for (key, _, came), answer in zip(some, self._plain(some), strict=True):
            name = self._format.name(key)
            if name is None or answer is ABSENT:
                continue
            if answer is None and not self._options.cache_missing:
                # An older answer is known to be wrong now.
                writes.append((name, None, 0))
                continue
            try:
                data = self._format.write(answer, self._store.time_of(came))
            except Exception as error:
                self._store.tell(
                    f"cannot take the answer for key {describe(key)}: {describe_error(error)}", "unwritable"
                )
                continue
            if len(data) <= LARGEST:
                writes.append((name, data, self._kept(self._miss_life if answer is None else self._row_life)))
        return writes

    def _plain(self, some: Sequence[tuple[Any, Any, float]]) -> list[Any]:
        """Answers that can be written, ABSENT for one that Python cannot hold."""
        try:
            return plain_answers([answer for _, answer, _ in some])
        except Exception as error:
            if len(some) > 1:
                return [answer for one in some for answer in self._plain([one])]
            problem = f"cannot take the answer for key {describe(some[0][0])}: {describe_error(error)}"
            self._store.tell(problem, "unwritable")
            return [ABSENT]

    def _kept(self, life: int) -> int:
        """The milliseconds for which the store keeps an answer with this lifetime."""
        return life + max(life, round(1000 * STALE)) if self._options.stale_if_error else life

    # -- the end

    async def flush(self) -> None:
        ends, last = monotonic() + FLUSH, self._noted
        while self._writer is not None and self._done < last and (left := ends - monotonic()) > 0:
            await asyncio.wait([self._writer], timeout=left)
        # What waits longer is dropped. Other runs may have noted answers since.
        self._drop(len(self._queue) - (self._noted - last))
        if self._timers is None:
            self._timers = Timers(monotonic)
            self._timers.set(monotonic() + IDLE, self._close_if_idle)

    def _close_if_idle(self, _: None, now: float) -> None:
        assert self._timers is not None
        if now - self._store.used < IDLE:
            self._timers.set(self._store.used + IDLE, self._close_if_idle)
        else:
            self._closing = start_task(self.close())

    async def close(self) -> None:
        """Close the connections. They are opened again when they are needed."""
        if self._timers is not None:
            self._timers.close()
            self._timers = None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
            await asyncio.wait([writer])
        await self._store.close()


def _milliseconds(duration: Any) -> int:
    return max(1, round(1000 * seconds(duration)))
