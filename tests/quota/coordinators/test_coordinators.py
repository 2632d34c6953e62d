"""All coordinators keep one contract: what is asked at the same time is put in order, nothing is lost or doubled, time
is the coordinator's, a state that is lost is seen as missing, and no answer comes late or shows a secret."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import shutil
import socket
import subprocess
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from asyncio_operator import Budget, Limit
from asyncio_operator.clock import monotonic
from asyncio_operator.errors import CoordinatorError
from asyncio_operator.quota.coordinators.addresses import (
    Coordinator,
    LocalCoordinator,
    States,
    answer,
    coordinator_of,
    unused,
)
from asyncio_operator.quota.coordinators.postgres import CREATE, PostgresCoordinator
from asyncio_operator.quota.coordinators.redis import PREFIX, RedisCoordinator
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.spec import definition
from asyncio_operator.quota.terms import ASK_TIMEOUT, SETTLING, VERSION, Json
from asyncio_operator.spark.driver.driver_service import DriverService
from asyncio_operator.spark.worker.driver_wire import (
    BUDGETS,
    LARGEST,
    DriverAddress,
    DriverCoordinator,
    connect_to_driver,
)
from asyncio_operator.testing import ManualClock
from tests.faults.proxy import Mode, Proxy
from tests.redis_service import RedisServer, needs_redis
from tests.servers import PostgresServer

NAME = "a budget: 'x' \N{SNOWMAN}"


def count(state: Json | None, message: Json, now: float, new_server: bool) -> tuple[Json, Json]:
    """A toy decision: it counts, and remembers who was counted."""
    new: Json = {"count": 0, "seen": [], "now": now} if not state else dict(state)
    new["count"] += message["add"]
    new["seen"] = [*new["seen"], message["who"]][-1000:]
    reply = {
        "count": new["count"],
        "now": now,
        "backwards": now < new["now"],
        "recovering": state is None,
        "new": new_server,
    }
    new["now"] = now
    return new, reply


class Place:
    """A coordinator's server, and what tests do to it."""

    secret = "no secret"
    network = True
    forgets = True

    def coordinator(self, name: str = NAME) -> Coordinator:
        raise NotImplementedError

    def restart(self) -> None:
        """Start it again; its memory is lost."""

    def stop(self) -> None: ...

    def start(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class InProcess(Place):
    network = forgets = False

    def __init__(self) -> None:
        self.states = States(count)

    def coordinator(self, name: str = NAME) -> Coordinator:
        return LocalCoordinator(self.states, name)

    def restart(self) -> None:
        self.states.forget_all()


class Driver(Place):
    """Behind a proxy, because a thread cannot be paused. The workers know the address of the proxy."""

    forgets = False

    def __init__(self) -> None:
        self.service = self._serve()
        self.proxy = Proxy(("127.0.0.1", self.service.address.port))
        self.proxy.__enter__()
        self.secret = self.service.address.token.hex()

    def _serve(self, port: int = 0, states: States | None = None) -> DriverService:
        states = states or States(count)
        topics = {BUDGETS: lambda question: states.ask(question["name"], question["message"])}
        return DriverService("127.0.0.1", "127.0.0.1", port, topics)

    def coordinator(self, name: str = NAME) -> Coordinator:
        return DriverCoordinator(DriverAddress("127.0.0.1", self.proxy.port, self.service.address.token), name)

    def restart(self) -> None:
        pytest.skip("the states of a driver live as long as the application")

    def stop(self) -> None:
        self.service.stop()

    def start(self) -> None:
        pytest.skip("a driver that has ended does not come back")

    def pause(self) -> None:
        self.proxy.set(Mode("blackhole"))

    def resume(self) -> None:
        self.proxy.set(Mode())

    def close(self) -> None:
        self.proxy.__exit__(None, None, None)
        self.service.stop()


class Served(Place):
    """At a server, which it starts."""

    def __init__(self, server: RedisServer | PostgresServer) -> None:
        self.server = server
        server.start()
        self.secret = server.password

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server.start()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    def close(self) -> None:
        self.server.close()


class Redis(Served):
    server: RedisServer

    def __init__(self) -> None:
        needs_redis()
        super().__init__(RedisServer())

    def coordinator(self, name: str = NAME) -> RedisCoordinator:
        return RedisCoordinator(self.server.url, name, count, expire_after=None)

    def restart(self) -> None:
        self.server.restart()


class Postgres(Served):
    server: PostgresServer

    def __init__(self) -> None:
        super().__init__(PostgresServer())

    def coordinator(self, name: str = NAME) -> PostgresCoordinator:
        return PostgresCoordinator(self.server.tcp_dsn(), name, count)

    def restart(self) -> None:
        self.server.restart()
        with ThreadPoolExecutor(1) as thread:  # The test's own loop runs in this one.
            thread.submit(self.server.fetch, "DROP TABLE IF EXISTS asyncio_operator_budgets").result()


@pytest.fixture(scope="module", params=[InProcess, Driver, Redis, Postgres])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = request.param()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def redis() -> Iterator[Redis]:
    made = Redis()
    yield made
    made.close()


@pytest.fixture
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


@contextlib.asynccontextmanager
async def asking(*coordinators: Coordinator) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for one in coordinators:
            await one.close()


async def refusal(coordinator: Coordinator, secret: str) -> CoordinatorError:
    """The error of an ask, which comes in bounded time and shows no secret."""
    begun = time.monotonic()
    with pytest.raises(CoordinatorError) as raised:
        await coordinator.ask({"add": 1, "who": "z"})
    assert time.monotonic() - begun < ASK_TIMEOUT + 1
    shown = "".join(traceback.format_exception(raised.value, chain=True)) + repr(coordinator) + coordinator.shown
    assert secret not in shown
    assert coordinator.shown in str(raised.value)
    return raised.value


async def test_replies_come_from_one_state_with_the_coordinators_time(place: Place) -> None:
    coordinator = place.coordinator("first")
    async with asking(coordinator):
        before = monotonic()
        replies = [await coordinator.ask({"add": 2, "who": "a"}) for _ in range(3)]
        after = monotonic()
    assert [reply["count"] for reply in replies] == [2, 4, 6]
    # A process knows that it has never had a state; a server may have lost one.
    assert [reply["recovering"] for reply in replies] == [place.forgets, False, False]
    times = [reply["now"] for reply in replies]
    assert times == sorted(times)
    assert times[-1] - times[0] <= after - before
    sent = [reply.get("sent", before) for reply in replies]
    assert before <= sent[0] <= sent[1] <= sent[2] <= after


async def test_budgets_of_different_names_do_not_mix(place: Place) -> None:
    one, other = place.coordinator("one"), place.coordinator("other")
    async with asking(one, other):
        assert (await one.ask({"add": 1, "who": ""}))["count"] == 1
        assert (await other.ask({"add": 5, "who": ""}))["count"] == 5
        assert (await one.ask({"add": 1, "who": ""}))["count"] == 2


async def test_what_many_ask_at_once_is_neither_lost_nor_doubled(place: Place) -> None:
    clients, each = 16, 12
    coordinators = [place.coordinator("contended") for _ in range(clients)]

    async def ask(number: int) -> list[Json]:
        return [await coordinators[number].ask({"add": 1, "who": f"{number}.{i}"}) for i in range(each)]

    async with asking(*coordinators):
        replies = [reply for some in await asyncio.gather(*map(ask, range(clients))) for reply in some]
    assert sorted(reply["count"] for reply in replies) == list(range(1, clients * each + 1))
    assert not any(reply["backwards"] for reply in replies)


async def test_a_state_that_is_lost_is_seen_as_missing(place: Place) -> None:
    coordinator = place.coordinator("lost")
    async with asking(coordinator):
        await coordinator.ask({"add": 1, "who": ""})
        place.restart()
        with contextlib.suppress(CoordinatorError):  # The connection may be lost.
            assert (await coordinator.ask({"add": 1, "who": ""}))["recovering"]
            return
        assert (await coordinator.ask({"add": 1, "who": ""}))["recovering"]


async def test_G7_a_paused_coordinator_is_an_error_in_bounded_time_and_answers_afterwards(place: Place) -> None:
    if not place.network:
        pytest.skip("it is in this process")
    coordinator = place.coordinator("paused")
    async with asking(coordinator):
        await coordinator.ask({"add": 1, "who": ""})
        place.pause()
        try:
            error = await refusal(coordinator, place.secret)
            assert "in time" in str(error)
            assert not error.lasting
        finally:
            place.resume()
        # The lost message was applied or not, and never twice.
        assert (await coordinator.ask({"add": 1, "who": ""}))["count"] in (2, 3)


async def test_a_connection_is_made_when_it_is_needed_and_closing_twice_is_no_error(place: Place) -> None:
    coordinator = place.coordinator("closed")
    await coordinator.close()
    assert (await coordinator.ask({"add": 1, "who": ""}))["count"] == 1
    await coordinator.close()
    await coordinator.close()
    assert (await coordinator.ask({"add": 1, "who": ""}))["count"] == 2
    await coordinator.close()


async def test_a_cancelled_ask_leaves_no_answer_for_the_next_also_if_it_is_the_first(place: Place) -> None:
    one = place.coordinator("cancelled")
    for steps in range(12):
        first = place.coordinator(f"cancelled at {steps}")
        async with asking(one, first):
            await one.ask({"add": 0, "who": ""})
            for coordinator, count in ((one, steps + 1), (first, 1)):
                task = asyncio.ensure_future(coordinator.ask({"add": 1000, "who": ""}))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                assert (await coordinator.ask({"add": 1, "who": ""}))["count"] % 1000 == count


# Last, because a driver that was stopped does not come back.
async def test_G7_a_stopped_coordinator_is_named_and_used_again_when_it_is_back(place: Place) -> None:
    if not place.network:
        pytest.skip("it is in this process")
    coordinator = place.coordinator("stopped")
    async with asking(coordinator):
        await coordinator.ask({"add": 1, "who": ""})
        place.stop()
        assert not (await refusal(coordinator, place.secret)).lasting
        assert not (await refusal(coordinator, place.secret)).lasting
        place.start()
        assert (await coordinator.ask({"add": 1, "who": ""}))["count"] >= 1


async def test_the_same_loop_is_not_needed_after_a_close(redis: Redis) -> None:
    coordinator = redis.coordinator()

    async def once() -> int:
        found: int = (await coordinator.ask({"add": 1, "who": ""}))["count"]
        await coordinator.close()
        return found

    assert [await asyncio.to_thread(asyncio.run, once()) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(("spend", "expires"), [(None, True), ({"usd": 1.0}, False)])
async def test_G6_the_key_of_redis_expires_where_nothing_was_spent(
    redis: Redis, spend: dict[str, float] | None, expires: bool
) -> None:
    spec = Budget("kept", Limit(10, 60.0), spend=spend, coordinator=redis.server.url)
    coordinator = coordinator_of(spec)
    async with asking(coordinator):
        assert "error" not in await coordinator.ask(Permits(spec, "w").message(0.0))
    left = int(redis.server.command("PTTL", f"{PREFIX}kept")[1:])
    assert 60_000 < left <= 120_000 if expires else left == -1


async def test_G6_a_key_of_redis_that_expired_is_kept_once_its_budget_has_a_spend_limit(redis: Redis) -> None:
    for expire_after, shown in ((60.0, False), (None, True)):
        coordinator = RedisCoordinator(redis.server.url, "changed", count, expire_after=expire_after)
        async with asking(coordinator):
            await coordinator.ask({"add": 1, "who": ""})
        assert (int(redis.server.command("PTTL", f"{PREFIX}changed")[1:]) == -1) is shown


async def test_redis_takes_a_user_with_the_rights_that_are_documented_and_says_which_are_missing(redis: Redis) -> None:
    server = redis.server
    keys = f"~{PREFIX}*"
    rights = ["+time", "+eval", "+hget", "+hgetall", "+hset", "+hdel", "+pexpire", "+persist"]
    server.command("ACL", "SETUSER", "worker", "on", ">w0rker", keys, *rights)
    server.command("ACL", "SETUSER", "reader", "on", ">w0rker", keys, "+time", "+eval", "+hgetall")
    worker = RedisCoordinator(server.url_with("w0rker", "worker"), NAME, count, expire_after=60.0)
    reader = RedisCoordinator(server.url_with("w0rker", "reader"), NAME, count, expire_after=None)
    wrong = RedisCoordinator(server.url_with("wr0ng", "worker"), NAME, count, expire_after=None)
    async with asking(worker, reader, wrong):
        # Without the right to INFO it is not known which server it is.
        assert (await worker.ask({"add": 1, "who": ""}))["count"] == 1
        assert json.loads(server.command("HGET", f"{PREFIX}{NAME}", "state").splitlines()[1])["servers"] == []
        server.command("ACL", "SETUSER", "worker", "+info")
        assert [(await worker.ask({"add": 0, "who": ""}))["new"] for _ in range(2)] == [True, False]
        error = await refusal(reader, "w0rker")
        assert "the permissions do not suffice" in str(error)
        assert error.lasting
        error = await refusal(wrong, "wr0ng")
        assert "refuses the credentials" in str(error)
        assert error.lasting


async def test_G7_redis_that_takes_no_writes_for_now_is_waited_for(redis: Redis) -> None:
    server, coordinator = redis.server, redis.coordinator()
    refuses = [("REPLICAOF", "127.0.0.1 1", "NO ONE"), ("CONFIG", "SET maxmemory 1", "SET maxmemory 0")]
    async with asking(coordinator):
        await coordinator.ask({"add": 1, "who": ""})
        for command, begin, end in refuses:
            server.command(command, *begin.split())
            error = await refusal(coordinator, redis.secret)
            assert "takes no writes" in str(error)
            assert not error.lasting
            server.command(command, *end.split())
            assert (await coordinator.ask({"add": 0, "who": ""}))["count"] == 1


async def test_redis_that_has_failed_over_is_connected_to_again(redis: Redis) -> None:
    with RedisServer(password=redis.secret) as other:
        places = [redis.server.url, other.url]
        coordinator = RedisCoordinator(lambda: places[0], NAME, count, expire_after=None)
        async with asking(coordinator):
            await coordinator.ask({"add": 1, "who": ""})
            redis.server.command("REPLICAOF", "127.0.0.1", "1")
            places.reverse()
            await refusal(coordinator, redis.secret)
            assert (await coordinator.ask({"add": 1, "who": ""}))["recovering"]


@contextlib.asynccontextmanager
async def behind_redis() -> AsyncIterator[tuple[Callable[[], str], Callable[[], None], Callable[[], None]]]:
    """The address of a Redis that has a replica; what keeps this replica from hearing more; and a failover to it."""
    needs_redis()
    with RedisServer() as first, RedisServer(masterauth=first.password) as second:
        places = [first.url, second.url]
        with Proxy(("127.0.0.1", first.port)) as link:
            second.command("REPLICAOF", "127.0.0.1", str(link.port))

            def lag() -> None:
                first.command("SET", "last", "one")
                deadline = time.monotonic() + 30
                while b"one" not in second.command("GET", "last"):
                    assert time.monotonic() < deadline, "the replica does not follow"
                    time.sleep(0.02)
                link.set(Mode("blackhole"))

            def fail_over() -> None:
                first.stop()
                second.command("REPLICAOF", "NO", "ONE")
                places.reverse()

            yield lambda: places[0], lag, fail_over


@contextlib.asynccontextmanager
async def behind_postgres() -> AsyncIterator[tuple[Callable[[], str], Callable[[], None], Callable[[], None]]]:
    """The address of a PostgreSQL; what makes a copy of its files; and a start of the server with this copy."""
    with PostgresServer() as server:
        copy = server.directory / "copy"

        def keep() -> None:
            server.stop()
            subprocess.run(["cp", "-Rp", str(server.directory / "data"), str(copy)], check=True)
            server.start()

        def restore() -> None:
            server.stop()
            shutil.rmtree(server.directory / "data")
            copy.rename(server.directory / "data")
            server.start()

        yield server.tcp_dsn, keep, restore


async def asked(coordinator: Coordinator, permits: Permits, calls: float = 0.0) -> Json:
    """The reply to a worker that can use this many calls; if the connection was lost, to its next message."""
    for _ in range(3):
        now = monotonic()
        permits.next_start({}, now)
        message = permits.message(now)
        message["call"] = [calls]
        try:
            reply = await coordinator.ask(message)
        except CoordinatorError:
            permits.lost(monotonic())
        else:
            permits.answered(reply, reply["sent"], monotonic())
            return reply
    raise AssertionError("the coordinator does not answer")


@pytest.mark.parametrize("behind", [behind_redis, behind_postgres])
async def test_G2_a_server_with_an_older_state_grants_nothing_until_a_worker_that_knows_more_is_heard(
    behind: Any,
) -> None:
    budget = Budget("b", Limit(10, 60.0))
    statistics = {"kind": "statistics", "version": VERSION, "budget": definition(budget)}
    async with behind() as (address, lag, fail_over):
        kind = RedisCoordinator if address().startswith("redis") else PostgresCoordinator
        more: dict[str, Any] = {"expire_after": 120.0} if kind is RedisCoordinator else {}
        one, other = (kind(address, budget.name, answer, **more) for _ in range(2))
        async with asking(one, other):
            known, unknown = Permits(budget, "v"), Permits(budget, "w")
            await asked(one, known)
            await asyncio.to_thread(lag)
            pause = (await asked(one, known))["pause"]
            await asyncio.sleep(pause)
            assert sum(units for _, units in (await asked(one, known, 10.0))["permits"][0]) == 10.0
            await asyncio.to_thread(fail_over)
            reply = await asked(other, unknown, 10.0)
            assert reply["permits"] == [[]]
            assert SETTLING - 1.0 < reply["pause"] <= SETTLING
            used = (await other.ask(statistics))["statistics"]["units"]["calls"]["used"]
            assert used == 0.0, "the copy is not older"
            assert (await asked(one, known))["epoch"] != reply["epoch"]
            used = (await other.ask(statistics))["statistics"]["units"]["calls"]["used"]
            assert used == 10.0


async def test_G2_a_server_that_was_started_again_and_lost_nothing_rests_once() -> None:
    needs_redis()
    places: list[tuple[Any, Any, dict[str, Any]]] = [
        (RedisServer(appendonly="yes"), RedisCoordinator, {"expire_after": None}),
        (PostgresServer(), PostgresCoordinator, {}),
    ]
    for server, kind, more in places:
        with server:
            address = server.url if kind is RedisCoordinator else server.tcp_dsn()
            for number, new in enumerate([False, False, True, False]):
                if new:
                    await asyncio.to_thread(server.restart)
                coordinator = kind(address, NAME, count, **more)
                async with asking(coordinator):
                    reply = await coordinator.ask({"add": 1, "who": ""})
                if kind is RedisCoordinator and number == 1:
                    await asyncio.sleep(1.1)  # It writes once a second.
                assert (reply["count"], reply["new"]) == (number + 1, new)


async def test_redis_over_tls(tmp_path: Any) -> None:
    needs_redis()
    with RedisServer(tls=True) as server:
        trusted = RedisCoordinator(server.tls_url, NAME, count, expire_after=None)
        untrusted = RedisCoordinator(server.untrusted_url, NAME, count, expire_after=None)
        async with asking(trusted, untrusted):
            assert (await trusted.ask({"add": 1, "who": ""}))["count"] == 1
            assert "certificate" in str(await refusal(untrusted, server.password))


async def test_redis_hears_of_a_swap_that_was_too_late_and_decides_again(redis: Redis) -> None:
    other = redis.coordinator()
    interfering = 2

    def slow(state: Json | None, message: Json, now: float, new_server: bool) -> tuple[Json, Json]:
        nonlocal interfering
        if interfering:
            interfering -= 1
            text = '{"state": {"count": 10, "seen": [], "now": 0}, "answered": {}, "servers": []}'
            redis.server.command("HSET", f"{PREFIX}{NAME}", "version", f"{interfering:016d}", "state", text)
        return count(state, message, now, new_server)

    coordinator = RedisCoordinator(redis.server.url, NAME, slow, expire_after=None)
    async with asking(coordinator, other):
        assert (await coordinator.ask({"add": 1, "who": ""}))["count"] == 11
        assert (await other.ask({"add": 1, "who": ""}))["count"] == 12


async def test_a_function_gives_the_address_in_the_worker_and_stays_out_of_the_pickle(
    postgres: PostgresServer, redis: Redis
) -> None:
    os.environ["BUDGET_TEST_ADDRESS"] = redis.server.url
    try:
        coordinator = pickle.loads(pickle.dumps(RedisCoordinator(_address, NAME, count, expire_after=None)))
        assert redis.secret.encode() not in pickle.dumps(coordinator)
        assert "_address" in coordinator.shown
        async with asking(coordinator):
            assert (await coordinator.ask({"add": 1, "who": ""}))["count"] == 1
        os.environ["BUDGET_TEST_ADDRESS"] = postgres.tcp_dsn()
        other = PostgresCoordinator(_address, "from a function", count)
        async with asking(other):
            assert (await other.ask({"add": 1, "who": ""}))["count"] == 1
    finally:
        del os.environ["BUDGET_TEST_ADDRESS"]


def _address() -> str:
    return os.environ["BUDGET_TEST_ADDRESS"]


async def test_postgres_makes_its_table_once_for_many_and_says_what_to_run_where_it_may_not(
    postgres: PostgresServer,
) -> None:
    await asyncio.to_thread(postgres.fetch, "DROP TABLE IF EXISTS asyncio_operator_budgets")
    await asyncio.to_thread(postgres.fetch, "CREATE ROLE poor LOGIN PASSWORD 'p00r'")
    poor = PostgresCoordinator(postgres.tcp_dsn(user="poor", password="p00r"), NAME, count)
    many = [PostgresCoordinator(postgres.dsn, NAME, count) for _ in range(8)]
    async with asking(poor, *many):
        error = await refusal(poor, "p00r")
        assert "the privileges do not suffice" in str(error)
        assert CREATE in str(error)
        assert error.lasting
        replies = await asyncio.gather(*(one.ask({"add": 1, "who": ""}) for one in many))
        assert sorted(reply["count"] for reply in replies) == list(range(1, 9))
        assert CREATE in str(await refusal(poor, "p00r"))
        grant = "GRANT SELECT, INSERT, UPDATE ON asyncio_operator_budgets TO poor"
        await asyncio.to_thread(postgres.fetch, grant)
        assert (await poor.ask({"add": 1, "who": ""}))["count"] == 9


@pytest.mark.parametrize("loss", ["DROP TABLE", "TRUNCATE"])
async def test_G7_a_table_that_is_lost_amid_an_exchange_is_made_anew_with_the_next(
    postgres: PostgresServer, loss: str
) -> None:
    losses = [f"{loss} asyncio_operator_budgets"]

    def lose_and_count(*asked: Any) -> tuple[Json, Json]:
        while losses:
            with ThreadPoolExecutor(1) as thread:
                thread.submit(postgres.fetch, losses.pop()).result()
        return count(*asked)

    coordinator = PostgresCoordinator(postgres.dsn, "lost amid", lose_and_count)
    async with asking(coordinator):
        error = await refusal(coordinator, postgres.password)
        assert not error.lasting
        assert (await coordinator.ask({"add": 1, "who": ""}))["recovering"]


async def test_the_driver_answers_only_who_knows_the_token(driver: Driver) -> None:
    address = driver.service.address
    stranger = DriverCoordinator(DriverAddress(address.host, address.port, b"x" * 32), NAME)
    async with asking(stranger):
        await refusal(stranger, driver.secret)
    known = driver.coordinator()
    async with asking(known):
        assert (await known.ask({"add": 1, "who": ""}))["count"] == 1
    assert driver.secret not in repr(address)
    assert repr(address.token) not in repr(address)


async def test_a_worker_believes_only_the_driver_of_its_application() -> None:
    for says in (b"HTTP/1.1 200 OK\r\n" * 10, b"asyncio-operator 1\n" + bytes(64)):

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, says: bytes = says) -> None:
            writer.write(says)
            with contextlib.suppress(OSError, EOFError):
                await reader.readexactly(1000)
            writer.close()

        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            coordinator = DriverCoordinator(DriverAddress("127.0.0.1", port, b"x" * 32), NAME)
            error = await refusal(coordinator, "x" * 32)
            assert "listens there" in str(error)


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n" * 3, bytes(1000)])
async def test_nonsense_is_dropped_and_logged_once(
    driver: Driver, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", driver.service.address.port)
        writer.write(nonsense)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    said = warnings[0].getMessage()
    assert (
        "a wrong proof, so it is not a worker of this application; no job depends on it; if it goes on, let only"
        in said
    )


async def test_a_message_that_is_changed_repeated_or_too_large_ends_the_connection(driver: Driver) -> None:
    def change(frame: bytes) -> bytes:
        return frame[:-1] + bytes([frame[-1] ^ 1])

    def repeat(frame: bytes) -> bytes:
        return frame * 2

    def enlarge(frame: bytes) -> bytes:
        return (LARGEST + 1).to_bytes(4, "big") + frame[4:]

    for spoil in (change, repeat, enlarge):
        wire = await connect_to_driver(driver.service.address)
        writer: Any = wire._writer
        write: Callable[[bytes], None] = writer.write
        writer.write = lambda frame, write=write, spoil=spoil: write(spoil(frame))
        await wire.send({"topic": BUDGETS, "question": {"name": "spoilt", "message": {"add": 1, "who": ""}}})
        if spoil is repeat:
            await wire.receive()
        with pytest.raises((EOFError, OSError)):
            await wire.receive()
        await wire.close()
    wire = await connect_to_driver(driver.service.address)
    await wire.send({"topic": BUDGETS, "question": {"name": "spoilt", "message": {"add": 0, "who": ""}}})
    assert (await wire.receive())["answer"]["count"] == 1  # the repeated message, once
    await wire.close()


async def test_a_question_that_fails_is_a_warning_with_its_cause_and_what_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(question: Any) -> None:
        raise LookupError(f"no {question}")

    service = DriverService("127.0.0.1", "127.0.0.1", 0, {"fail": fail})
    wire = await connect_to_driver(service.address)
    await wire.send({"topic": "fail", "question": "x"})
    with pytest.raises((EOFError, OSError)):
        await wire.receive()
    await wire.close()
    await asyncio.to_thread(service.stop)
    [warning] = [one for one in caplog.records if one.name == "asyncio_operator.driver"]
    said = warning.getMessage()
    assert "could not answer (LookupError: no x); the worker connects again; if it goes on, report this" in said


async def test_the_service_ends_with_its_application_and_leaves_nothing(driver: Driver) -> None:
    alive = True
    service = DriverService("127.0.0.1", "127.0.0.1", 0, {}, lambda: alive)
    wire = await connect_to_driver(service.address)
    assert service.running
    alive = False
    with pytest.raises((EOFError, OSError)):
        await asyncio.wait_for(wire.receive(), 5)
    await wire.close()
    await asyncio.to_thread(service.stop)
    assert not service.running
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", service.address.port), 1):
        pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_a_driver_that_binds_to_all_addresses_of_ipv6_is_reached_by_ipv4_too() -> None:
    service = DriverService("127.0.0.1", "::", 0, {BUDGETS: lambda question: question + 1})
    for host in ("127.0.0.1", "::1"):
        wire = await connect_to_driver(replace(service.address, host=host))
        await wire.send({"topic": BUDGETS, "question": 1})
        assert (await wire.receive())["answer"] == 2
        await wire.close()
    await asyncio.to_thread(service.stop)


def test_a_fork_opens_nothing_and_keeps_no_port(driver: Driver) -> None:
    service = driver.service
    child = os.fork()
    if child == 0:
        service.abandon()
        os._exit(0 if service._listening.fileno() == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert service.running


def test_states_of_budgets_that_are_no_longer_used_are_dropped() -> None:
    clock = ManualClock()
    states = States(answer, clock, unused)
    used = [
        Budget("spends", spend={"usd": 5.0}),
        Budget("daily", Limit(10, 86_400.0)),
        Budget("all the time", Limit(10)),
    ]
    for number in range(3000):
        for budget in [Budget(f"job {number}", Limit(10), in_flight=4), *(used if number < 2 else used[2:])]:
            states.ask(budget.name, Permits(budget, "w").message(clock()))
        clock.advance(1.0)
    assert len(states) < 600
    assert {budget.name for budget in used} < states._states.keys()
