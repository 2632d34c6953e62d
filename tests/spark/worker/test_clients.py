"""Clients of a worker, on virtual time: opened once, shared, closed when idle, whatever is cancelled or fails."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import Enricher, FunctionError, Hedge
from asyncio_operator.engine.gate import Limited
from asyncio_operator.engine.lent import IDLE, Lent
from asyncio_operator.lookup.options import LookupOptions
from asyncio_operator.lookup.pipeline import LookupPipeline
from asyncio_operator.policies.hedge import Hedger
from asyncio_operator.policies.shutdown import CLIENT_CLOSE_TIMEOUT
from asyncio_operator.spark.worker.process import MOST_HEDGERS, Client, this_process
from asyncio_operator.spark.worker.process import hedgers as new_hedgers
from tests.lookup.helpers import Consumer, Recorded, Source, batches_of, places_of
from tests.operator.helpers import forever, now, virtual


class Life(Enricher):
    """Records what happens to it; opening and closing take some seconds, or raise."""

    def __init__(
        self, name: str = "a", events: list[Any] | None = None, opening: Any = 0.0, closing: Any = 0.0
    ) -> None:
        self.name = name
        self.events = [] if events is None else events
        self.opening = opening
        self.closing = closing

    def schema(self) -> pa.Schema:
        return pa.schema([])

    async def lookup(self, key: Any) -> Any:
        return None

    async def open(self) -> None:
        self.events.append(f"open {self.name}")
        await self._last(self.opening)
        self.events.append(f"opened {self.name}")

    async def close(self) -> None:
        self.events.append(f"close {self.name}")
        await self._last(self.closing)
        self.events.append(f"closed {self.name}")

    async def _last(self, how: Any) -> None:
        if isinstance(how, BaseException):
            raise how
        await asyncio.sleep(how)

    def __repr__(self) -> str:
        return f"Life({self.name})"


class Clients:
    """What tasks have of a process: each has a lease until it is released."""

    def __init__(self) -> None:
        self.lent: Lent[str, Client] = Lent(end=Client.close)
        self._leases: dict[str, list[Any]] = {}

    async def lease(self, fingerprint: str, enricher: Enricher) -> Enricher:
        lease = replace(this_process, clients=self.lent).opened(fingerprint, enricher)
        enricher = await lease.__aenter__()
        self._leases.setdefault(fingerprint, []).append(lease)
        return enricher

    async def release(self, fingerprint: str) -> None:
        await self._leases[fingerprint].pop().__aexit__(None, None, None)


OPENED = ["open a", "opened a"]
CLOSED = ["close a", "closed a"]


@virtual
async def test_L8_equal_specifications_share_a_client_unequal_ones_do_not() -> None:
    clients, one, copy, other = Clients(), Life("a"), Life("copy"), Life("b")
    assert await clients.lease("1", one) is one
    assert await clients.lease("1", copy) is one
    assert await clients.lease("2", other) is other
    assert (one.events, copy.events, other.events) == (OPENED, [], ["open b", "opened b"])


@virtual
async def test_L8_leases_that_come_while_it_opens_wait_for_it() -> None:
    clients, enricher = Clients(), Life(opening=5.0)
    got = await asyncio.gather(*(clients.lease("1", enricher) for _ in range(3)))
    assert got == [enricher] * 3
    assert (enricher.events, now()) == (OPENED, 5.0)


@virtual
async def test_L8_an_idle_client_is_closed_and_opened_again_on_use() -> None:
    clients, enricher = Clients(), Life()
    await clients.lease("1", enricher)
    await clients.lease("1", enricher)
    await clients.release("1")
    await asyncio.sleep(3 * IDLE)
    assert enricher.events == OPENED, "one lease was still out"
    await clients.release("1")
    await asyncio.sleep(IDLE - 1)
    assert enricher.events == OPENED
    await clients.lease("1", enricher)
    await asyncio.sleep(3 * IDLE)
    await clients.release("1")
    assert enricher.events == OPENED, "a lease takes the client out of retirement"
    await asyncio.sleep(IDLE + 1)
    assert enricher.events == OPENED + CLOSED
    await clients.lease("1", enricher)
    assert enricher.events == OPENED + CLOSED + OPENED


@virtual
async def test_a_predecessor_that_never_closes_does_not_hold_up_its_successor_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(Life):
        async def close(self) -> None:
            while True:
                try:
                    await forever()
                except asyncio.CancelledError:
                    if now() > 1000:
                        raise

    clients = Clients()
    await clients.lease("1", Stubborn())
    await clients.release("1")
    await asyncio.sleep(IDLE)
    await clients.lease("1", Life("b"))
    assert now() < IDLE + 5 * CLIENT_CLOSE_TIMEOUT
    await asyncio.sleep(2000)


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@virtual
async def test_X5_opening_that_fails_is_an_error_naming_the_enricher_and_closes_what_was_begun(
    error: BaseException,
) -> None:
    clients, enricher = Clients(), Life(opening=error)
    leases = [asyncio.create_task(clients.lease("1", enricher)) for _ in range(2)]
    await asyncio.wait(leases)
    for lease in leases:
        failure = lease.exception()
        assert isinstance(failure, FunctionError)
        assert f"Life(a) could not be opened: {type(error).__name__}" in str(failure)
        assert failure.__cause__ is error
    await asyncio.sleep(1)
    assert enricher.events == ["open a", *CLOSED]
    again = Life("b")
    assert await clients.lease("1", again) is again


def raised(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("lack", "remedy"),
    [
        (lambda: os.environ["NO_SUCH_DSN"], "give it to the executors, as in --conf spark.executorEnv.NO_SUCH_DSN=..."),
        (lambda: importlib.import_module("no_such_client"), "install it in the Python of every executor"),
        (lambda: dict[str, str]()["NO_SUCH_DSN"], "KeyError: 'NO_SUCH_DSN'"),
    ],
)
@virtual
async def test_X5_what_the_worker_lacks_is_told_as_such_with_the_remedy(lack: Callable[[], Any], remedy: str) -> None:
    cause = raised(lack)
    wrapped = RuntimeError("no client")
    wrapped.__cause__ = cause
    for error in (cause, wrapped) if "KeyError" not in remedy else (cause,):
        with pytest.raises(FunctionError) as caught:
            await Clients().lease("1", Life(opening=error))
        assert "Life(a) could not be opened: " in str(caught.value)
        assert remedy in str(caught.value)
        assert ("This Python worker" in str(caught.value)) == ("KeyError" not in remedy)


@pytest.mark.parametrize("after", [0.0, 2.0, 100.0])
@virtual
async def test_opening_ends_with_its_last_lease_and_leaves_nothing_open(after: float) -> None:
    clients, enricher = Clients(), Life(opening=1e9)
    lease = asyncio.create_task(clients.lease("1", enricher))
    await asyncio.sleep(after)
    lease.cancel()
    await asyncio.wait([lease])
    assert lease.cancelled()
    await asyncio.sleep(10)
    assert enricher.events == ["open a", *CLOSED]


@virtual
async def test_one_specification_has_no_two_clients_open_though_a_lease_between_them_is_cancelled() -> None:
    clients, events = Clients(), list[Any]()
    await clients.lease("1", Life("a", events, closing=4.0))
    await clients.release("1")
    await asyncio.sleep(IDLE + 1)
    waiting = asyncio.create_task(clients.lease("1", Life("b", events)))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.sleep(0.1)
    await clients.lease("1", Life("c", events))
    assert events == [*OPENED, "close a", "closed a", "open c", "opened c"]
    assert now() == IDLE + 4.0


@pytest.mark.parametrize("closing", [OSError("gone"), SystemExit(3), 1e9])
@virtual
async def test_what_goes_wrong_when_closing_is_logged_and_disturbs_nobody(
    closing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clients = Clients()
    await clients.lease("1", Life(closing=closing))
    await clients.release("1")
    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        await asyncio.sleep(IDLE + CLIENT_CLOSE_TIMEOUT + 1)
    assert [record.getMessage() for record in caplog.records] == ["closing Life(a) failed"]
    again = Life("b")
    assert await clients.lease("1", again) is again


@virtual
async def test_the_timer_of_a_client_that_was_forgotten_does_nothing() -> None:
    clients, problems = Clients(), list[Any]()
    await clients.lease("1", Life())
    await clients.release("1")
    clients.lent.forget_all()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    await asyncio.sleep(IDLE + 1)
    assert problems == []


def test_X8_a_forked_child_does_not_take_over_the_clients_of_its_parent() -> None:
    clients, enricher = this_process.clients, Life()
    clients.forget_all()  # other files may have left some in this process

    async def lease() -> None:
        clients.borrow("parent's", lambda: Client(enricher, None))

    with asyncio.Runner() as runner:
        runner.run(lease())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(len(clients.all())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    assert [client.enricher for client in clients.all()] == [enricher]
    os.close(read)
    os.close(write)
    clients.forget_all()


# -- H1


HEDGE = Hedge(extra=0.1)

Hedgers = Lent[tuple[str, Hedge], Hedger]


def lent(hedgers: Hedgers, owner: str) -> AbstractContextManager[Hedger]:
    return hedgers.lent((owner, HEDGE), lambda: Hedger(HEDGE))


async def task(hedgers: Hedgers, owner: str, keys: int, slow: int = -1) -> int:
    """The number of copies that a task makes of the one call that takes long."""
    asked: list[Any] = []

    async def answer(key: Any) -> Any:
        asked.append(key)
        await asyncio.sleep(50.0 if key == slow and asked.count(key) == 1 else 1.0)
        return {"x": key}

    batches = batches_of(keys)
    consumer, options = Consumer(batches, ordered=True), LookupOptions(hedge=HEDGE)
    with lent(hedgers, owner) as hedger:
        consumer.pipeline = LookupPipeline(
            Recorded(answer),
            Source(batches),
            consumer.deliver,
            options,
            places_of(options),
            Limited(hedger=hedger),
        )
        await consumer.pipeline.run()
    return int(consumer.pipeline.figures.hedged)


@virtual
async def test_H1_a_task_begins_with_the_latencies_of_the_one_before_it() -> None:
    hedgers = new_hedgers()
    assert await task(hedgers, "a", 30, slow=3) == 0
    assert await task(hedgers, "a", 30) == 0
    assert await task(hedgers, "a", 30, slow=3) == 1


@virtual
async def test_H1_tasks_at_the_same_time_have_one_each_and_few_are_kept() -> None:
    hedgers = new_hedgers()
    with lent(hedgers, "a") as first, lent(hedgers, "a") as second:
        assert first is not second
    for owner in range(MOST_HEDGERS - 1):
        with lent(hedgers, str(owner)):
            pass
    with lent(hedgers, "a") as again:
        assert again is first
    for owner in range(MOST_HEDGERS):
        with lent(hedgers, str(owner)):
            pass
    with lent(hedgers, "a") as anew:
        assert anew is not first
