"""A real cluster of Redis for tests: three nodes, each with a third of the slots, and a replica of each if wanted."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.redis_service import RedisServer, needs_redis
from tests.servers import Started

SLOTS = 16_384


class Node(RedisServer):
    """A node also listens on its port + 10,000, which no client may be given either."""

    def __init__(self, **options: str) -> None:
        super().__init__(tls=False, **options)
        while True:
            self.port = secrets.choice(range(12_000, 22_000))
            with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
                one.bind(("127.0.0.1", self.port))
                other.bind(("127.0.0.1", self.port + 10_000))
                return


class RedisCluster(Started):
    """Three primaries, `nodes`, and with `replicas` one more node for each, in the same order.

    Args:
        replicas: whether there are replicas.
        timeout: milliseconds after which a silent node is taken for dead.
    """

    def __init__(self, *, replicas: bool = False, timeout: int = 2_000) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(timeout),
            "cluster-require-full-coverage": "no",
            "masterauth": "s3cret:Pass/word",
        }
        self.nodes = [Node(**options) for _ in range(6 if replicas else 3)]

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def node_of(self, name: str) -> RedisServer:
        """The node that has a name."""
        return self.nodes[key_slot(name.encode()) * 3 // SLOTS]

    def set(self, name: str, value: str) -> None:
        self.node_of(name).command("SET", name, value)

    def identity(self, node: RedisServer) -> str:
        return node.command("CLUSTER", "MYID").split(b"\r\n")[1].decode()

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self._join()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _join(self) -> None:
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if number < 3:
                # The slots of `node_of`.
                slots = [str(slot) for slot in range(SLOTS) if slot * 3 // SLOTS == number]
                node.command("CLUSTER", "ADDSLOTS", *slots)
            if node is not first:
                first.command("CLUSTER", "MEET", "127.0.0.1", str(node.port))
        self.wait(lambda node: b"cluster_known_nodes:%d" % len(self.nodes) in node.command("CLUSTER", "INFO"))
        for primary, replica in zip(self.nodes, self.nodes[3:], strict=False):
            replica.command("CLUSTER", "REPLICATE", self.identity(primary))
        self.wait(lambda node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"))
        if self.nodes[3:]:
            self.wait(lambda node: node.command("CLUSTER", "SLOTS").count(b"127.0.0.1") == len(self.nodes))

    def wait(self, condition: object, nodes: list[RedisServer] | None = None) -> None:
        """Wait until a condition holds for all nodes."""
        assert callable(condition)
        deadline = time.monotonic() + 30
        for node in self.nodes if nodes is None else nodes:
            while True:
                with contextlib.suppress(OSError, AssertionError):
                    if condition(node):
                        break
                assert time.monotonic() < deadline, "the cluster does not form"
                time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """A running cluster, for the tests of a module."""
    needs_redis()
    with RedisCluster() as made:
        yield made
