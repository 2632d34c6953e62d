"""The second level of a cache: a store that all workers and jobs share, behind the memory of each worker.

A key that is in no memory is asked for here before a call is made, in groups (`asking`). A found answer goes into
memory with its age, so it expires there when it expires in the store. Answers of calls are written back in the
background. `shared_store` has what happens if the store does not answer.

Laws:
- The store never makes a lookup fail or wait for long: what it cannot answer is unknown.
- An answer is used for its lifetime by the options of the reader, counted from when it came, by the clock of the store
  (laws L3, L5). With `stale_if_error` the store keeps answers longer than that (law L6).
- An old answer is refreshed by one worker: the one that gets the lock in the store (law L6).
- What waits to be written is bounded. While the store does not answer, and when too much waits, answers are not shared.

The format of answers. They are never unpickled: others may have written them.

Names. All numbers are big-endian.

    asyncio-operator:cache:1:OWNER:KEY    an answer
    asyncio-operator:lock:1:OWNER:KEY     the key is being looked up again; the value means nothing

OWNER is 32 hexadecimal digits: PBKDF2 with SHA-256 of the fingerprint of the enricher and its columns. Two enrichers
that differ in anything have different owners. The fingerprint depends on passwords of the enricher too. All users of
the store can read the names. The function is slow, so that a short password cannot be found by trying.

KEY is the key as `state.keys` writes it, or, if that is longer than 100 bytes, a zero byte and its BLAKE2b hash of 32
bytes. No key begins with a zero byte.

An answer:

    4 bytes    "AOC1", the format and its version
    8 bytes    of the columns: BLAKE2b of their names and types
    8 bytes    when it was written, in milliseconds since the epoch, by the clock of the store
    the rest   as `state.serializers` writes it: None for a miss, a tuple of values in the order of the columns for a
               row, or a list of such tuples

Law: what is not exactly this, or does not fit the columns, is not an answer.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b, pbkdf2_hmac
from itertools import repeat
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import storable
from asyncio_operator.clock import monotonic
from asyncio_operator.engine.lent import IDLE
from asyncio_operator.engine.timing import start_task
from asyncio_operator.errors import StateError, describe, describe_error
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.lookup.key_batch import ONE_CALL, Calls
from asyncio_operator.lookup.places import HELD, KnownAnswers
from asyncio_operator.lookup.shared_store import SharedStore
from asyncio_operator.policies.cache import Cache
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.state.serializers import BUILTIN

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.lookup.column_places import ColumnCache
    from asyncio_operator.services.redis_values import Write

MAGIC = b"AOC1"

ROUNDS = 50_000  # Of PBKDF2: 20 ms, once for each enricher in a process.
LONGEST_KEY = 100  # Bytes of a key in a name.

LARGEST = 1 << 20
"""Bytes of an answer. A larger one is not shared: reading it would hold up the answers of all other keys."""

MOST_DIGITS = 1000  # Of a decimal, before or after the point. Those of Arrow and of Spark have fewer than 100.

_CONTAINERS = frozenset((list, tuple, set, frozenset))

_HEAD = struct.Struct(">4s8sq")


class DamagedError(Exception):
    """The bytes are no answer. The message says why."""


class Format:
    """Names and bytes of one owner.

    Args:
        owner: see `cache_owner`.
        schema: the columns of the answers.
    """

    def __init__(self, owner: str, schema: pa.Schema) -> None:
        columns = repr([(field.name, str(field.type)) for field in schema])
        name = slow_hash(f"{owner} {columns}")
        self._answers = f"asyncio-operator:cache:1:{name}:".encode()
        self._locks = f"asyncio-operator:lock:1:{name}:".encode()
        self._columns = blake2b(columns.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._check = AnswerCheck(schema)
        self._names = schema.names

    def name(self, key: Any) -> bytes | None:
        """The name of the answer for a key; None for a key that has no bytes."""
        try:
            written = serialize_key(storable(key))
        except (StateError, RecursionError):
            return None
        if len(written) > LONGEST_KEY:
            written = b"\0" + blake2b(written, digest_size=32).digest()
        return self._answers + written

    def lock_of(self, name: bytes) -> bytes:
        """The name of the lock for the name of an answer."""
        return self._locks + name[len(self._answers) :]

    def write(self, answer: Any, milliseconds: int) -> bytes:
        """The bytes of an answer, as `AnswerCheck` returns it and not in columns, written at a time of the store.

        Raises:
            StateError: a value in it cannot be stored.
        """
        names, values = self._names, answer
        if type(answer) is dict:
            values = tuple(map(answer.get, names))
        elif answer is not None:
            values = [tuple(map(row.get, names)) for row in answer]
        return _HEAD.pack(MAGIC, self._columns, milliseconds) + BUILTIN.serialize(values)

    def read(self, data: bytes) -> tuple[Any, int]:
        """An answer, and when it was written.

        Raises:
            DamagedError: the bytes are no answer with these columns.
        """
        try:
            magic, columns, milliseconds = _HEAD.unpack_from(data)
        except struct.error as error:
            raise DamagedError("the value is too short") from error
        if magic != MAGIC:
            raise DamagedError("it has another format or version")
        if columns != self._columns:
            raise DamagedError("it has other columns")
        try:
            values = BUILTIN.deserialize(data[_HEAD.size :])
            if not _is_sane(values):
                raise DamagedError("it holds a decimal out of all bounds")
            rows = values if type(values) is list else [] if values is None else [values]
            for row in rows:
                if type(row) is not tuple:
                    raise DamagedError(f"it holds {type(row).__name__}")
            answers = [dict(zip(self._names, row, strict=True)) for row in rows]
            return self._check(answers[0] if type(values) is tuple else answers), milliseconds
        except DamagedError:
            raise
        except Exception as error:  # Bytes that others wrote may cause any.
            raise DamagedError("it is damaged") from error


def _is_sane(value: Any) -> bool:
    """Whether no decimal in it has so large an exponent that Arrow would need minutes to refuse it."""
    kind = type(value)
    if kind is Decimal:
        return bool(-MOST_DIGITS < value.adjusted() < MOST_DIGITS)
    if kind is dict:
        return all(map(_is_sane, value.values()))
    return all(map(_is_sane, value)) if kind in _CONTAINERS else True


@lru_cache(100)
def slow_hash(owner: str) -> str:
    """The name of an owner in a store."""
    return pbkdf2_hmac("sha256", owner.encode(), b"asyncio-operator:cache", ROUNDS, 16).hex()


def plain_answers(answers: Sequence[Any]) -> list[Any]:
    """Answers as mappings, lists of mappings and None. Those in columns are converted together.

    Raises:
        ValueError: Python cannot hold a value of one in columns.
    """
    in_columns = [answer for answer in answers if hasattr(answer, "table")]
    if not in_columns:
        return list(answers)
    # Imported here: it loads pyarrow, as the maker of such an answer has.
    from asyncio_operator.arrow.column_answers import together

    rows = iter(together(in_columns).alone().answers())
    return [next(rows) if hasattr(answer, "table") else answer for answer in answers]


MOST = 200  # Keys of one question. Reading their answers holds up the loop for one or two milliseconds.
FEWEST = 10  # The same when answers are so large that more of them do not arrive in time.

WRITTEN_AT_ONCE = 200

MOST_WAITING = 50_000
"""Answers that wait to be written: those of some calls with thousands of keys, which may come at the same time."""

FLUSH = 0.9  # Seconds that the end of a run waits for its answers to be written: less than `TASK_GRACE_PERIOD`.
MOST_HELD = 10_000  # Refreshes of other workers that are remembered.
LOCK = 10.0  # Seconds for which one worker alone refreshes a key. A refresh that failed is not tried again earlier.
ASK_AGAIN = 1.0  # Seconds after which a worker asks again whether another one has refreshed a key.

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

    def __init__(self, options: Cache, memory: LookupCache | ColumnCache, store: SharedStore, form: Format) -> None:
        self._options = options
        self._memory = memory
        self._store = store
        self._format = form
        self._held: dict[bytes, float] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        # Keys, answers, and when they came. How many have come, and how many of them are written or dropped.
        self._queue: deque[tuple[Any, Any, float]] = deque()
        self._noted = self._done = 0
        self._writer: asyncio.Task[None] | None = None

    # -- reading

    async def find(self, keys: Sequence[Any]) -> list[Any]:
        return await self._look(keys, list(map(self._format.name, keys))) or [ABSENT] * len(keys)

    async def _look(self, keys: Sequence[Any], names: Sequence[bytes | None], life: int = 0) -> list[Any] | None:
        """The answers for keys with these names, see `_answer`; None if the store does not answer."""
        late = self._store.late
        found = await self._store.read([name for name in names if name is not None])
        if self._store.late > late:
            self.most = max(self.most // 2, FEWEST)
        if found is None:
            return None
        self.most = min(self.most + 1, MOST)
        now, values = found
        value = iter(values)
        return [
            ABSENT if name is None or (data := next(value)) is None else self._answer(key, data, now, life)
            for key, name in zip(keys, names, strict=True)
        ]

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
        age, memory = max(0, now - written), self._memory
        if age < (life or (memory.miss_life if answer is None else memory.row_life)):
            memory.put(key, answer, age)
            return answer
        # Law L6: it has to be in memory if the lookup fails.
        if self._options.stale_if_error and not memory.holds(key):
            memory.put(key, answer, age)
        return ABSENT

    async def renew(self, keys: Sequence[Any]) -> list[Any]:
        now = monotonic()
        names = list(map(self._format.name, keys))
        held = [name is not None and self._held.get(name, now) > now for name in names]
        asked = [None if is_held else name for name, is_held in zip(names, held, strict=True)]
        answers = await self._look(keys, asked, self._memory.fresh_life)
        old = [name for name, one in zip(asked, answers or (), strict=False) if name is not None and one is ABSENT]
        locks = await self._store.lock([self._format.lock_of(name) for name in old], LOCK)
        theirs = {name for name, is_mine in zip(old, locks or (), strict=False) if not is_mine}
        if len(self._held) >= MOST_HELD:
            self._held.clear()
        self._held.update(dict.fromkeys(theirs, now + ASK_AGAIN))
        return [
            HELD if is_held or name in theirs else answer
            for name, is_held, answer in zip(names, held, answers or repeat(ABSENT), strict=False)
        ]

    # -- writing

    def learn(self, keys: Sequence[Any], answers: Sequence[Any], calls: Calls = ONE_CALL) -> None:
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
        try:
            answers = plain_answers([answer for _, answer, _ in some])
            writes = map(self._write_of, some, answers)
            return [write for write in writes if write is not None]
        except Exception as error:
            if len(some) > 1:
                # Each by itself: one of them cannot be held by Python, or written.
                return [write for one in some for write in self._writes([one])]
            problem = f"cannot take the answer for key {describe(some[0][0])}: {describe_error(error)}"
            self._store.tell(problem, "unwritable")
            return []

    def _write_of(self, one: tuple[Any, Any, float], answer: Any) -> Write | None:
        key, _, came = one
        name, options = self._format.name(key), self._options
        if name is None:
            return None
        if answer is None and not options.cache_missing:
            # An older answer is known to be wrong now.
            return name, None, 0
        data = self._format.write(answer, self._store.time_of(came))
        life = self._memory.miss_life if answer is None else self._memory.row_life
        if options.stale_if_error:
            life += max(life, round(1000 * STALE))
        return None if len(data) > LARGEST else (name, data, life)

    # -- the end

    async def flush(self) -> None:
        ends, last = monotonic() + FLUSH, self._noted
        while self._writer is not None and self._done < last and (left := ends - monotonic()) > 0:
            await asyncio.wait([self._writer], timeout=left)
        # What waits longer is dropped. Other runs may have noted answers since.
        self._drop(len(self._queue) - (self._noted - last))
        if self._alarm is None:
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Close the connections `IDLE` seconds after their last use: a task that comes sooner finds them open."""
        if (left := self._store.used + IDLE - monotonic()) > 0:
            self._alarm = asyncio.get_running_loop().call_later(left, self._close_if_idle)
        else:
            self._closing = start_task(self.close())

    async def close(self) -> None:
        """Close the connections. They are opened again when they are needed."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.cancel()
            await asyncio.wait([writer])
        await self._store.close()
