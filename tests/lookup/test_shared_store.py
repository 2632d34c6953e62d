"""A store that workers share: what its outages cost, what a run leaves behind, and where its address does not show."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from asyncio_operator import Cache, ConfigurationError, Enricher
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lookup import Lookup, shared_cache, shared_store
from asyncio_operator.lookup.shared_cache import Format
from asyncio_operator.state.entries import ABSENT
from tests.faults.proxy import Proxy
from tests.lookup.helpers import Recorded, at_once
from tests.lookup.shared_workers import (
    SCHEMA,
    Worker,
    empty,
    names,
    never,
    patient,
    stored,
    until_it_answers,
    with_workers,
)
from tests.redis_service import RedisServer, needs_redis, redis_server

__all__ = ["empty", "patient", "redis_server"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test can wait for."""
    monkeypatch.setattr(shared_store, "PAUSE", 0.05)
    monkeypatch.setattr(shared_store, "LONGEST_PAUSE", 0.1)


def test_a_server_that_is_down_costs_calls_and_is_used_again_when_it_is_back(patient, hasty, caplog):
    needs_redis()
    with RedisServer() as server:

        @with_workers(server, {})
        async def work(worker: Worker) -> None:
            await worker.look_up(Recorded(at_once), [1])
            server.stop()
            enricher = Recorded(at_once)
            with caplog.at_level(logging.WARNING):
                for key in range(2, 6):
                    found, _ = await worker.look_up(enricher, [1, key])
                    assert found == [[({"x": 1}, "cache"), ({"x": key}, "call")]]
                    await asyncio.sleep(0.06)
            assert enricher.calls == [2, 3, 4, 5]
            (record,) = caplog.records
            assert f"the store of a cache, 'redis://127.0.0.1:{server.port}/0', does not answer" in record.getMessage()
            assert server.password not in caplog.text
            server.start()
            await until_it_answers(worker)
            await worker.look_up(Recorded(at_once), [6])
            assert len(names(server)) == 1


def test_a_server_that_stands_still_holds_up_one_question_and_no_more(hasty, caplog):
    needs_redis()
    with RedisServer() as server:

        @with_workers(server, {})
        async def work(worker: Worker) -> None:
            await until_it_answers(worker)
            server.pause()
            try:
                enricher = Recorded(at_once, 1_000)
                found, _ = await worker.look_up(enricher, list(range(2_000)))
                assert {source for _, source in found[0]} == {"call"}
                # Two questions at a time waited, and all others went on at once. After the run no answer waits.
                assert 1 <= worker.shared._store.late <= 2
                assert len(worker.shared._queue) == 0
            finally:
                server.resume()
            await until_it_answers(worker)
            await worker.look_up(enricher, [5_000])
            assert Format("s", SCHEMA).name(5_000) in names(server)


@pytest.mark.parametrize("trouble", ["kill", "pause", "close connections", "forget", "fill"])
def test_whatever_happens_to_the_server_every_key_gets_its_answer(patient, hasty, monkeypatch, trouble):
    monkeypatch.setattr(shared_store, "WAIT", 0.05)
    needs_redis()
    with RedisServer() as server:
        moments = Random(trouble)

        async def at_any_moment() -> None:
            while True:
                await asyncio.sleep(moments.uniform(0, 0.03))
                await asyncio.to_thread(happen)

        def happen() -> None:
            if trouble == "kill":
                server.restart()
            elif trouble == "pause":
                server.pause()
                time.sleep(moments.uniform(0, 0.1))
                server.resume()
            elif trouble == "fill":
                server.command("CONFIG", "SET", "maxmemory", moments.choice(["0", "1"]))
            else:
                server.command(*(["FLUSHALL"] if trouble == "forget" else ["CLIENT", "KILL", "TYPE", "normal"]))

        async def soon(key: Any) -> Any:
            await asyncio.sleep(0.001)
            return {"x": key}

        @with_workers(server, *[{"max_rows": 50, "refresh_after": 0.01}] * 3)
        async def work(*workers: Worker) -> None:
            troubling = asyncio.ensure_future(at_any_moment())
            batches = [list(range(start, start + 100)) for start in (0, 50, 0, 100, 50)]
            runs = await asyncio.gather(*[worker.look_up(Recorded(soon), *batches, pause=0.02) for worker in workers])
            troubling.cancel()
            await asyncio.wait([troubling])
            for found, _ in runs:
                assert [[answer for answer, _ in one] for one in found] == [
                    [{"x": key} for key in keys] for keys in batches
                ]


