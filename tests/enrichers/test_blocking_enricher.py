"""`BlockingEnricher`: functions in threads, their clients, cancellations, and what a Python worker lacks."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import Batching, Cache, ConfigurationError, EnricherError, Retry
from asyncio_operator.enricher import missing_here
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeService, check_enricher
from enrichers import BlockingEnricher, FunctionEnricher, HttpEnricher, blocking
from tests.enrichers.helpers import in_sqlite, opened

ROWS: dict[Any, Any] = {"JFK": {"name": "Kennedy"}, "LGA": [{"name": "a"}, {"name": "b"}]}


def airport(key: str) -> Any:
    return ROWS.get(key)


def airports(keys: Any) -> Any:
    return [ROWS.get(key) for key in keys]


async def cannot_block(key: str) -> Any: ...


@pytest.mark.parametrize(
    "options", [{}, {"function_many": airports}, {"function": None, "function_many": airports, "max_batch": 2}]
)
def test_it_keeps_the_contract(options: Any) -> None:
    check_enricher(
        lambda: BlockingEnricher(**{"function": airport, "schema": "name string"} | options),
        known=ROWS,
        missing=["XXX"],
    )


def test_a_client_of_a_database_keeps_the_contract(tmp_path: Path) -> None:
    """SQLite refuses a connection in any thread but the one that made it, closing included."""
    path = tmp_path / "airports.db"
    in_sqlite(path, "CREATE TABLE airports (faa, name)", "INSERT INTO airports VALUES ('JFK', 'Kennedy'), ('LGA', 'a')")

    def make() -> BlockingEnricher:
        return BlockingEnricher(
            ask_sqlite, "name string", 3, setup=lambda: sqlite3.connect(path), teardown=lambda client: client.close()
        )

    check_enricher(make, known={"JFK": {"name": "Kennedy"}, "LGA": {"name": "a"}}, missing=["XXX", "o'Hare"])


def ask_sqlite(client: sqlite3.Connection, key: str) -> Any:
    row = client.execute("SELECT name FROM airports WHERE faa = ?", (key,)).fetchone()
    return None if row is None else {"name": row[0]}


class Clients:
    """What became of the clients of an enricher."""

    def __init__(self) -> None:
        self.made: list[threading.Thread] = []
        self.torn_down: list[tuple[threading.Thread, threading.Thread]] = []
        self.together = threading.Barrier(4)

    def make(self) -> threading.Thread:
        self.made.append(threading.current_thread())
        return threading.current_thread()

    def tear_down(self, client: threading.Thread) -> None:
        self.torn_down.append((client, threading.current_thread()))

    def use(self, client: threading.Thread, key: Any) -> Any:
        self.together.wait(10)
        return {"own": client is threading.current_thread()}


async def test_each_thread_has_one_client_and_tears_it_down_itself() -> None:
    clients = Clients()
    async with opened(
        BlockingEnricher(clients.use, "own boolean", 4, setup=clients.make, teardown=clients.tear_down)
    ) as enricher:
        found = await asyncio.gather(*(enricher.lookup(key) for key in range(40)))
        assert found == [{"own": True}] * 40
    assert len(clients.made) == len(set(clients.made)) == 4
    assert sorted(clients.torn_down, key=str) == sorted(((client, client) for client in clients.made), key=str)
    for thread in clients.made:
        thread.join(10)
        assert not thread.is_alive()


async def test_O11_a_cancelled_lookup_ends_with_its_thread() -> None:
    started, release = threading.Event(), threading.Event()

    def wait(key: Any) -> None:
        started.set()
        release.wait(10)

    async with opened(BlockingEnricher(wait, "a int")) as enricher:
        lookup = asyncio.ensure_future(enricher.lookup(1))
        await asyncio.to_thread(started.wait, 10)
        lookup.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not lookup.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await lookup


async def test_a_lookup_that_waits_for_a_thread_is_cancelled_at_once_and_never_run() -> None:
    started, release, asked = threading.Event(), threading.Event(), []

    def wait(key: Any) -> None:
        asked.append(key)
        started.set()
        release.wait(10)

    async with opened(BlockingEnricher(wait, "a int", 1)) as enricher:
        first, second = (asyncio.ensure_future(enricher.lookup(key)) for key in (1, 2))
        await asyncio.to_thread(started.wait, 10)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not first.done()
        release.set()
        assert await first is None
        assert await enricher.lookup(3) is None
        assert asked == [1, 3]


@pytest.mark.parametrize("max_workers", [1, 3])
async def test_close_does_not_wait_for_ever_for_a_thread(
    max_workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread tears its client down when its call is done, and an exit of that does not replace the answer."""
    monkeypatch.setattr(blocking, "CLOSE_TIMEOUT", 0.05)
    started, release, torn_down = threading.Event(), threading.Event(), threading.Event()

    def wait(client: Any, key: Any) -> Any:
        started.set()
        release.wait(60)
        return {"a": 1}

    def leave(client: Any) -> None:
        torn_down.set()
        raise SystemExit("already gone")

    async with opened(BlockingEnricher(wait, "a int", max_workers, setup=lambda: "client", teardown=leave)) as enricher:
        lookup = asyncio.ensure_future(enricher.lookup(1))
        await asyncio.to_thread(started.wait, 10)
    assert not torn_down.is_set()
    assert not lookup.done()
    release.set()
    assert await lookup == {"a": 1}
    assert await asyncio.to_thread(torn_down.wait, 10)
    while "already gone" not in caplog.text:  # noqa: ASYNC110 - a log does not tell
        await asyncio.sleep(0)


