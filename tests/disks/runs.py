"""The order of a run: operations in a process, its death, a look at what it left; at the end, damage to what the last
one left.

The same seed draws the same operations, kills and damage. When exactly a signal comes, and what RocksDB does in its own
threads, differs.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tests.disks import processes
from tests.disks.cache import CacheWork
from tests.disks.damage import UNREAD, damage, files_of, kind_of
from tests.disks.journal import JournalWork
from tests.disks.processes import Say, forked
from tests.disks.state import StateWork
from tests.disks.wrong import Begun, Outcome


class Work(Protocol):
    """Random operations on something that is on a disk.

    Attributes:
        name: for messages.
        operations: drawn from the seed. The same in every process.
    """

    name: str
    operations: list[tuple[Any, ...]]

    def work(self, directory: Path, begun: Begun, say: Say) -> None:
        """Does the operations from the beginning on, and says one line after each: it is acknowledged."""

    def check(self, directory: Path, begun: Begun, done: int) -> Begun:
        """Looks at what a process left that has done a number of operations, and perhaps the next one.

        Raises:
            WrongError: something is missing, or wrong.
        """

    def read_damaged(self, directory: Path, file: str, how: str, begun: Begun) -> Outcome:
        """Reads all after a file was damaged.

        Raises:
            WrongError: something is wrong, or an error does not name the file.
        """


WORKS: dict[str, Callable[[int], Work]] = {"state": StateWork, "cache": CacheWork, "journal": JournalWork}


class Runs:
    """Runs, and their results.

    Args:
        room: a directory for files.

    Attributes:
        counts: what was done, by its name.
        wrong: a line for each broken law.
    """

    def __init__(self, room: Path) -> None:
        self._room = room
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def seed(self, name: str, seed: int, kills: int = 3, damages: int = 8) -> None:
        """Some processes, each killed at a random write or after a random time, then damage."""
        drawn = random.Random(f"{name} {seed} runs")
        work, directory = WORKS[name](seed), self._empty("run")
        before = Begun()
        for number in range(kills + 1):
            left = len(work.operations) - before.at
            arms = processes.can_arm() and drawn.random() < 0.6
            at = drawn.randint(1, 12 * left + 40) if arms else 0
            kill = None if arms else (drawn.randrange(left + 1), drawn.choice([0, 0.02, 0.1]) * drawn.random())
            what = f"{name}, seed {seed}, process {number + 1}, " + (
                f"killed at write {at}" if arms else "killed by time"
            )
            begun, _ = self._killed(what, work, directory, before, at, kill)
            if begun is None:
                return
            before = begun
            if begun.at == len(work.operations):
                break
        for number in range(damages):
            self._damage(
                f"{name}, seed {seed}, damage {number + 1}",
                work,
                directory,
                before,
                random.Random(f"{name} {seed} {number}"),
            )

    def every(self, name: str, seed: int, step: int = 1, first: int = 1) -> None:
        """The same operations again and again, each time killed at the next moment of a write, until none is left."""
        work, at, is_killed = WORKS[name](seed), first, True
        while is_killed:
            directory = self._empty("run")
            what = f"{name}, seed {seed}, killed at write {at}"
            begun, is_killed = self._killed(what, work, directory, Begun(), at, None)
            if begun is not None and is_killed:
                # The rest goes on from what was left.
                self._killed(f"{what}, the rest", work, directory, begun, 0, None)
            at += step

    def _killed(
        self, what: str, work: Work, directory: Path, begun: Begun, at: int, kill: tuple[int, float] | None
    ) -> tuple[Begun | None, bool]:
        """One process and a look at what it left: with what the next one begins, None if it is wrong; and whether the
        process was killed."""

        def run(say: Say) -> None:
            if at:
                processes.arm(directory, at)
            work.work(directory, begun, say)

        ended = forked(run, kill)
        self.counts[
            f"{work.name}: " + ("processes killed" if ended.signal else "processes that came to their end")
        ] += 1
        done = begun.at + len(ended.lines)
        if ended.wrong:
            self._is_wrong(what, f"operation {done}, {work.operations[done : done + 1]!r:.100}: {ended.wrong}")
            return None, True
        # Opening keyed state empties its logs. The damage is to hit them too.
        shutil.copytree(directory, self._empty("kept"), dirs_exist_ok=True)
        looked = forked(lambda say: say(json.dumps(asdict(work.check(directory, begun, done)))))
        if looked.wrong or looked.signal:
            self._is_wrong(
                what, f"after {done} operations, then {work.operations[done : done + 1]!r:.100}: {looked.wrong}"
            )
            return None, ended.signal == signal.SIGKILL
        return Begun(**json.loads(looked.lines[-1])), ended.signal == signal.SIGKILL

    def _damage(self, what: str, work: Work, directory: Path, begun: Begun, drawn: random.Random) -> None:
        # In place: a cache belongs to its path.
        shutil.copytree(self._room / "kept", self._empty(directory.name), dirs_exist_ok=True)
        by_kind: dict[str, list[str]] = {}
        for file in files_of(directory):
            by_kind.setdefault(kind_of(file), []).append(file)
        if not by_kind:
            return
        kinds = sorted(by_kind) if drawn.random() < 1 / 8 else sorted(by_kind.keys() - UNREAD)
        kind = drawn.choice(kinds or sorted(by_kind))
        file = drawn.choice(by_kind[kind])
        how = damage(directory / file, drawn)
        ended = forked(lambda say: say(work.read_damaged(directory, file, how.split()[0], begun).value))
        outcome = ended.lines[-1] if ended.lines else "wrong"
        self.counts[f"{work.name}: damage, {kind}: {outcome}"] += 1
        if ended.wrong:
            self._is_wrong(what, f"{file}, {how}: {ended.wrong}")

    def _is_wrong(self, what: str, why: str) -> None:
        self.wrong.append(f"{what}: {why}")

    def _empty(self, name: str) -> Path:
        path = self._room / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path
