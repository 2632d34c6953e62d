"""An ordinary function that blocks, as an enricher: for boto3, requests, JDBC drivers and similar clients.

    BlockingEnricher(look_up, "name string, height int", max_workers=16)

    # One connection for each thread, for clients that must not be shared between threads:
    BlockingEnricher(look_up, "name string", setup=connect, teardown=lambda connection: connection.close())

The threads are those of `BlockingFunction`: `open` allows them, each is made when it is needed, and `close` ends them.
A thread cannot be cancelled. So a cancelled lookup ends when its thread is done, and counts against the capacity until
then (law O11): give the client a timeout of its own. A cancelled lookup that still waits for a thread ends at once and
never runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncio_operator import BlockingFunction, ConfigurationError, Enricher, EnricherError
from asyncio_operator.enricher import (
    CLOSE_TIMEOUT,
    Found,
    as_schema,
    describe,
    flag,
    function_name,
    gives_coroutines,
    is_idempotent,
    missing_here,
    positive_int,
    takes,
    verdict,
)
from asyncio_operator.services.causes import import_error
from enrichers.names import Weigh, opened, weigh_with

if TYPE_CHECKING:
    import pyarrow as pa

    from asyncio_operator.enricher import StructType

logger = logging.getLogger("asyncio_operator.blocking")


@dataclass(frozen=True, init=False, repr=False)
class BlockingEnricher(Enricher):
    """An enricher made from a function that blocks.

    Args:
        function: ``def f(key)``, called in a thread. It returns a mapping from column names to values, a sequence of
            such mappings, or None for a miss. With `setup` it is ``def f(client, key)``. None if there is a
            `function_many`.
        schema: the columns that a found row adds, as a `pyarrow.Schema`, a Spark DDL string or a `StructType`.
        max_workers: the maximum number of threads of one worker, and so of calls at the same time, whatever the
            capacity; 32 by default, as in `BlockingFunction`.
        function_many: ``def f(keys)``, or ``def f(client, keys)``. It returns one answer for each key, in their order,
            None for a miss.
        max_batch: the maximum number of keys for `function_many`; 1,000 by default. Without `function_many` there are
            no batches.
        setup: called once in each thread before its first call, and once by `open`. It returns the thread's client. If
            it fails, it is called again for the next lookup.
        teardown: called with that client, in its thread, when the enricher is closed.
        weigh: under a budget: an ordinary function of the list of keys of a call, which returns what the call is likely
            to weigh, such as ``{"tokens": 1300}``. It is called on the event loop, and gets an empty list for the least
            that any call weighs.
        idempotent: whether two calls for a key have the effect of one, as in `FunctionEnricher`.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    function: Callable[..., Found] | None
    max_workers: int
    function_many: Callable[..., Sequence[Found]] | None
    max_batch: int
    setup: Callable[[], Any] | None
    teardown: Callable[[Any], object] | None
    idempotent: bool
    _weigh: Weigh | None
    _schema: pa.Schema
    _threads: _Threads | None = field(compare=False)

    def __init__(
        self,
        function: Callable[..., Found] | None,
        schema: pa.Schema | str | StructType,
        max_workers: int = 32,
        *,
        function_many: Callable[..., Sequence[Found]] | None = None,
        max_batch: int | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[[Any], object] | None = None,
        weigh: Weigh | None = None,
        idempotent: bool = True,
    ) -> None:
        functions = {"function": function, "function_many": function_many, "setup": setup, "teardown": teardown}
        for name, given in functions.items():
            if given is not None and (not callable(given) or gives_coroutines(given)):
                raise ConfigurationError(
                    f"{name} is {describe(given)}; it must be an ordinary function, which runs in a thread. An "
                    "`async def` function needs FunctionEnricher"
                )
        if function is None and function_many is None:
            raise ConfigurationError("function is None; pass it, or function_many, or both")
        if teardown is not None and setup is None:
            raise ConfigurationError("teardown is given but setup is not; there would be no client to tear down")
        client = () if setup is None else ("the client that `setup` gives",)
        taken = {"function": (*client, "the key"), "function_many": (*client, "a list of keys"), "teardown": client}
        for name, given in functions.items():
            if given is not None:
                takes(name, given, *taken.get(name, ()))
        if max_batch is not None and function_many is None:
            raise ConfigurationError(
                f"max_batch is {describe(max_batch)}; it needs function_many, a function of many keys"
            )
        weigh_with(self, weigh)
        batch = 1 if function_many is None else 1000 if max_batch is None else positive_int("max_batch", max_batch)
        sizes = {"max_workers": positive_int("max_workers", max_workers), "max_batch": batch}
        repeatable = flag("idempotent", idempotent) and all(map(is_idempotent, (type(self), function, function_many)))
        others = {"idempotent": repeatable, "_weigh": weigh, "_schema": as_schema(schema), "_threads": None}
        for name, value in {**functions, **sizes, **others}.items():
            object.__setattr__(self, name, value)

    @property
    def max_calls(self) -> int:  # type: ignore[override]
        """One call runs in a thread at a time."""
        return self.max_workers

    def schema(self) -> pa.Schema:
        """The columns that a found row adds."""
        return self._schema

    async def open(self) -> None:
        """Make the pool, and with a `setup` also the first client. Other threads start when they are needed.

        An error of the source is left to the lookups, which may be retried. A missing module or variable is raised
        here, because every lookup would fail with it.

        Raises:
            EnricherError: `setup` needs a module or an environment variable that this process lacks.
        """
        await BlockingEnricher.close(self)  # Of an earlier call of `open`.
        threads = _Threads(self)
        object.__setattr__(self, "_threads", threads)
        await threads.pool.open()
        if self.setup is None:
            return
        try:
            await threads.call(lambda client, _: None, None)
        except EnricherError as error:
            if missing_here(error) is not None:
                raise

    async def close(self) -> None:
        """Tear the clients down and end the threads. A thread that is still in a call does both after its call."""
        threads = self._threads
        object.__setattr__(self, "_threads", None)
        if threads is not None:
            await threads.close()

    async def lookup(self, key: Any) -> Found:
        """The function's result for a key. It raises what the function raises.

        Raises:
            EnricherError: the enricher is not open, or `setup` failed, which no key causes.
        """
        if self.function is None:
            return await super().lookup(key)
        found: Found = await opened(self._threads, self).call(self.function, key)
        return found

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Found]:
        """The results of `function_many`. Without it, one call for each key, all at the same time."""
        if self.function_many is None:
            return await super().lookup_many(keys)
        found: Sequence[Found] = await opened(self._threads, self).call(self.function_many, keys)
        if isinstance(found, Sequence) and not isinstance(found, str | bytes) and len(found) == len(keys):
            return found
        given = f"a {type(found).__name__} of {len(found)}" if isinstance(found, list | tuple) else describe(found)
        raise EnricherError(
            f"{self!r}: function_many gave {given} for {len(keys)} keys; it must return a list of one answer for each "
            "key, in their order, and None for a key that has no row",
            retryable=False,
            any_key=True,
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_threads": None}

    def __repr__(self) -> str:
        function = self.function if self.function is not None else self.function_many
        name = function_name(function)
        return f"BlockingEnricher({name}, {', '.join(self._schema.names)})"


class _Threads:
    """The threads of an open enricher. With a `setup`, each has its own client."""

    def __init__(self, enricher: BlockingEnricher) -> None:
        self._subject = repr(enricher)
        self._setup = enricher.setup
        self._teardown = enricher.teardown
        self.pool: BlockingFunction[tuple[Callable[..., Any], tuple[Any, ...]], Any]
        self.pool = BlockingFunction(lambda call: call[0](*call[1]), enricher.max_workers)
        # A call that waits in the pool cannot be cancelled, and would run long after its deadline. So it waits here.
        self._slots = asyncio.Semaphore(enricher.max_workers)
        self._local = threading.local()
        self._closed = False

    async def call(self, function: Callable[..., Any], argument: Any) -> Any:
        """The result of a function, run in a thread. With a `setup`, the client of the thread is its first argument."""
        async with self._slots:
            return await self.pool.invoke((self._called, (function, argument)))

    def _called(self, function: Callable[..., Any], argument: Any) -> Any:
        arguments = (argument,) if self._setup is None else (self._client(self._setup), argument)
        try:
            return function(*arguments)
        except Exception as error:
            problem = import_error(error, self._subject)
            if problem is None:
                raise
            raise problem from error
        finally:
            if self._closed:
                self._tear_down()

    def _client(self, setup: Callable[[], Any]) -> Any:
        """The client of this thread; the first call makes it."""
        if not hasattr(self._local, "client"):
            try:
                self._local.client = setup()
            except Exception as error:
                missing = missing_here(error)
                kept = verdict(error) | {"any_key": True} | ({} if missing is None else {"retryable": False})
                raise EnricherError(
                    f"{self._subject}: setup failed: {missing or EnricherError.of(error)}", **kept
                ) from error
        return self._local.client

    async def close(self) -> None:
        """End the threads. Before that, one task for each place in the pool tears down the client of its thread.

        These tasks wait for each other, so that no thread runs two of them. A thread that is still in a call after
        `CLOSE_TIMEOUT` seconds is not waited for any longer.
        """
        self._closed = True
        ends: list[asyncio.Task[Any]] = []
        try:
            if self._teardown is not None:
                count = self.pool.max_concurrency or 1
                end = (self._tear_down_together, (threading.Barrier(count),))
                ends = [asyncio.ensure_future(self.pool.invoke(end)) for _ in range(count)]
                await asyncio.wait(ends, timeout=2 * CLOSE_TIMEOUT)
        finally:
            await self.pool.close()
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_TIMEOUT / 3)

    def _tear_down_together(self, barrier: threading.Barrier) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(CLOSE_TIMEOUT)
        self._tear_down()

    def _tear_down(self) -> None:
        """Tear down the client of this thread, if it has one."""
        if hasattr(self._local, "client") and self._teardown is not None:
            client = self._local.client
            del self._local.client
            try:
                self._teardown(client)
            except BaseException:
                # Everything is caught: a SystemExit would pass through the event loop.
                logger.warning("tearing a client of a blocking enricher down failed", exc_info=True)
