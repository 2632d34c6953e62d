"""What happens to the soak: drawn from a seed, so that it can happen again in the same order."""

from __future__ import annotations

import os
import random
import threading

import psutil

from tests.faults.proxy import Mode, Proxy
from tests.servers import PostgresServer
from tests.soak.work import Work
from tests.spark.helpers import python_workers

ROUGH, CALM = (8, 2, 3, 3), (8, 1, 0, 0)
"""How often trouble is on the way, at the server, to a worker, to the query."""


class Trouble(threading.Thread):
    """Makes trouble until it is stopped.

    Workers are killed and the query is stopped while `rough` is set. Later it is not: what is measured then are workers
    that live for long.

    Attributes:
        made: how much of what.
    """

    def __init__(self, seed: int, ways: list[Proxy], server: PostgresServer, work: Work) -> None:
        super().__init__(name="trouble", daemon=True)
        self.made: dict[str, int] = {}
        self.rough = True
        self._random = random.Random(seed)
        self._ways = ways
        self._server = server
        self._work = work
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        kinds = {
            "way": self._on_the_way,
            "server": self._at_the_server,
            "worker": self._to_a_worker,
            "query": self._to_the_query,
        }
        try:
            while not self._over.wait(self._random.uniform(0.5, 3.0)):
                [drawn] = self._random.choices([*kinds], ROUGH if self.rough else CALM)
                kinds[drawn]()
        except BaseException as error:
            self._error = error

    def stop(self) -> None:
        """No more trouble: everything works from here on.

        Raises:
            BaseException: what went wrong in making it.
        """
        self._over.set()
        self.join()
        # A server ends with the thread that started it, as it asks the system to.
        self._server.restart()
        for way in self._ways:
            way.pass_on()
        if self._error is not None:
            raise self._error

    def _on_the_way(self) -> None:
        way, mode = self._random.choice(self._ways), Mode.drawn(self._random)
        way.set(mode)
        self._over.wait(self._random.uniform(0.1, 2.0))
        way.pass_on()
        self._count(mode.kind)

    def _at_the_server(self) -> None:
        how = self._random.choice(["restart", "kill"])
        self._server.stop() if how == "restart" else self._server.kill()
        self._over.wait(self._random.uniform(0.0, 1.0))
        self._server.start()
        self._count(f"server {how}")

    def _to_a_worker(self) -> None:
        workers = python_workers()
        if workers:
            self._random.choice(workers).kill()
            self._count("worker killed")

    def _to_the_query(self) -> None:
        self._work.stop()
        self._count("query stopped")

    def _count(self, what: str) -> None:
        self.made[what] = self.made.get(what, 0) + 1


def jvm() -> psutil.Process | None:
    """The JVM of this driver."""
    children = psutil.Process(os.getpid()).children(recursive=True)
    return next((child for child in children if child.name() == "java"), None)
