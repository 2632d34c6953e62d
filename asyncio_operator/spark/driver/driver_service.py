"""The service on the driver: what runs in workers asks it, while a job runs, for budgets and with figures.

It starts when it is first needed, on a thread and a loop of its own, so that code of the user cannot hold it up. It
ends with the SparkContext, or with the process. Only processes that know the token of the application get an answer.
The token is made here, goes to the workers inside of jobs, and never over a connection of this service (see
`worker.driver_wire`).

It listens at ``spark.driver.bindAddress`` for workers that connect to ``spark.driver.host``, as Spark itself does, on a
free port or on that of ``spark.asyncio_operator.driver.port``.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from asyncio_operator.errors import ConfigurationError, describe_error
from asyncio_operator.loop.forks import forget_in_child
from asyncio_operator.policies.shutdown import PROCESS_END
from asyncio_operator.quota.coordinators.addresses import states
from asyncio_operator.spark.driver import ledger
from asyncio_operator.spark.worker.driver_wire import BUDGETS, FIGURES, DriverAddress, WireError, abort, greet_worker
from asyncio_operator.spark.worker.versions import context_of

logger = logging.getLogger("asyncio_operator.driver")

PORT = "spark.asyncio_operator.driver.port"

TOKEN_BYTES = 32

LOOK = 1.0  # Seconds between two looks whether the SparkContext still runs.

Topics = Mapping[str, Callable[[Any], Any]]
"""Functions that answer a question, both JSON values, by topic. They run on the service's thread, and are quick."""


class DriverService:
    """A service that runs. It listens at the address `bind` and at `port` (0: any free one), workers connect to `host`,
    and it ends when `alive` says that the application has. OSError if it cannot listen there."""

    def __init__(
        self, host: str, bind: str, port: int, topics: Topics, alive: Callable[[], bool] = lambda: True
    ) -> None:
        self._topics = topics
        self._alive = alive
        self._warned = False
        family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0]
        # Where it binds to `::`, workers with addresses of IPv4 connect too.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        self._listening = socket.create_server(address, family=family, backlog=1000, dualstack_ipv6=both)
        # Where workers find it.
        self.address = DriverAddress(host, self._listening.getsockname()[1], secrets.token_bytes(TOKEN_BYTES))
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="asyncio-operator-driver-service", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it, and wait for its thread."""
        with contextlib.suppress(RuntimeError):  # It has ended.
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PROCESS_END)

    def abandon(self) -> None:
        """In a forked child, which has no thread of it: leave the port to the parent."""
        self._listening.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._talk, sock=self._listening)
        async with server:
            while self._alive() and not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), LOOK)
            talks = asyncio.all_tasks() - {asyncio.current_task()}
            for talk in talks:
                talk.cancel()
            await asyncio.gather(*talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            wire = await greet_worker(reader, writer, self.address.token)
            while True:
                question = await wire.receive()
                await wire.send({"answer": self._topics[question["topic"]](question["question"])})
        except (EOFError, OSError):
            pass  # The worker has ended, or a program has looked which ports are open.
        except asyncio.CancelledError:
            pass  # The service ends. asyncio would log the cancellation of this task.
        except Exception as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            if isinstance(error, WireError):
                why = f"{error}, so it is not a worker of this application"
                remedy = f"no job depends on it; if it goes on, let only workers reach the port ({PORT})"
            else:
                why = f"it could not answer ({describe_error(error)})"
                remedy = "the worker connects again; if it goes on, report this as a defect of asyncio-operator"
            logger.log(
                level,
                "the driver's service closed the connection of %s: %s; %s. The next ones are logged at DEBUG",
                writer.get_extra_info("peername"),
                why,
                remedy,
            )
        finally:
            await abort(writer)


_lock = threading.Lock()
_current: tuple[SparkContext, DriverService] | None = None


def driver_address(spark: SparkSession) -> DriverAddress | None:
    """Where workers reach the service of the application, which the first call starts; None on Spark Connect."""
    global _current
    context = context_of(spark)
    if context is None:
        return None
    with _lock:
        if _current is not None:
            known, service = _current
            if known is context and service.running:
                return service.address
            service.stop()
        host = context.getConf().get("spark.driver.host") or "127.0.0.1"
        bind = context.getConf().get("spark.driver.bindAddress") or host
        asked = spark.conf.get(PORT, None) or "0"
        if not (asked.isdecimal() and int(asked) <= 65535):
            raise ConfigurationError(f"{PORT} is {asked!r}; it must be a port from 1 to 65535, or 0 for any free one")
        port = int(asked)
        # A new application starts with nothing spent.
        states.forget_all()
        topics: Topics = {
            BUDGETS: lambda question: states.ask(question["name"], question["message"]),
            FIGURES: ledger.take,
        }
        try:
            service = DriverService(host, bind, port, topics, lambda: context._jsc is not None)
        except OSError as error:
            raise ConfigurationError(
                f"the driver cannot listen at {bind}:{port} for its workers ({error}); set {PORT} to a free "
                "port, or, for a Budget, name a coordinator in it"
            ) from error
        _current = context, service
        return service.address


def _end() -> None:
    if _current is not None:
        _current[1].stop()


def _forget() -> None:
    """In a forked child: it has neither the thread nor the application."""
    global _current, _lock
    if _current is not None:
        _current[1].abandon()
    _current = None
    _lock = threading.Lock()


atexit.register(_end)
forget_in_child(_forget)