def test_an_encrypted_connection_is_made_to_a_server_that_is_known(patient, caplog):
    needs_redis()
    with RedisServer(tls=True) as server:

        @with_workers(server, {"url": server.tls_url}, {"url": server.untrusted_url})
        async def work(trusting: Worker, other: Worker) -> None:
            await trusting.look_up(Recorded(at_once), [1])
            assert names(server) == [Format("s", SCHEMA).name(1)]
            with caplog.at_level(logging.WARNING):
                found, _ = await other.look_up(Recorded(at_once), [1])
            assert found == [[({"x": 1}, "call")]]
            assert "the certificate of the server does not verify" in caplog.text


def test_an_answer_that_has_arrived_is_read_however_busy_the_loop_was(redis_server):
    @with_workers(redis_server, {})
    async def work(worker: Worker) -> None:
        stored(redis_server, 1, {"x": 1})
        await until_it_answers(worker)
        asking = asyncio.ensure_future(worker.shared.find([1]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(2 * shared_store.WAIT)  # noqa: ASYNC251
        assert await asking == [{"x": 1}]


@pytest.mark.parametrize("wrong", ["wr0ng-s3cret", "no user"])
def test_refused_credentials_are_misses_and_logged_once_without_them(redis_server, patient, caplog, wrong):
    url = redis_server.url_with("wr0ng-s3cret", "" if wrong == "wr0ng-s3cret" else "somebody")

    @with_workers(redis_server, {"url": url})
    async def work(worker: Worker) -> None:
        with caplog.at_level(logging.WARNING):
            for key in (1, 2, 3):
                found, _ = await worker.look_up(Recorded(at_once), [key])
                assert found == [[({"x": key}, "call")]]
        (record,) = caplog.records
        assert "does not answer: the server refuses the credentials" in record.getMessage()
        assert "wr0ng" not in caplog.text


def test_a_server_without_memory_takes_no_answers_and_still_gives_them(patient, caplog):
    needs_redis()
    with RedisServer() as server:
        stored(server, 1, {"x": 1})
        server.command("CONFIG", "SET", "maxmemory", "1")

        @with_workers(server, {})
        async def work(worker: Worker) -> None:
            with caplog.at_level(logging.WARNING):
                for key in (2, 3):
                    found, _ = await worker.look_up(Recorded(at_once), [1, key])
                    assert found == [[({"x": 1}, "cache"), ({"x": key}, "call")]]
            (record,) = caplog.records
            assert "does not take answers" in record.getMessage()


@pytest.mark.parametrize("refused", ["writes", "locks"])
def test_after_a_failover_the_new_server_is_found_although_the_old_one_still_answers(patient, hasty, refused):
    needs_redis()
    # A name that leads to another server after a failover: connections that exist stay.
    with RedisServer() as old, RedisServer() as new, Proxy(("127.0.0.1", old.port)) as name:
        url = new.url.replace(f":{new.port}/", f":{name.port}/")

        @with_workers(old, {"url": url, "refresh_after": 0.01})
        async def work(worker: Worker) -> None:
            await worker.look_up(Recorded(at_once), [1])
            old.command("CONFIG", "SET", "masterauth", new.password)
            name.target = ("127.0.0.1", new.port)
            # From now on it takes no writes.
            old.command("REPLICAOF", "127.0.0.1", str(new.port))
            if refused == "writes":
                await worker.look_up(Recorded(at_once), [2])
            else:
                await asyncio.sleep(0.02)
                assert await worker.shared.renew([1]) == [ABSENT]
            await asyncio.sleep(0.06)
            await until_it_answers(worker)
            await worker.look_up(Recorded(at_once), [3])
            assert Format("s", SCHEMA).name(3) in names(new)


def test_what_waits_to_be_written_is_bounded(redis_server, patient, monkeypatch, caplog):
    monkeypatch.setattr(shared_cache, "MOST_WAITING", 10)

    @with_workers(redis_server, {})
    async def work(worker: Worker) -> None:
        await until_it_answers(worker)
        with caplog.at_level(logging.WARNING):
            for key in range(100):
                worker.shared.learn([key], [{"x": key}], 1, [0.1])
        assert len(worker.shared._queue) == 10
        await worker.shared.flush()
        assert len(names(redis_server)) == 10
        assert [("too slow" in record.getMessage()) for record in caplog.records] == [True]


def test_X7_idle_connections_are_closed_and_opened_again(redis_server, patient, monkeypatch):
    monkeypatch.setattr(shared_cache, "IDLE", 0.05)

    def connections() -> int:
        return len(redis_server.command("CLIENT", "LIST").splitlines()) - 2

    @with_workers(redis_server, {})
    async def work(worker: Worker) -> None:
        await worker.look_up(Recorded(at_once), [1])
        assert connections() > 1
        async with asyncio.timeout(10):
            while connections() > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        # An answer that comes later is written all the same.
        worker.shared.learn([2], [{"x": 2}], 1, [100.0])
        await worker.shared.flush()
        assert len(names(redis_server)) == 2


# -- addresses and their secrets


def test_the_address_is_in_no_text(redis_server):
    cache = Cache(store=redis_server.url, expire_after_write=60)
    assert redis_server.password not in repr(cache)
    assert f"store='redis://127.0.0.1:{redis_server.port}/0'" in repr(cache)
    by_function = Cache(store=lambda: redis_server.url, expire_after_write=60)
    assert "s3cret" not in repr(by_function)
    assert "<lambda>" in repr(by_function)


def test_a_function_keeps_the_address_out_of_the_job(monkeypatch):
    monkeypatch.setenv("CACHE_URL_OF_TEST", "redis://:s3cret@h")
    cache = Cache(store=lambda: os.environ["CACHE_URL_OF_TEST"], expire_after_write=60)
    sent = cloudpickle.dumps(cache)
    assert b"s3cret" not in sent
    arrived = pickle.loads(sent)
    assert arrived.store() == "redis://:s3cret@h"
    assert fingerprint(arrived) == fingerprint(cache)


def test_a_function_gives_the_address_in_the_worker(redis_server, patient):
    asked = []

    def address() -> str:
        asked.append(1)
        return str(redis_server.url)

    @with_workers(redis_server, {"url": address}, {})
    async def work(by_function: Worker, by_text: Worker) -> None:
        await by_function.look_up(Recorded(at_once), [1])
        found, _ = await by_text.look_up(Recorded(never), [1])
        assert found == [[({"x": 1}, "cache")]]
        assert asked


def test_a_function_that_gives_no_address_ends_the_run(redis_server, patient):
    def address() -> str:
        raise KeyError("s3cret")

    @with_workers(redis_server, {"url": address})
    async def work(worker: Worker) -> None:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"the store of a cache, .*address.*raised KeyError") as caught:
                await worker.look_up(Recorded(at_once), [1])
            assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": "redis//:s3cret@host"}, "store is another text .not shown"),
        ({"store": "s3cret-text"}, "store is another text .not shown"),
        ({"store": "memory"}, "store is 'memory'; it must be \"heap\""),
        ({"store": "redis://h"}, "expire_after_write is None"),
        ({"store": "redis://h", "expire_after_write": 1, "expire_after_access": 1}, "expire_after_access is 1"),
        ({"store": "redis://h", "expire_after_write": 1, "directory": "/d"}, "directory is '/d', and store is a Redis"),
        ({"store": 5}, "store is 5"),
        ({"store": lambda host: host, "expire_after_write": 1}, "store"),
    ],
)
def test_what_a_store_cannot_do_is_an_error_where_it_is_written(options, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        Cache(**options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "store", ["redis://h@s3cret@x", "redis://:s3cret@h/x", "redis://h?nonsense=s3cret", "redis://h:p0"]
)
def test_an_address_that_cannot_be_read_is_an_error_on_the_driver(store):
    needs_redis()

    class Never(Enricher):
        def schema(self) -> pa.Schema:
            raise AssertionError("nothing is opened")

        async def lookup(self, key: Any) -> Any:
            raise AssertionError("nothing is opened")

    with pytest.raises(ConfigurationError, match="store") as caught:
        Lookup(Never(), cache=Cache(store=store, expire_after_write=1))
    assert "s3cret" not in str(caught.value)