async def test_a_failing_setup_is_no_keys_fault_and_is_tried_again() -> None:
    attempts: list[int] = []

    def connect() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("no route")
        return "client"

    async with opened(
        BlockingEnricher(
            lambda client, key: {"a": 1}, "a int", 1, setup=connect, teardown=lambda client: attempts.append(0)
        )
    ) as enricher:
        with pytest.raises(EnricherError, match=": setup failed: ConnectionError: no route") as raised:
            await enricher.lookup(1)
        assert (raised.value.retryable, raised.value.any_key) == (None, True)
        assert isinstance(raised.value.__cause__, ConnectionError)
        assert await enricher.lookup(1) == {"a": 1}
    assert attempts == [1, 1, 1, 0]


def needs_a_variable() -> Any:
    return os.environ["NO_SUCH_DSN"]


def needs_a_module() -> Any:
    import no_such_driver  # type: ignore[import-not-found]

    return no_such_driver


def needs_it_inside() -> Any:
    try:
        return needs_a_variable()
    except KeyError as error:
        raise ConnectionError("not configured") from error


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (needs_a_variable, "the environment variable 'NO_SUCH_DSN' is not set in this process"),
        (needs_it_inside, "the environment variable 'NO_SUCH_DSN' is not set in this process"),
        (needs_a_module, "the module 'no_such_driver' is not installed"),
    ],
)
async def test_what_setup_lacks_in_this_process_is_found_by_open(setup: Any, says: str) -> None:
    enricher = BlockingEnricher(lambda client, key: {"a": 1}, "a int", setup=setup, teardown=print)
    for call in (enricher.open, lambda: enricher.lookup(1)):
        with pytest.raises(EnricherError, match=says) as raised:
            await call()
        assert (raised.value.retryable, raised.value.any_key) == (False, True)
        assert missing_here(raised.value) is not None
    await enricher.close()


def needs_another_version() -> Any:
    from asyncio import no_such_name  # type: ignore[attr-defined]

    return no_such_name


def needs_it_behind() -> Any:
    try:
        return needs_a_module()
    except ImportError as error:
        raise ValueError("no driver") from error


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (needs_a_module, "the module 'no_such_driver' is not installed in this Python"),
        (needs_it_behind, "the module 'no_such_driver' is not installed in this Python"),
        (needs_another_version, "ImportError: cannot import name 'no_such_name' from 'asyncio'"),
    ],
)
async def test_an_import_that_fails_is_no_keys_fault(function: Any, says: str) -> None:
    one = BlockingEnricher(lambda key: function(), "a int")
    many = BlockingEnricher(None, "a int", setup=dict, function_many=lambda client, keys: function())
    for enricher in (one, many):
        await enricher.open()
        with pytest.raises(EnricherError, match=says) as raised:
            await enricher.lookup("some key")
        assert (raised.value.retryable, raised.value.any_key) == (False, True)
        assert "some key" not in str(raised.value)
        assert raised.value.__cause__ is not None
        await enricher.close()


async def test_a_client_that_is_made_by_open_serves_the_first_lookup() -> None:
    numbers = iter(range(7, 9))
    async with opened(
        BlockingEnricher(lambda client, key: {"a": client}, "a int", 1, setup=lambda: next(numbers))
    ) as enricher:
        assert await enricher.lookup(1) == {"a": 7}
        assert next(numbers) == 8


