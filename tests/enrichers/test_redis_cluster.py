"""`RedisEnricher` against a real cluster of three nodes: slots, moved slots, nodes that die, secrets."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Any

import psutil
import pytest
from redis.asyncio.cluster import ClusterPipeline
from redis.asyncio.connection import SSLConnection
from redis.crc import key_slot

from asyncio_operator import EnricherError
from asyncio_operator.testing import check_enricher
from enrichers.redis import RedisEnricher
from tests.enrichers import helpers
from tests.enrichers.helpers import failure
from tests.redis_cluster import RedisCluster, cluster
from tests.redis_service import RedisServer, needs_redis, redis_server

__all__ = ["cluster", "redis_server"]

COLUMN: dict[str, Any] = {"schema": "n int", "kind": "string"}


def opened(source: RedisCluster | RedisServer, **options: Any) -> AbstractAsyncContextManager[RedisEnricher]:
    return helpers.opened(RedisEnricher(**{"url": source.url, "cluster": True, **COLUMN} | options))


@pytest.mark.parametrize("kind", ["json", pytest.param("hash", marks=pytest.mark.faults)])
def test_a_cluster_keeps_the_contract(cluster: RedisCluster, kind: Any) -> None:
    names = ["JFK", "LGA", "EWR"]
    for name in names:
        if kind == "json":
            cluster.set(f"{kind}:{name}", f'{{"name": "{name}"}}')
        else:
            cluster.node_of(f"{kind}:{name}").command("HSET", f"{kind}:{name}", "name", name)
    check_enricher(
        lambda: RedisEnricher(
            cluster.url, schema="name string", key_template=f"{kind}:{{key}}", kind=kind, cluster=True, max_batch=3
        ),
        known={name: {"name": name} for name in names},
        missing=["XXX", "a b\r\nSET x y\r\n", "{a}", "", "\ud800"],
        secrets=["s3cret"],
    )


async def test_a_batch_over_all_slots_is_answered_in_order_by_all_nodes(cluster: RedisCluster) -> None:
    for number in range(0, 300, 2):
        cluster.set(str(number), str(number))
    async with opened(cluster) as enricher:
        found = await enricher.lookup_many(range(300))
        assert found == [None if number % 2 else {"n": number} for number in range(300)]


def two_nodes(cluster: RedisCluster, name: str) -> tuple[RedisServer, RedisServer, str]:
    """The node of a name, another node, and the slot."""
    here = cluster.node_of(name)
    there = next(node for node in cluster.nodes if node is not here)
    return here, there, str(key_slot(name.encode()))


def moved(slot: str, cluster: RedisCluster, here: RedisServer, there: RedisServer) -> None:
    """End a move. A node that was importing gets a new epoch, without which other nodes may go on to contradict it."""
    for node in (there, here):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.identity(there))


async def test_slots_that_move_are_followed(cluster: RedisCluster) -> None:
    here, there, slot = two_nodes(cluster, "moving")
    async with opened(cluster) as enricher:
        assert await enricher.lookup("moving") is None
        there.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.identity(here))
        here.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.identity(there))
        # A name that is not here is asked for there, by ASK.
        assert await enricher.lookup_many(["moving", "other"]) == [None, None]
        moved(slot, cluster, here, there)
        there.command("SET", "moving", "7")
        # It is there for good, which MOVED says.
        assert await enricher.lookup_many(["moving", "other"]) == [{"n": 7}, None]
        there.command("DEL", "moving")
        here.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.identity(there))
        moved(slot, cluster, there, here)
        assert await enricher.lookup("moving") is None


async def test_nodes_that_send_a_key_to_each_other_are_a_retryable_error_and_leave_no_connection(
    cluster: RedisCluster,
) -> None:
    """As while the news of a moved slot spreads: redis-py then gives up with a ClusterError."""
    here, there, slot = two_nodes(cluster, "astray")
    for again in (True, False):
        async with opened(cluster) as enricher:
            here.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.identity(there))
            there.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.identity(here))
            error = await failure(enricher, "astray")
            assert (error.retryable, error.any_key) == (True, True)
            here.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.identity(there))
            moved(slot, cluster, there, here)
            if again:
                assert await enricher.lookup("astray") is None
        ports = {one.raddr.port for one in psutil.Process().net_connections("tcp") if one.raddr}
        assert not ports & {node.port for node in cluster.nodes}


@pytest.mark.parametrize("times", [1, 2])
async def test_a_connection_that_is_cut_before_its_first_write_is_lost_and_no_key_is_to_blame(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """redis-py then raises what this raises: seen with a node that was restarted while 20 batches were on their way."""
    execute, errors = (
        ClusterPipeline.execute,
        [AttributeError("'NoneType' object has no attribute 'writelines'")] * times,
    )

    async def cut(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return await execute(*args, **options)

    async with opened(cluster) as enricher:
        monkeypatch.setattr(ClusterPipeline, "execute", cut)
        if times == 1:
            assert await enricher.lookup_many(["any"]) == [None]
        else:
            error = await failure(enricher, "any")
            assert (error.retryable, error.any_key) == (True, True)


@pytest.mark.faults
async def test_a_node_that_dies_is_a_retryable_error_until_it_is_back() -> None:
    needs_redis()
    with RedisCluster() as cluster:
        cluster.set("alive", "1")
        dead = next(node for node in cluster.nodes[1:] if node is not cluster.node_of("alive"))
        name = next(str(number) for number in range(1000) if cluster.node_of(str(number)) is dead)
        async with opened(cluster, connect_timeout=2) as enricher:
            assert await enricher.lookup_many(["alive", name]) == [{"n": 1}, None]
            dead.restart()
            cluster.wait(lambda node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))
            # Each finds its connection lost, and none disturbs another one that is sent again.
            answers = await asyncio.gather(*(enricher.lookup_many(["alive", name]) for _ in range(20)))
            assert answers == [[{"n": 1}, None]] * 20
            dead.stop()
            error = await failure(enricher, "alive", name)
            assert (error.retryable, error.any_key) == (True, True)
            assert await enricher.lookup("alive") == {"n": 1}
            dead.start()
            async with asyncio.timeout(20):
                while True:
                    with contextlib.suppress(EnricherError):
                        assert await enricher.lookup_many(["alive", name]) == [{"n": 1}, None]
                        break


@pytest.mark.faults
@pytest.mark.parametrize("how", ["dies", "hangs"])
async def test_a_replica_takes_over_from_a_node_that_is_gone(how: str) -> None:
    needs_redis()
    with RedisCluster(replicas=True, timeout=500) as cluster:
        primary = cluster.nodes[1]
        name = next(str(number) for number in range(1000) if cluster.node_of(str(number)) is primary)
        cluster.set(name, "7")
        cluster.wait(lambda node: node.command("DBSIZE") == b":1\r\n", [cluster.nodes[4]])
        async with opened(cluster, connect_timeout=1) as enricher:
            assert await enricher.lookup(name) == {"n": 7}
            if how == "dies":
                primary.stop()
            else:
                primary.pause()
            answers: list[Any] = []
            async with asyncio.timeout(30):
                while answers[-1:] != [{"n": 7}]:
                    [answer] = await asyncio.gather(enricher.lookup(name), return_exceptions=True)
                    answers.append(answer)
            assert None not in answers, "a replica has what the primary had"
            assert all(error.retryable for error in answers[:-1]), answers
        if how == "hangs":
            primary.resume()


async def test_X7_cancelled_lookups_leave_no_answer_for_another_one(cluster: RedisCluster) -> None:
    for number in range(50):
        cluster.set(f"c{number}", str(number))
    async with opened(cluster, key_template="c{key}", pool_size=2) as enricher:
        await helpers.cancelled_at_any_turn(enricher, lambda number: {"n": number}, rounds=60)


async def test_wrong_credentials_and_servers_without_cluster_are_not_retryable(
    cluster: RedisCluster, redis_server: RedisServer
) -> None:
    node = cluster.nodes[0]
    async with opened(cluster, url=node.url_with("wrong-s3cret")) as enricher:
        error = await failure(enricher, "k")
        assert (error.retryable, error.any_key) == (False, True)
        assert "refuses the credentials" in str(error)
    async with opened(redis_server) as enricher:
        error = await failure(enricher, "k")
        assert (error.retryable, error.any_key) == (False, True)
        assert "leave out cluster=True" in str(error)
    name = next(str(number) for number in range(100) if cluster.node_of(str(number)) is not node)
    async with opened(cluster, cluster=False) as enricher:
        error = await failure(enricher, name)
        assert "set cluster=True" in str(error)


async def test_a_function_gives_the_url_and_tls_reaches_every_node(cluster: RedisCluster) -> None:
    asked: list[str] = []

    def url() -> str:
        asked.append(cluster.url)
        return cluster.url

    async with opened(cluster, url=url) as enricher:
        assert await enricher.lookup_many(range(1000, 1030)) == [None] * 30
        assert len(asked) > 2, "for every connection"
    async with opened(cluster, url="rediss://:s3cret@host:6379?ssl_check_hostname=false") as enricher:
        assert enricher._runtime is not None
        options = enricher._runtime[0]._client.redis.connection_kwargs
        assert options["connection_class"] is SSLConnection
        assert options["ssl_check_hostname"] is False


def test_repr_says_that_it_is_a_cluster() -> None:
    enricher = RedisEnricher("rediss://me:s3cret@cache:6380", schema="n int", cluster=True)
    assert repr(enricher) == "RedisEnricher('rediss://cache:6380', cluster, json at '{key}')"
    assert enricher != RedisEnricher("rediss://me:s3cret@cache:6380", schema="n int")
