"""An enricher that keeps every rule of the contract, and for each rule some that break it and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from asyncio_operator import Enricher
from asyncio_operator.enricher import Found
from asyncio_operator.testing import ManualClock

ROWS: Any = {"JFK": {"name": "Kennedy", "height": 4}, "LGA": [{"name": "a"}, {"name": "b", "height": 7}]}
MISSING = ["XXX", "jfk"]
SECRET = "hunter2-s3cret"


class Sound(Enricher):
    """Keeps every rule; each of the broken ones changes one thing."""

    max_batch = 3

    def __init__(self) -> None:
        self.client: dict[Any, Any] | None = None

    def schema(self) -> pa.Schema:
        return pa.schema([("name", pa.string()), ("height", pa.int32())])

    async def open(self) -> None:
        self.client = ROWS

    async def close(self) -> None:
        self.client = None

    async def lookup(self, key: Any) -> Found:
        if self.client is None:
            raise RuntimeError("not open")
        await asyncio.sleep(0.1)
        found: Found = self.client.get(key)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"client": None}


NUMBERS = itertools.count()


def changed(base: type[Sound] = Sound, **members: Any) -> type[Enricher]:
    """A class that differs from a sound one in these members."""
    return type("Changed", (base,), members)


def answers(answer: Callable[[Any], Any]) -> Any:
    """A lookup of one or many keys with these answers."""

    async def lookup(self: Any, key: Any) -> Any:
        return answer(key)

    return lookup


def schema(*columns: tuple[str, pa.DataType]) -> Any:
    """A method that gives a schema."""
    return lambda self: pa.schema(columns)


class LooksNothingUp(Sound):
    lookup = Enricher.lookup


RaisesForMissing = changed(lookup=answers(lambda key: ROWS[key]))


def many(change: Callable[[Sequence[Any]], Sequence[Any]]) -> type[Enricher]:
    """Changes the keys of `lookup_many`."""
    return changed(lookup_many=lambda self, keys: Sound.lookup_many(self, change(keys)))


class ManyDiffers(Sound):
    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        found = await super().lookup_many(keys)
        return [row[::-1] if isinstance(row, list) else row for row in found]


def columns_of(keys: list[Any]) -> pa.Table:
    rows = [row | {"code": key} for key in keys for row in ([ROWS[key]] if isinstance(ROWS[key], dict) else ROWS[key])]
    return pa.Table.from_pylist(rows, pa.schema([("name", pa.string()), ("height", pa.int32()), ("code", pa.string())]))


class SoundColumns(Sound):
    def key_schema(self) -> pa.Schema:
        return pa.schema([("code", pa.string())])

    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return columns_of([key for key in keys.to_pylist() if key in ROWS])


class ColumnsDiffer(SoundColumns):
    async def lookup_columns(self, keys: pa.Array) -> pa.Table:
        return (await super().lookup_columns(keys))[::-1]


class OnlyTheFirst(SoundColumns):
    """A key that comes twice is found once."""

    in_memory = True
    max_batch = 10

    async def lookup_rows(self, keys: pa.Array) -> Any:
        table = columns_of([*ROWS])
        codes, asked = table["code"].to_pylist(), keys.to_pylist()
        found = [
            (row, place)
            for place, key in enumerate(asked)
            if asked.index(key) == place
            for row, code in enumerate(codes)
            if code == key
        ]
        return table, [row for row, _ in found], [place for _, place in found]


class OneAtATime(Sound):
    """What a lookup asks for is an attribute of the enricher, where another overwrites it."""

    async def lookup(self, key: Any) -> Found:
        self.key = key
        await asyncio.sleep(0.1)
        found: Found = ROWS.get(self.key)
        return found

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        return [ROWS.get(key) for key in keys]


Ordinary = changed(lookup=lambda self, key: ROWS.get(key))


class Blocks(Sound):
    """Blocks for a second of a clock in place of a real one."""

    clock = ManualClock()

    async def lookup(self, key: Any) -> Found:
        self.clock.advance(1)
        return await super().lookup(key)


def cancelled(act: Callable[[Any], Any]) -> type[Enricher]:
    """Does this if a lookup is cancelled."""

    async def lookup(self: Any, key: Any) -> Any:
        try:
            return await Sound.lookup(self, key)
        except asyncio.CancelledError:
            return await act(self)

    return changed(lookup=lookup)


async def swallow(self: Any) -> None: ...


async def fail(self: Any) -> None:
    raise RuntimeError("the client was interrupted")


async def linger(self: Any) -> None:
    await asyncio.sleep(100)
    raise asyncio.CancelledError


async def break_down(self: Any) -> None:
    self.client = {}
    raise asyncio.CancelledError


def opening(act: Callable[[Any], object]) -> type[Enricher]:
    """Does this too when it is opened."""

    async def open_too(self: Any) -> None:
        await Sound.open(self)
        act(self)

    return changed(open=open_too)


def open_once(self: Any) -> None:
    assert not hasattr(self, "opened"), "opened twice"
    self.opened = True


def stay_on_its_loop(self: Any) -> None:
    self.loop = getattr(self, "loop", None) or asyncio.get_running_loop()
    assert self.loop is asyncio.get_running_loop(), "another loop"


def log_an_error(self: Any) -> None:
    try:
        raise ConnectionError(f"no route for {SECRET}")
    except ConnectionError:
        logging.getLogger("client").warning("the first try failed", exc_info=True)


def leave_a_task(self: Any) -> None:
    self.task = asyncio.ensure_future(asyncio.sleep(1e9))


SOCKETS: list[socket.socket] = []
"""What was left behind."""

STOP = threading.Event()
"""Ends the threads that were left behind."""


def leave_a_socket(self: Any) -> None:
    SOCKETS.append(socket.socket())


def leave_a_thread(self: Any) -> None:
    threading.Thread(target=STOP.wait, daemon=True).start()


async def close_once(self: Any) -> None:
    assert self.client is not None, "closed twice"
    self.client = None


class PicklesItsClient(Sound):
    async def open(self) -> None:
        await super().open()
        self.thread = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class ForgetsInPickle(Sound):
    rows: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.rows = ROWS

    async def lookup(self, key: Any) -> Found:
        return (self.rows or {}).get(key)


class NeverEqual(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.number = next(NUMBERS)

    def __getstate__(self) -> dict[str, Any]:
        return {"client": None, "number": self.number}


ShowsItsPassword = changed(__repr__=lambda self: f"Changed({SECRET})")


@types.coroutine
def _ready() -> Any:
    return {}
    yield


BROKEN = [
    ("rule_schema", changed(schema=lambda self: "name string, height int"), "gave 'name string"),
    ("rule_schema", changed(schema=lambda self: pa.schema([(f"name{next(NUMBERS)}", pa.string())])), "second call"),
    ("rule_schema", changed(schema=schema(("name", pa.string()), ("name", pa.string()))), "twice"),
    (
        "rule_schema",
        changed(schema=lambda self: pa.schema([("name", pa.string() if self.client is None else pa.int32())])),
        "while it was open",
    ),
    (
        "rule_key_schema",
        changed(key_schema=schema(("origin", pa.string()), ("hour", pa.int32()))),
        "1 parts, and the key schema 2 columns",
    ),
    ("rule_key_schema", changed(key_schema=lambda self: ["origin"]), "gave"),
    ("rule_max_batch", changed(max_batch=0), "it is 0"),
    ("rule_max_batch", changed(max_batch="many"), "it is 'many'"),
    ("rule_weigh", changed(weigh=lambda self, keys: 5), "for 0 keys it is 5; it must be a mapping"),
    ("rule_weigh", changed(weigh=lambda self, keys: {"tokens": len(keys) - 1}), "must be a number from 0 to 1e+15"),
    ("rule_weigh", changed(weigh=lambda self, keys: {"calls": 2}), "has the unit 'calls', which is counted"),
    ("rule_weigh", changed(weigh=lambda self, keys: _ready()), "must be an ordinary function"),
    ("rule_weigh", changed(weigh=lambda self, keys: {"tokens": 10 - len(keys)}), "which is what any call weighs"),
    ("rule_found", LooksNothingUp, "LooksNothingUp has no lookup of its own"),
    ("rule_found", changed(lookup=answers(lambda key: None)), "was not found"),
    ("rule_found", changed(lookup=answers(lambda key: ROWS["JFK"] if key in ROWS else None)), "'LGA' gave"),
    ("rule_found", changed(lookup=answers(lambda key: "Kennedy" if key in ROWS else None)), "a mapping"),
    ("rule_missing", RaisesForMissing, "KeyError"),
    ("rule_missing", changed(lookup=answers(lambda key: ROWS.get(key, {"name": None}))), "None is needed"),
    ("rule_types", changed(schema=schema(("name", pa.int32()))), "does not fit: 'Kennedy'"),
    (
        "rule_types",
        changed(lookup=answers(lambda key: {"name": "a", "height": 1.5} if key in ROWS else None)),
        "does not fit: 1.5",
    ),
    ("rule_types", changed(schema=schema(("city", pa.string()))), "have none"),
    ("rule_types", changed(schema=schema(("name", pa.string()), ("hieght", pa.int32()))), "is one of them misspelt?"),
    ("rule_lookup_many", many(sorted), "gave"),
    ("rule_lookup_many", many(lambda keys: [*dict.fromkeys(keys)]), "answers for"),
    ("rule_lookup_many", ManyDiffers, "gave"),
    (
        "rule_lookup_columns",
        changed(SoundColumns, lookup_columns=answers(lambda keys: columns_of([*ROWS]))),
        "which was not asked for",
    ),
    ("rule_lookup_columns", ColumnsDiffer, "gave"),
    ("rule_lookup_columns", OnlyTheFirst, "was not found"),
    (
        "rule_lookup_columns",
        changed(SoundColumns, lookup_columns=lambda self, keys: columns_of(keys.to_pylist())),
        "an ordinary function; it must be `async def lookup_columns`",
    ),
    (
        "rule_found",
        Ordinary,
        "lookup('JFK') gave {'name': 'Kennedy', 'height': 4}, which cannot be awaited: make it an",
    ),
    (
        "rule_close",
        changed(open=lambda self: None),
        "open() gave None, which cannot be awaited: make it an `async def`",
    ),
    ("rule_concurrent", OneAtATime, "was not found"),
    ("rule_loop_is_free", Blocks, "lookup('JFK') held the event loop for 1.00 s at a time"),
    ("rule_cancellation", cancelled(swallow), "it was cancelled, but returned an answer"),
    ("rule_cancellation", cancelled(fail), "the client was interrupted"),
    ("rule_cancellation", cancelled(linger), "did not end"),
    ("rule_cancellation", cancelled(break_down), "was not found"),
    ("rule_close", changed(close=close_once), "closed twice"),
    ("rule_close", changed(close=lambda self: asyncio.sleep(1000)), "took more than"),
    ("rule_reopen", opening(open_once), "opened twice"),
    ("rule_another_loop", opening(stay_on_its_loop), "another loop"),
    ("rule_pickle", PicklesItsClient, "__getstate__"),
    ("rule_pickle", ForgetsInPickle, "was not found"),
    ("rule_equal", NeverEqual, "fingerprints differ"),
    ("rule_equal", changed(__getstate__=lambda self: {"client": self.client}), "changes with open"),
    ("rule_secrets", ShowsItsPassword, "the repr"),
    (
        "rule_secrets",
        opening(lambda self: logging.getLogger("client").debug("connected as %s", SECRET)),
        "the logger 'client'",
    ),
    ("rule_secrets", opening(log_an_error), "the logger 'client'"),
    ("rule_nothing_left", opening(leave_a_task), "sleep"),
    ("rule_nothing_left", opening(leave_a_socket), "1 sockets"),
    ("rule_nothing_left", opening(leave_a_thread), "thread Thread-"),
]
