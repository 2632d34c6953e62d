"""L1 to L10 with a store that workers share, a real Redis: answers, outages, what a run leaves, and addresses."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import struct
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from asyncio_operator import Cache, ConfigurationError, Enricher
from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lookup import Lookup, shared_cache, shared_store
from asyncio_operator.lookup.cache_directories import open_cache
from asyncio_operator.lookup.shared_cache import Format
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.testing import ManualClock
from tests.faults.proxy import Proxy
from tests.lookup.helpers import Recorded, at_once
from tests.lookup.shared_workers import (
    SCHEMA,
    Worker,
    commands,
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


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("max_batch", [1, 4])
def test_L1_what_one_worker_was_answered_no_other_calls_for(redis_server, patient, ordered, max_batch):
    async def answers(key: Any) -> Any:
        all_answers = {1: {"x": 1}, 2: None, 3: [{"x": 31}, {"x": None}], 4: {"x": 4}, 5: []}
        return [all_answers[k] for k in key] if isinstance(key, list) else all_answers[key]

    @with_workers(redis_server, {}, {})
    async def work(first: Worker, second: Worker) -> None:
        keys, enricher = [1, 2, 3, 4, 5], Recorded(answers, max_batch)
        found, _ = await first.look_up(enricher, keys, ordered=ordered)
        expected = [{"x": 1}, None, [{"x": 31}, {"x": None}], {"x": 4}, None]
        assert found == [[(answer, "call") for answer in expected]]
        enricher.calls.clear()
        for _ in range(2):
            found, pipeline = await second.look_up(enricher, keys, ordered=ordered)
            assert found == [[(answer, "cache") for answer in expected]]
            assert (enricher.calls, pipeline.figures.calls, pipeline.figures.cache_hits) == ([], 0, 5)


def test_L1_the_memory_goes_before_the_store_and_a_batch_is_one_question(redis_server, patient):
    @with_workers(redis_server, {}, {})
    async def work(first: Worker, second: Worker) -> None:
        keys = list(range(1_000))
        await first.look_up(Recorded(at_once, 1_000), keys)
        asked = commands(redis_server, "mget")
        found, _ = await second.look_up(Recorded(never, 1_000), keys)
        assert {source for _, source in found[0]} == {"cache"}
        assert commands(redis_server, "mget") - asked == 1_000 // shared_cache.MOST
        asked = commands(redis_server, "mget")
        await second.look_up(Recorded(never, 1_000), keys)
        assert commands(redis_server, "mget") == asked


def test_L3_misses_have_their_own_time_to_live(redis_server, patient):
    clock = ManualClock(time.time())

    @with_workers(redis_server, {"missing_ttl": 10, "clock": clock})
    async def work(worker: Worker) -> None:
        for key, answer, age in ((1, None, 9), (2, None, 11), (3, {"x": 3}, 59), (4, {"x": 4}, 61)):
            stored(redis_server, key, answer, age)
        assert await worker.shared.find([1, 2, 3, 4, 5]) == [None, ABSENT, {"x": 3}, ABSENT, ABSENT]
        assert [worker.cache.get(key) for key in (1, 3)] == [None, {"x": 3}]
        # In memory they are as old as they were in the store.
        clock.advance(1.5)
        assert [worker.cache.get(key) for key in (1, 3)] == [ABSENT, ABSENT]


def test_L3_misses_are_neither_stored_nor_believed_where_they_are_not_cached(redis_server, patient):
    @with_workers(redis_server, {"cache_missing": False})
    async def work(worker: Worker) -> None:
        stored(redis_server, 1, None)
        stored(redis_server, 2, {"x": 2}, age=100)

        async def nothing(key: Any) -> Any:
            return None

        found, _ = await worker.look_up(Recorded(nothing), [1, 2, 3])
        assert found == [[(None, "call")] * 3]
        assert names(redis_server) == []


def test_L5_the_store_forgets_an_answer_at_its_time_to_live(redis_server, patient):
    @with_workers(redis_server, {"expire_after_write": 0.3, "missing_ttl": 30}, {})
    async def work(worker: Worker, _: Worker) -> None:
        async def odd(key: Any) -> Any:
            return {"x": key} if key % 2 else None

        await worker.look_up(Recorded(odd), [1, 2])
        assert len(names(redis_server)) == 2
        await asyncio.sleep(0.35)
        (left,) = names(redis_server)
        assert left == Format("s", SCHEMA).name(2)
        assert 29_000 < int(redis_server.command("PTTL", left)[1:]) <= 30_000


def test_L6_an_expired_answer_of_the_store_stands_in_for_a_failure(redis_server, patient):
    @with_workers(redis_server, {"expire_after_write": 1, "stale_if_error": True}, {"expire_after_write": 1})
    async def work(worker: Worker, strict: Worker) -> None:
        await worker.look_up(Recorded(at_once), [1])
        (name,) = names(redis_server)
        assert int(redis_server.command("PTTL", name)[1:]) > 3_500_000
        stored(redis_server, 1, {"x": 10}, age=5)
        stored(redis_server, 2, {"x": 20}, age=5)
        again = Worker(redis_server.url, expire_after_write=1, stale_if_error=True)
        found, _ = await again.look_up(Recorded(never), [1, 2, 3])
        assert found == [[({"x": 10}, "stale"), ({"x": 20}, "stale"), (None, "call")]]
        found, _ = await strict.look_up(Recorded(never), [1])
        assert found == [[(None, "call")]]
        await again.close()


def test_L6_an_old_answer_is_refreshed_by_one_worker(redis_server, patient, monkeypatch):
    monkeypatch.setattr(shared_cache, "ASK_AGAIN", 0.05)

    @with_workers(redis_server, *[{"refresh_after": 10}] * 4)
    async def work(*workers: Worker) -> None:
        for key in range(20):
            stored(redis_server, key, {"x": -1}, age=30)
        enricher = Recorded(at_once)

        async def slowly(key: Any) -> Any:
            await asyncio.sleep(0.1)
            return {"x": key}

        enricher.answer = slowly
        keys = list(range(20))
        runs = await asyncio.gather(*[worker.look_up(enricher, keys) for worker in workers])
        # The old answers are served at once, by all.
        assert [outcome for found, _ in runs for outcome in found] == [[({"x": -1}, "cache")] * 20] * 4
        assert sorted(enricher.calls) == keys
        # The others take over what the one has brought, without a call.
        await asyncio.sleep(0.1)
        for worker in workers:
            await worker.look_up(enricher, keys)
            found, pipeline = await worker.look_up(enricher, keys)
            assert found == [[({"x": key}, "cache") for key in keys]]
            assert pipeline.figures.cache_hits == 20
        assert len(enricher.calls) == 20


def test_L6_an_answer_that_is_old_in_memory_is_renewed_from_the_store(redis_server, patient):
    clock = ManualClock(time.time())

    @with_workers(redis_server, {"refresh_after": 10, "clock": clock})
    async def work(worker: Worker) -> None:
        await worker.look_up(Recorded(at_once), [1])
        stored(redis_server, 1, {"x": 100})
        clock.advance(11)
        found, pipeline = await worker.look_up(Recorded(never), [1])
        assert found == [[({"x": 1}, "cache")]]
        assert (pipeline.figures.calls, pipeline.figures.cache_hits) == (0, 1)
        assert worker.cache.get(1) == {"x": 100}


GARBAGE = [
    b"",
    b"x",
    b"AOC1",
    b"AOC0" + bytes(30),
    b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
]


def hostile(form: Format) -> list[bytes]:
    """Values with a right head and a wrong rest."""
    head = form.write(None, round(1000 * time.time()))[:-1]
    row = BUILTIN.serialize((1,))
    deep = b"\x08\x00\x00\x00\x01" * 100_000 + b"\x00"
    wrong = [
        b"",
        b"\xff",
        row[:-1],
        row + b"x",
        deep,
        b"\x08\xff\xff\xff\xff",
        b"\x09" + b"\xff" * 4,
        b"\x06\0\0\0\1\xff",
    ]
    others: list[Any] = [1, "text", {"x": 1}, ("text",), [(1,), (2**70,)], [[(1,)]], (), (1, 2), [None], {1: 2}]
    others += [(Decimal("1E+1000000000"),), ([Decimal("1E-1000000000")],), (10**5000,), b"x", True]
    return [head + one for one in (*wrong, *map(BUILTIN.serialize, others))]


def test_L7_L9_what_is_no_answer_is_a_miss_and_logged_once(redis_server, patient, caplog):
    form = Format("s", SCHEMA)
    values = [*GARBAGE, *hostile(form), struct.pack(">4s8sq", b"AOC1", b"otherone", 0) + b"\x00"]

    @with_workers(redis_server, {}, {})
    async def work(worker: Worker, other: Worker) -> None:
        keys = list(range(len(values)))
        for key, value in zip(keys, values, strict=True):
            name = form.name(key)
            assert name is not None
            redis_server.command("SET", name, value)
        redis_server.command("RPUSH", form.name(1000) or b"", "a list")
        with caplog.at_level(logging.WARNING):
            found, _ = await worker.look_up(Recorded(at_once), [*keys, 1000])
        assert found == [[({"x": key}, "call") for key in [*keys, 1000]]]
        (record,) = caplog.records
        assert "holds a value for key 0 that is not an answer: the value is too short" in record.getMessage()
        # They have been replaced.
        found, _ = await other.look_up(Recorded(never), keys)
        assert found == [[({"x": key}, "cache") for key in keys]]


def test_L8_two_that_differ_never_share(redis_server, patient):
    @with_workers(redis_server, {"owner": "a"}, {"owner": "b"})
    async def work(first: Worker, second: Worker) -> None:
        await first.look_up(Recorded(at_once), [1])
        found, _ = await second.look_up(Recorded(at_once), [1])
        assert found == [[({"x": 1}, "call")]]
        assert len(names(redis_server)) == 2

    assert Format("a", SCHEMA).name(1) != Format("a", pa.schema([("x", pa.int32())])).name(1)
    assert Format("a", SCHEMA).name(1) != Format("a", pa.schema([("y", pa.int64())])).name(1)


def test_L8_other_lifetimes_share_and_each_reader_keeps_its_own(redis_server, patient):
    @with_workers(redis_server, {"expire_after_write": 100}, {"expire_after_write": 10})
    async def work(longer: Worker, shorter: Worker) -> None:
        stored(redis_server, 1, {"x": 1}, age=50)
        assert await longer.shared.find([1]) == [{"x": 1}]
        assert await shorter.shared.find([1]) == [ABSENT]


def test_L10_keys_are_the_same_as_everywhere():
    form = Format("s", SCHEMA)
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    same = [(0.0, -0.0), (Decimal("1.10"), Decimal("1.1")), (("a", 0.0), ("a", -0.0))]
    assert all(form.name(one) == form.name(other) for one, other in same)
    different = [
        1,
        True,
        1.0,
        "1",
        b"1",
        Decimal(1),
        (1,),
        ("1",),
        (1, 2),
        ("a", "b"),
        ("ab",),
        date(2024, 1, 1),
        moment,
    ]
    different += ["é" * 200, "é" * 201, ("é" * 200,), "x" * 97, "x" * 98]
    assert len({form.name(key) for key in different}) == len(different)
    assert all(len(form.name(key) or b"") < 160 for key in different)
    assert form.name(object()) is None
    locks = {form.lock_of(form.name(key) or b"") for key in different}
    assert len(locks) == len(different)
    assert locks.isdisjoint({form.name(key) for key in different})


def test_a_key_without_bytes_is_looked_up_every_time(redis_server, patient):
    class Odd:
        def __hash__(self) -> int:
            return 1

    odd = Odd()

    async def one(key: Any) -> Any:
        return {"x": 1}

    async def main() -> list[Any]:
        enricher = Recorded(one)
        async with Lookup(enricher, cache=Cache(store=redis_server.url, expire_after_write=60)) as lookup:
            for key in (odd, 5, odd, 5):
                assert await lookup.get(key) == {"x": 1}
        return enricher.calls

    assert asyncio.run(main()) == [odd, 5, odd]


VALUES = {
    "b": (pa.bool_(), True),
    "i8": (pa.int8(), -5),
    "i64": (pa.int64(), -(2**63)),
    "f32": (pa.float32(), 0.5),
    "f64": (pa.float64(), float("inf")),
    "s": (pa.string(), "ü\x00"),
    "bin": (pa.binary(), b"\x00\xff"),
    "d": (pa.date32(), date(1, 1, 1)),
    "ts": (pa.timestamp("us"), datetime(2024, 3, 31, 2, 30, 0, 5)),
    "tz": (pa.timestamp("us", "Europe/Berlin"), datetime(2024, 3, 31, 2, 30, tzinfo=UTC)),
    "dec": (pa.decimal128(38, 18), Decimal("1.100000000000000000")),
    "td": (pa.duration("us"), timedelta(days=-1, microseconds=1)),
    "l": (pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])), [{"a": 1, "b": ["x", None]}, None]),
    "m": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    "n": (pa.int32(), None),
}


def test_A3_answers_in_columns_come_back_as_the_same_answers(redis_server, patient):
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    table = pa.table({name: pa.array([value, None, value], kind) for name, (kind, value) in VALUES.items()})

    async def main() -> None:
        options = Cache(store=redis_server.url, expire_after_write=60)
        first, second = (open_cache(options, "columns", None, schema) for _ in range(2))
        answers = {1: ColumnAnswers(table, 0, 1), 2: ColumnAnswers(table, 1, 2), 3: None}
        (writer,), (reader,) = first.known, second.known
        await writer.find([0])
        for key, answer in answers.items():
            writer.learn([key], [answer])
        await writer.flush()
        one, several, miss = await reader.find([1, 2, 3])
        assert miss is None
        for found, rows in (([one], table.slice(0, 1)), (several, table.slice(1, 2))):
            assert pa.Table.from_pylist(found, schema).equals(rows.cast(schema))
        for place in (writer, reader):
            await place.close()

    asyncio.run(main())


def test_an_answer_that_python_cannot_hold_is_not_shared_and_logged_once(redis_server, patient, caplog):
    schema = pa.schema([("d", pa.timestamp("us"))])
    far = pa.table({"d": pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("us"))})

    async def main() -> None:
        cache = open_cache(Cache(store=redis_server.url, expire_after_write=60), "far", None, schema)
        (place,) = cache.known
        await place.find([0])
        place.learn([1], [ColumnAnswers(far, 0, 1)])
        place.learn([2], [ColumnAnswers(far, 1, 1)])
        place.learn([3], [{"d": object()}])
        await place.flush()
        assert await place.find([1, 2, 3]) == [ABSENT, {"d": datetime(1970, 1, 1)}, ABSENT]
        await place.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (record,) = caplog.records
    assert "cannot take the answer for key 1" in record.getMessage()


def test_an_answer_that_is_too_large_is_not_shared(redis_server, patient, monkeypatch):
    monkeypatch.setattr(shared_cache, "LARGEST", 100)

    @with_workers(redis_server, {})
    async def work(worker: Worker) -> None:
        async def many(key: Any) -> Any:
            return [{"x": key}] * key

        await worker.look_up(Recorded(many), [1, 100])
        assert names(redis_server) == [Format("s", SCHEMA).name(1)]


# -- A store that workers share


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
                worker.shared.learn([key], [{"x": key}])
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
        worker.shared.learn([2], [{"x": 2}])
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
