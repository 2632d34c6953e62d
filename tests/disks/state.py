"""Keyed state on RocksDB, with checkpoints and times to live: random operations, and what has to be there.

Laws S11 and S14: a write is whole or absent, what was acknowledged is there, damage is a StateError. S15: so are
checkpoints. The model is a few dictionaries.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Hashable
from copy import deepcopy
from pathlib import Path
from typing import Any

from asyncio_operator.errors import StateError
from asyncio_operator.state import (
    HeapStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RocksDBOptions,
    RocksDBStateBackend,
    SnapshotReader,
    StateTtlConfig,
    ValueStateDescriptor,
    checkpoint,
    restore_checkpoint,
)
from asyncio_operator.state.backend import StateBackend
from asyncio_operator.testing.time import ManualClock
from tests.disks.processes import Say
from tests.disks.wrong import Begun, Outcome, WrongError, difference

TTL = 10
SLOTS: list[tuple[Any, Any]] = [(key, namespace) for key in (1, "1", ("a", 2), 7) for namespace in (None, "n")]
MIB = 1 << 20
OPTIONS = (None, RocksDBOptions(write_buffer_bytes=MIB, block_cache_bytes=MIB, max_log_bytes=MIB))

View = dict[Hashable, tuple[Any, ...]]


class States:
    """The states of a backend."""

    def __init__(self, backend: StateBackend) -> None:
        ttl = StateTtlConfig(TTL)
        self._backend = backend
        self.value = backend.value_state(ValueStateDescriptor("value"))
        self.list = backend.list_state(ListStateDescriptor("list"))
        self.map = backend.map_state(MapStateDescriptor("map"))
        self.sum = backend.reducing_state(ReducingStateDescriptor("sum", lambda one, other: one + other))
        self.live = backend.value_state(ValueStateDescriptor("live", ttl=ttl))
        self.live_map = backend.map_state(MapStateDescriptor("live map", ttl=ttl))

    def at(self, slot: tuple[Any, Any]) -> None:
        self._backend.set_current_key(slot[0])
        self._backend.set_current_namespace(slot[1])

    def read(self) -> View:
        """Everything that can be read."""
        found: View = {}
        for slot in SLOTS:
            self.at(slot)
            found[slot] = (
                self.value.value(),
                self.list.get(),
                dict(self.map.items()),
                self.sum.get(),
                self.live.value(),
                dict(self.live_map.items()),
            )
        return found


class Model:
    """The same in dictionaries.

    Attributes:
        home: the number of the directory with the state: a restore makes another one.
        kept: the checkpoints: what they hold, by the number of their operation.
    """

    def __init__(self) -> None:
        self.now = 1_000
        self.home = 0
        self.kept: dict[int, Model] = {}
        self._entries: dict[tuple[Any, Any], list[Any]] = {slot: [None, [], {}, None, None, {}] for slot in SLOTS}

    def apply(self, number: int, kind: str, *given: Any) -> None:
        if kind == "pass":
            self.now += given[0]
        elif kind == "checkpoint":
            copy = deepcopy(self)
            copy.kept = {}
            self.kept[number] = copy
        elif kind == "restore" and self.kept:
            self._entries = deepcopy(self.kept[max(self.kept)]._entries)
            self.home += 1
        elif kind not in ("compact", "reopen", "restore"):
            self._write(kind, *given)

    def _write(self, kind: str, slot: tuple[Any, Any], given: Any) -> None:
        entry = self._entries[slot]
        match kind:
            case "value":
                entry[0] = given
            case "list":
                entry[1] = list(given)
            case "append":
                entry[1] = entry[1] + list(given)
            case "put":
                entry[2] |= given
            case "remove":
                entry[2].pop(given, None)
            case "clear":
                entry[2] = {}
            case "add":
                entry[3] = given if entry[3] is None else entry[3] + given
            case "live":
                entry[4] = (given, self.now)
            case "put live":
                entry[5] |= {key: (value, self.now) for key, value in given.items()}

    def view(self) -> View:
        found: View = {}
        for slot, (value, elements, entries, total, live, live_map) in self._entries.items():
            alive = {key: one for key, (one, came) in live_map.items() if came + TTL > self.now}
            now = live[0] if live is not None and live[1] + TTL > self.now else None
            found[slot] = (value, list(elements), dict(entries), total, now, alive)
        return found


class StateWork:
    """One run of random operations on keyed state. See `runs.Work`."""

    name = "state"

    def __init__(self, seed: int) -> None:
        drawn = random.Random(f"state {seed}")
        self._options = drawn.choice(OPTIONS)
        self._size = drawn.choice([5, 200, 50_000])
        self.operations = [self._draw(drawn) for _ in range(drawn.choice([8, 25, 60]))]

    def _draw(self, drawn: random.Random) -> tuple[Any, ...]:
        kinds = ["value"] * 5 + ["list", "append", "put", "add", "live", "put live"] * 3
        kind = drawn.choice(
            [*kinds, "remove", "clear", "pass", "pass", "compact", "checkpoint", "checkpoint", "reopen", "restore"]
        )
        if kind == "pass":
            return kind, drawn.randint(1, 6)
        if kind in ("compact", "checkpoint", "reopen", "restore"):
            return (kind,)
        number = drawn.randrange(1 << 40)
        text = f"{number:x}" + drawn.randbytes(drawn.randrange(self._size)).hex()
        given: Any = {
            "value": text if drawn.random() < 0.8 else None,
            "list": [number, text][: drawn.randrange(3)],
            "append": [text, number],
            "put": {drawn.randrange(6): text for _ in range(drawn.randint(1, 4))},
            "remove": drawn.randrange(6),
            "clear": None,
            "add": number,
            "live": text,
            "put live": {drawn.randrange(6): text for _ in range(drawn.randint(1, 4))},
        }[kind]
        return kind, drawn.choice(SLOTS), given

    def model(self, done: int) -> Model:
        """After some operations."""
        model = Model()
        for number, operation in enumerate(self.operations[:done]):
            model.apply(number, *operation)
        return model

    def work(self, directory: Path, begun: Begun, say: Say) -> None:
        model = self.model(begun.at)
        clock = ManualClock(model.now)
        backend = self._opened(directory / f"state-{model.home}", clock)
        states = States(backend)
        for number, operation in enumerate(self.operations[begun.at :], begun.at):
            kind, *given = operation
            if kind == "compact":
                backend.compact()
            elif kind == "checkpoint":
                path = directory / f"checkpoint-{number}"
                _throw_away(path)
                checkpoint(path, backend)
            elif kind == "reopen" or (kind == "restore" and model.kept):
                backend.close()
                home = model.home + (kind == "restore")
                if kind == "restore":
                    _throw_away(directory / f"state-{home}")
                backend = self._opened(directory / f"state-{home}", clock)
                if kind == "restore":
                    restore_checkpoint(directory / f"checkpoint-{max(model.kept)}", backend)
                states = States(backend)
            elif kind not in ("pass", "restore"):
                states.at(given[0])
                _actions(states)[kind](given[1])
            model.apply(number, *operation)
            clock.set(model.now)
            say("done")
        backend.close()

    def check(self, directory: Path, begun: Begun, done: int) -> Begun:
        before = self.model(done)
        after = self.model(done + 1) if done < len(self.operations) else before
        for number, kept in after.kept.items():
            path = directory / f"checkpoint-{number}"
            # The last one may have been about to be made.
            if number in before.kept or path.exists():
                _same(f"checkpoint {number}", _restored(path, kept.now), kept.view())
        if after.home != before.home and (made := directory / f"state-{after.home}").exists():
            found = self._read(made, after.now)
            if found != Model().view():
                _same("a restore that was killed", found, after.view())
        found = self._read(directory / f"state-{before.home}", before.now)
        if found == before.view():
            return Begun(done)
        if after.home == before.home and self._read(directory / f"state-{after.home}", after.now) == after.view():
            return Begun(done + 1)
        raise WrongError(f"after {done} operations: {difference(found, before.view())}")

    def read_damaged(self, directory: Path, file: str, how: str, begun: Begun) -> Outcome:
        model = self.model(begun.at)
        place = file.partition("/")[0]
        if not place.startswith("checkpoint") and place != f"state-{model.home}":
            return Outcome.UNUSED
        try:
            if place.startswith("checkpoint"):
                kept = model.kept.get(int(place.partition("-")[2]))
                if kept is None:
                    return Outcome.UNUSED
                model = kept
                found = _restored(directory / place, model.now)
            else:
                found = self._read(directory / place, model.now)
        except StateError as error:
            if str(directory / place) not in str(error):
                raise WrongError(f"an error that does not name {place}") from error
            return Outcome.ERROR
        if found == model.view():
            return Outcome.RIGHT
        # What `docs/state.md` names as damage that looks like a kill.
        if how == "cut" and place.startswith("state"):
            older = [_at(self.model(one), model.now).view() for one in range(begun.at + 1)]
            if ".log" in file and found in older:
                return Outcome.OLDER
            if "MANIFEST" in file and all(_was(found[slot], [view[slot] for view in older]) for slot in SLOTS):
                return Outcome.OLDER
        raise WrongError(difference(found, model.view()))

    def _opened(self, path: Path, clock: ManualClock) -> RocksDBStateBackend:
        return RocksDBStateBackend(path, clock=clock, options=self._options)

    def _read(self, path: Path, now: float) -> View:
        backend = self._opened(path, ManualClock(now))
        try:
            return States(backend).read()
        finally:
            backend.close()


def _actions(states: States) -> dict[str, Callable[[Any], Any]]:
    return {
        "value": states.value.update,
        "list": states.list.update,
        "append": states.list.add_all,
        "put": states.map.put_all,
        "remove": states.map.remove,
        "clear": lambda _: states.map.clear(),
        "add": states.sum.add,
        "live": states.live.update,
        "put live": states.live_map.put_all,
    }


def _at(model: Model, now: int) -> Model:
    model.now = now
    return model


def _was(found: tuple[Any, ...], older: list[tuple[Any, ...]]) -> bool:
    """Whether each state once was as it is found. They may be of different ages."""
    return all(any(one == view[number] for view in older) for number, one in enumerate(found))


def _restored(path: Path, now: float) -> View:
    reader = SnapshotReader(path)
    entries = sum(1 for state in reader.states() for _ in reader.entries(state.name))
    with HeapStateBackend(clock=ManualClock(now)) as backend:
        restore_checkpoint(path, backend)
        if (found := backend.num_entries()) != entries:
            raise WrongError(f"SnapshotReader has {entries} entries of {path.name}, a restore {found}")
        return States(backend).read()


def _same(what: str, found: View, wanted: View) -> None:
    if found != wanted:
        raise WrongError(f"{what}: {difference(found, wanted)}")


def _throw_away(path: Path) -> None:
    """Removes what a killed process had nearly made; a kill meanwhile leaves it under another name."""
    away = path.with_name("thrown-away")
    shutil.rmtree(away, ignore_errors=True)
    if path.exists():
        path.rename(away)
        shutil.rmtree(away)