@pytest.mark.parametrize("error", [ConnectionError, SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration])
@pytest.mark.parametrize("max_workers", [1, 3])
def test_a_failing_teardown_is_logged_and_ends_nothing(
    max_workers: int, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Not the loop either: a SystemExit of a thread would go through it."""
    clients = Clients()

    def fail(client: Any) -> None:
        clients.tear_down(client)
        raise error("already gone")

    async def main() -> None:
        enricher = BlockingEnricher(
            lambda client, key: {"a": 1}, "a int", max_workers, setup=clients.make, teardown=fail
        )
        await enricher.open()
        await asyncio.gather(*(enricher.lookup(key) for key in range(10)))
        with caplog.at_level(logging.WARNING, "asyncio_operator"):
            await enricher.close()

    asyncio.run(main())
    assert "already gone" in caplog.text
    assert [client for client, _ in clients.torn_down] == [thread for _, thread in clients.torn_down]
    assert {client for client, _ in clients.torn_down} == {*clients.made}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (None, "gave None for 2 keys"),
        ([], "gave a list of 0 for 2 keys"),
        ([None] * 3, "gave a list of 3 for 2 keys"),
        ({"JFK": None, "LGA": None}, "gave {'JFK': None, 'LGA': None} for 2 keys"),
        ("ab", "gave 'ab' for 2 keys"),
    ],
)
async def test_answers_that_are_not_one_for_each_key_are_no_keys_fault(answers: Any, says: str) -> None:
    """They are a mistake in the function: of the halves of the batch none would fare better."""
    asked: list[Any] = []

    def find(keys: Any) -> Any:
        asked.append(keys)
        return answers

    async with opened(BlockingEnricher(None, "a int", function_many=find)) as enricher:
        with pytest.raises(EnricherError, match=f"{says}; it must return a list of one answer for each key") as raised:
            await enricher.lookup_many(["JFK", "LGA"])
        assert (raised.value.retryable, raised.value.any_key) == (False, True)
    async with Lookup(enricher) as lookup:
        found = await asyncio.gather(lookup.get("JFK"), lookup.get("LGA"), return_exceptions=True)
    assert [type(error) for error in found] == [EnricherError] * 2
    assert asked == [["JFK", "LGA"]] * 2, "the batch is not split"


async def test_it_has_to_be_open() -> None:
    with pytest.raises(EnricherError, match="not open"):
        await BlockingEnricher(airport, "name string").lookup("JFK")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"function": cannot_block}, "FunctionEnricher"),
        ({"function": 1}, "function is 1"),
        ({"function": None}, "function_many"),
        ({"max_batch": 5}, "needs function_many"),
        ({"teardown": print}, "setup is not"),
        ({"setup": cannot_block}, "setup is"),
        ({"function": lambda: None}, "function is .* it must take one argument, the key"),
        ({"setup": dict}, "function is .* two arguments, the client that `setup` gives and the key"),
        ({"function_many": lambda a, b: []}, "function_many is .* one argument, a list of keys"),
        ({"setup": lambda key: None, "function": max}, "setup is .* it must take no arguments"),
        ({"setup": dict, "function": max, "teardown": lambda: None}, "teardown is .* one argument, the client"),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        BlockingEnricher(**{"function": airport, "schema": "name string"} | arguments)


# -- in Spark: the task fails with the remedy, whatever `on_error` says


SCHEMA = "name string"


async def function(key: int) -> Any:
    return needs_a_module() if key == 3 else {"name": "a"}


def blocks(key: int) -> Any:
    return needs_a_module() if key == 3 else {"name": "a"}


async def fall_back(key: int) -> Any:
    try:
        return needs_a_module()
    except ImportError:
        return {"name": {0: "a", 1: "b"}[key]}


async def of_an_account(key: int) -> Any:
    return {"name": os.environ[f"NAME_OF_{key}"]}


def ended(spark: Any, enricher: Any, **options: Any) -> str:
    """What a job ends with in which failures are to be nulls."""
    from asyncio_operator.spark import enrich

    rows = enrich(spark.range(0, 5, 1, 1), enricher, on="id", on_error="null", **options)
    with pytest.raises(Exception, match="FunctionError") as raised:
        rows.collect()
    return str(raised.value)


ADVICE = "install it in the Python of every executor, or send it with spark.submit.pyFiles"


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (lambda _: FunctionEnricher(function, SCHEMA), {}, ADVICE),
        (lambda _: FunctionEnricher(function, SCHEMA), {"cache": Cache(), "retry": Retry()}, ADVICE),
        (lambda _: BlockingEnricher(blocks, SCHEMA), {"status_column": "s"}, ADVICE),
        (
            lambda _: BlockingEnricher(None, SCHEMA, function_many=lambda keys: needs_a_module()),
            {"batching": Batching(max_size=3)},
            ADVICE,
        ),
        (
            lambda _: BlockingEnricher(lambda key: needs_another_version(), SCHEMA),
            {},
            "cannot import name 'no_such_name'.*the cause is in this Python worker, not in the key",
        ),
        (lambda url: HttpEnricher(url, schema=SCHEMA, headers=needs_a_module), {}, ADVICE),
        (
            lambda url: HttpEnricher(url, schema=SCHEMA, headers=lambda: {"X": needs_a_variable()}),
            {},
            "spark.executorEnv.NO_SUCH_DSN",
        ),
    ],
    ids=["function", "cache", "status", "batches", "version", "headers", "variable"],
)
@pytest.mark.spark
def test_X6_what_a_worker_lacks_is_not_hidden(spark: Any, make: Any, options: Any, says: str) -> None:
    """An import that fails in a function, in one of batches, and what the headers need."""
    with FakeService({}) as service:
        assert re.search(says, ended(spark, make(service.url + "/rows/{key}"), **options), re.DOTALL)
        assert service.requests == []


@pytest.mark.spark
def test_X6_what_may_be_of_the_key_is_null_as_before(spark: Any) -> None:
    from asyncio_operator.spark import enrich

    for way, found in ((fall_back, ["a", "b", None]), (of_an_account, [None] * 3)):
        rows = enrich(spark.range(0, 3, 1, 1), FunctionEnricher(way, SCHEMA), on="id", on_error="null")
        assert [row["name"] for row in rows.collect()] == found
