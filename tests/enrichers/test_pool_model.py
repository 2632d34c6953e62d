"""The pool against a server of ten lines on virtual time: any order of lookups, cancellations, limits and losses.

The server counts a connection for a moment after it has ended, refuses those over its limit, and may be out of reach.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator.enricher import CANCEL_TIMEOUT, CLOSE_TIMEOUT
from asyncio_operator.services.causes import Cause
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.testing import VirtualTimeLoop
from enrichers.databases.pool import IDLE_TIMEOUT, LEAVING, LONGEST_PAUSE, Pool


class FullError(Exception):
    pass


class LostError(Exception):
    pass


class Session:
    """A connection that takes some time for a statement."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lost = asyncio.get_running_loop().create_future()
        self._statements = 0

    def is_closed(self) -> bool:
        return self._lost.done()

    def terminate(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
            asyncio.get_running_loop().call_later(self._server.lag, self._server.sessions.discard, self)

    async def close(self) -> None:
        self.terminate()

    async def answer(self, *call: float) -> str:
        [seconds] = call
        assert not self._statements, "a connection has one statement at a time"
        self._statements += 1
        try:
            await asyncio.wait([self._lost], timeout=seconds)
        finally:
            self._statements -= 1
        if self._lost.done():
            raise LostError
        return "done"

    async def recover(self) -> None:
        await self.answer(self._server.obeys_in)


@dataclass
class Server:
    """Gives at most `limit` connections."""

    limit: int
    lag: float = 0.05
    obeys_in: float = 0.01
    reachable: bool = True
    sessions: set[Session] = field(default_factory=set)
    asked: int = 0

    async def connect(self) -> Session:
        self.asked += 1
        await asyncio.sleep(0.01)
        if not self.reachable:
            raise OSError
        if len(self.sessions) >= self.limit:
            raise FullError
        session = Session(self)
        self.sessions.add(session)
        return session

    def lose(self, number: int) -> None:
        for session in [session for session in self.sessions if not session.is_closed()][:number]:
            session.terminate()


class ServerPool(Pool[Session]):
    _logger = logging.getLogger("asyncio_operator.postgres")
    _limits = ""

    def __init__(self, connect: Callable[[], Awaitable[Session]], size: int, **options: Any) -> None:
        super().__init__("a test", size, **options)
        self._make = connect

    async def _connect(self) -> Session:
        return await self._make()

    def _cause(self, problem: BaseException) -> Cause:
        return Cause("it is full", overload=isinstance(problem, FullError))

    def _secrets(self) -> Secrets:
        return Secrets()


async def statement(pool: Pool[Session], seconds: float) -> Any:
    return await pool.answer(await pool.acquire(), seconds)


TASK_FACTORIES: list[Any] = [None, *filter(None, [getattr(asyncio, "eager_task_factory", None)])]


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for factory in TASK_FACTORIES:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.get_loop().set_task_factory(factory)
            runner.run(test())


EVENTS = st.one_of(
    st.tuples(st.just("lookup"), st.floats(0, 0.5)),
    st.tuples(st.just("lookup"), st.floats(0, 0.5)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("limit"), st.integers(0, 5)),
    st.tuples(st.just("lose"), st.integers(1, 4)),
    st.tuples(st.just("reach"), st.booleans()),
    st.tuples(st.just("expire"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.005, 0.02, 0.3, 5.0, 70.0])),
)


@settings(max_examples=150)
@given(
    st.lists(EVENTS, max_size=60),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.05, 3.0]),
    st.sampled_from([0.0, 0.2, 2 * CLOSE_TIMEOUT]),
)
def test_L8_whatever_the_server_does_every_lookup_ends_and_nothing_is_left(
    events: list[tuple[str, Any]], size: int, limit: int, lag: float, obeys_in: float
) -> None:
    async def test() -> None:
        server = Server(limit, lag, obeys_in)
        pool = ServerPool(server.connect, size)
        lookups: list[asyncio.Task[str]] = []
        for what, number in events:
            match what:
                case "lookup":
                    lookups.append(asyncio.ensure_future(statement(pool, number)))
                case "cancel" if number < len(lookups):
                    lookups[number].cancel()
                case "limit":
                    server.limit = number
                case "lose":
                    server.lose(number)
                case "reach":
                    server.reachable = number
                case "expire":
                    pool.expire()
                case "wait":
                    await asyncio.sleep(number)
            assert sum(not session.is_closed() for session in server.sessions) <= size
        server.limit, server.reachable = max(server.limit, 1), True
        async with asyncio.timeout(len(lookups) + LEAVING + LONGEST_PAUSE + CANCEL_TIMEOUT):
            await asyncio.wait([asyncio.ensure_future(statement(pool, 0.1)), *lookups])
        await asyncio.sleep(CANCEL_TIMEOUT + IDLE_TIMEOUT + lag)
        assert not server.sessions, "what is not used is closed"
        last = asyncio.ensure_future(statement(pool, 0.1))
        assert await last == "done"
        await pool.close()
        await asyncio.sleep(lag + 0.001)
        assert not server.sessions
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for lookup in lookups:
            assert lookup.cancelled() or lookup.exception() is not None or lookup.result() == "done"

    on_virtual_time(test)


