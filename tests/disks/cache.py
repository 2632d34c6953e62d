"""A lookup cache on disk: random operations, and what has to be there.

Laws L4, L5 and L7: the answers that a killed worker leaves are those that were put last, no expired one among them, and
of what was acknowledged only what the cache drops anyway is missing. Damage is a cleared cache.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from asyncio_operator import Cache
from asyncio_operator.lookup.cache import LookupCache
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.testing.time import ManualClock
from tests.disks.processes import Say
from tests.disks.wrong import Begun, Outcome, WrongError

KEYS = [*range(8), *(f"key {number}" for number in range(8))]
SWEPT = 2
"""The expired answers that a write removes at most."""


@dataclass
class Held:
    """An answer with the times of its write and of its last use."""

    answer: Any
    written: int
    used: int


class Model:
    """A dictionary in the order of use."""

    def __init__(self, options: Cache) -> None:
        self._options = options
        self.now = 1_000
        self.held: OrderedDict[Any, Held] = OrderedDict()

    def apply(self, kind: str, *given: Any) -> Any:
        if kind == "pass":
            self.now += given[0]
        elif kind == "put":
            return self._put(*given)
        elif kind == "get":
            return self._get(*given)
        return None

    def is_over(self, held: Held) -> bool:
        write, access = self._options.expire_after_write, self._options.expire_after_access
        assert not isinstance(write, timedelta)
        assert not isinstance(access, timedelta)
        return bool((write and self.now - held.written >= write) or (access and self.now - held.used >= access))

    def living(self) -> dict[Any, Any]:
        return {key: held.answer for key, held in self.held.items() if not self.is_over(held)}

    def touch_all(self) -> None:
        """What `CacheWork.work` begins with: whatever a kill has left of the order, it is that of the keys now."""
        for key in KEYS:
            self._get(key)

    def _put(self, key: Any, answer: Any) -> None:
        self.held.pop(key, None)
        self.held[key] = Held(answer, self.now, self.now)
        if len(self.held) > self._options.max_rows:
            self.held.popitem(last=False)
        for _ in range(SWEPT):
            oldest = next(iter(self.held))
            if not self.is_over(self.held[oldest]):
                break
            del self.held[oldest]

    def _get(self, key: Any) -> Any:
        held = self.held.get(key)
        if held is None:
            return ABSENT
        if self.is_over(held):
            del self.held[key]
            return ABSENT
        self.held.move_to_end(key)
        held.used = self.now
        return held.answer


class CacheWork:
    """One run of random operations on a cache on disk. See `runs.Work`."""

    name = "cache"

    def __init__(self, seed: int) -> None:
        drawn = random.Random(f"cache {seed}")
        self._most = drawn.choice([3, 8, 100])
        self._write = drawn.choice([None, 12])
        self._access = drawn.choice([None, None, 9])
        self._size = drawn.choice([5, 500, 50_000])
        self.operations = [self._draw(drawn) for _ in range(drawn.choice([10, 40, 100]))]

    def _draw(self, drawn: random.Random) -> tuple[Any, ...]:
        kind = drawn.choice(["put"] * 10 + ["get"] * 6 + ["pass"] * 2 + ["reopen"])
        if kind == "pass":
            return kind, drawn.randint(1, 5)
        if kind == "reopen":
            return (kind,)
        key = drawn.choice(KEYS)
        if kind == "get":
            return kind, key
        text = drawn.randbytes(drawn.randrange(self._size)).hex()
        return kind, key, None if drawn.random() < 0.15 else {"number": drawn.randrange(1 << 40), "text": text}

    def _options(self, directory: Path) -> Cache:
        return Cache(
            store="rocksdb",
            directory=directory / "cache",
            max_rows=self._most,
            expire_after_write=self._write,
            expire_after_access=self._access,
        )

    def _opened(self, directory: Path, clock: ManualClock) -> LookupCache:
        return open_cache(self._options(directory), "owner", clock)

    def model(self, directory: Path, begun: Begun, done: int) -> Model:
        """After some operations."""
        model = Model(self._options(directory))
        model.now += sum(given[0] for kind, *given in self.operations[: begun.at] if kind == "pass")
        for place, answer, written in begun.left or ():
            model.held[KEYS[place]] = Held(answer, written, model.now)
        model.touch_all()
        for operation in self.operations[begun.at : done]:
            model.apply(*operation)
        return model

    def work(self, directory: Path, begun: Begun, say: Say) -> None:
        model = self.model(directory, begun, begun.at)
        clock = ManualClock(model.now)
        cache = self._opened(directory, clock)
        for key in KEYS:
            cache.get(key)
        for operation in self.operations[begun.at :]:
            kind, *given = operation
            wanted = model.apply(*operation)
            clock.set(model.now)
            if kind == "put":
                cache.put(*given)
            elif kind == "get" and (found := cache.get(*given)) != wanted:
                raise WrongError(f"{given[0]!r} is {found!r:.200}, and must be {wanted!r:.200}")
            elif kind == "reopen":
                cache.close()
                cache = self._opened(directory, clock)
            say("done")
        cache.close()

    def check(self, directory: Path, begun: Begun, done: int) -> Begun:
        before = self.model(directory, begun, done)
        after = self.model(directory, begun, min(done + 1, len(self.operations)))
        after.now = before.now
        found, rows = self._read(directory, before.now)
        old, new = before.living(), after.living()
        for key, answer in found.items():
            if answer not in [one[key] for one in (old, new) if key in one]:
                raise WrongError(f"{key!r} is {answer!r:.200}, and must be {old.get(key)!r:.200}")
        # A put that was killed before it made room leaves an answer too many, and the next opening drops one: perhaps
        # another one, because the last uses were not written.
        dropped = max(0, len({**before.held, **after.held}) - self._most)
        lost = [key for key in old if key not in found and not (key not in new and dropped)]
        if len(lost) > dropped:
            raise WrongError(f"{lost!r:.200} are lost, and {dropped} may be dropped")
        if rows > self._most:
            raise WrongError(f"the cache has {rows} rows, and may have {self._most}")
        written = {
            key: (after if new.get(key) == answer else before).held[key].written for key, answer in found.items()
        }
        return Begun(done, [[KEYS.index(key), answer, written[key]] for key, answer in found.items()])

    def read_damaged(self, directory: Path, file: str, how: str, begun: Begun) -> Outcome:
        model = self.model(directory, begun, begun.at)
        found, _ = self._read(directory, model.now)
        wanted = model.living()
        outcome = Outcome.RIGHT if wanted.keys() <= found.keys() else Outcome.MISSING
        for key, answer in found.items():
            if key in wanted and answer == wanted[key]:
                continue
            ever = [one[2] for one in self.operations[: begun.at] if one[:2] == ("put", key)]
            # A log that is cut short looks like that of a process that was killed earlier.
            if how == "cut" and (".log" in file or "MANIFEST" in file) and answer in ever:
                outcome = Outcome.OLDER
                continue
            raise WrongError(f"{key!r} is {answer!r:.200}, and must be {wanted.get(key)!r:.200}")
        return outcome

    def _read(self, directory: Path, now: float) -> tuple[dict[Any, Any], int]:
        cache = self._opened(directory, ManualClock(now))
        found = {key: answer for key in KEYS if (answer := cache.get(key)) is not ABSENT}
        rows = len(cache)
        cache.close()
        return found, rows