def test_L8_a_connection_that_the_server_still_counts_is_waited_for() -> None:
    async def test() -> None:
        server = Server(limit=1, lag=3.0)
        pool = ServerPool(server.connect, 4)
        assert await statement(pool, 0.1) == "done"
        server.lose(1)
        assert await asyncio.gather(*(statement(pool, 0.1) for _ in range(10))) == ["done"] * 10
        server.lag = 1000.0
        server.lose(1)
        answers = await asyncio.gather(*(statement(pool, 0.1) for _ in range(10)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {FullError}, "but not for ever"
        assert asyncio.get_running_loop().time() < 3 + 3 * LEAVING
        await pool.close()

    on_virtual_time(test)


def test_L8_the_pool_grows_when_the_server_gives_more_and_shrinks_when_it_gives_less() -> None:
    async def test() -> None:
        server = Server(limit=1)
        pool = ServerPool(server.connect, 4)
        for limit in (1, 3, 1, 4, 2):
            server.lose(len(server.sessions) - limit)
            server.limit = limit
            assert await asyncio.gather(*(statement(pool, 0.5) for _ in range(400))) == ["done"] * 400
            assert len(server.sessions) == limit
        await pool.close()

    on_virtual_time(test)


def test_L8_another_connection_that_cannot_be_made_fails_no_lookup() -> None:
    """Whatever the reason, as long as one is held: the server is out of reach for what is new, or takes too long."""

    async def test() -> None:
        server = Server(limit=8)
        pool = ServerPool(server.connect, 8)
        assert await statement(pool, 0.1) == "done"
        server.reachable = False
        assert await asyncio.gather(*(statement(pool, 0.1) for _ in range(30))) == ["done"] * 30
        server.lose(1)
        answers = await asyncio.gather(*(statement(pool, 0.1) for _ in range(30)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {OSError}, "none is held any more"
        await pool.close()

    on_virtual_time(test)


def test_an_attempt_without_a_limit_ends_when_nothing_waits_for_it() -> None:
    async def test() -> None:
        server = Server(limit=1)
        hanging = True

        async def connect() -> Session:
            if hanging:
                server.asked += 1
                await asyncio.get_running_loop().create_future()
            return await server.connect()

        pool = ServerPool(connect, 1, bounded=False)
        for attempts in range(1, 4):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(statement(pool, 0.1), 1)
            assert server.asked == attempts
        late = asyncio.ensure_future(statement(pool, 0.1))
        await asyncio.sleep(1)
        late.cancel()
        hanging = False
        assert await statement(pool, 0.1) == "done", "and fails nothing that comes in the same moment"
        await pool.close()

    on_virtual_time(test)


def test_close_ends_what_waits_and_cuts_what_does_not_end() -> None:
    async def test() -> None:
        server = Server(limit=2, obeys_in=100.0)
        pool = ServerPool(server.connect, 3)
        lookups = [asyncio.ensure_future(statement(pool, seconds)) for seconds in (1.0, 1000.0, 1.0, 1.0)]
        await asyncio.sleep(0.5)
        started = asyncio.get_running_loop().time()
        await pool.close()
        assert asyncio.get_running_loop().time() - started == CLOSE_TIMEOUT
        answers = await asyncio.gather(*lookups, return_exceptions=True)
        assert answers[0] == "done"
        assert isinstance(answers[1], LostError)
        assert [str(answer) for answer in answers[2:]] == ["the pool is closed"] * 2
        with pytest.raises(Exception, match="the pool is closed"):
            await pool.acquire()
        await pool.close()

    on_virtual_time(test)


def test_O17_a_connection_is_made_outside_of_the_call_that_waits_for_it() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")

    async def test() -> None:
        server, seen = Server(limit=1), []
        who.set("the pool")

        async def connect() -> Session:
            seen.append(who.get())
            return await server.connect()

        async def call() -> None:
            who.set("a call")
            await statement(pool, 0.1)

        pool = ServerPool(connect, 1)
        await asyncio.create_task(call())
        assert seen == ["the pool"]
        await pool.close()

    on_virtual_time(test)
