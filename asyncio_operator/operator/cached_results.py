"""Results that are kept: an element whose key the cache knows, or whose key is being called for, needs no call.

`ResultCache` is the cache of an operator: on the heap it lives with the operator, on disk it is opened and closed with
each run. `CachedOutcomes` decides for the elements of a run, before their calls and at the end of them. What is kept is
a tuple of outputs, or None for a result of None (with `flatten`, one without outputs), which the cache calls a miss.

Law O19, under the laws of lookups' caches: a result of a hook and an error are never kept. The error of a call goes to
all elements that wait for it, and so does its deadline. The consumer gets copies, so it cannot change what is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import canonical_key, identity, storable
from asyncio_operator.checks import plain_result
from asyncio_operator.clock import wall
from asyncio_operator.engine.failures import element_error, ends_the_run, is_ordinary
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lookup.answers import copied
from asyncio_operator.lookup.cache_directories import open_cache, open_own_cache
from asyncio_operator.lookup.key_batch import Calls
from asyncio_operator.lookup.open_keys import OpenKey, OpenKeys
from asyncio_operator.lookup.places import Places
from asyncio_operator.state.entries import ABSENT
from asyncio_operator.state.keys import serialize_key

if TYPE_CHECKING:
    from asyncio_operator.engine.gate import Parts
    from asyncio_operator.function import AsyncFunction
    from asyncio_operator.lookup.cache import LookupCache
    from asyncio_operator.operator.outcomes import Outcomes
    from asyncio_operator.policies.cache import Cache
    from asyncio_operator.queues.base import Entry

logger = logging.getLogger("asyncio_operator.cache")

REMEDY = (
    "keys of a cache are texts, bytes, numbers, dates, times, UUIDs and tuples of them; give a function of the value "
    "that returns one, cache_key="
)


class ResultCache:
    """The cache of an operator.

    Args:
        owner: on disk, a cache belongs to equal owners.
        clock: gives seconds; None for the system's.
    """

    def __init__(self, options: Cache, owner: object, clock: Callable[[], float] | None) -> None:
        self.options = options
        self.on_disk = options.store == "rocksdb"
        # Now: the fields of a function change when it is opened.
        self._owner = fingerprint(owner) if self.on_disk else ""
        self._clock = clock or wall
        self._opened: LookupCache | None = None

    def begin(self, *parts: Any) -> CachedOutcomes:
        """What decides for the elements of a run that begins: `CachedOutcomes` has these parts."""
        return CachedOutcomes(self, *parts)

    async def open(self) -> LookupCache:
        """Open it, in a thread if it is on disk.

        Raises:
            ConfigurationError: the directory cannot be used, or rocksdict is not installed.
        """
        if self._opened is None and self.on_disk:
            self._opened = await open_own_cache(self.options, self._owner, self._clock, None)
        elif self._opened is None:
            self._opened = open_cache(self.options, self._owner, self._clock)
        return self._opened

    def close(self) -> None:
        """The end of a run. A cache on the heap stays."""
        if self.on_disk and self._opened is not None:
            opened, self._opened = self._opened, None
            opened.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


class CachedOutcomes(OpenKeys):
    """The elements of a run with a cache: `Endings` over those of a run without one, opened instead of its function.

    Those that wait for the call of another one are its waiters, each with its own flight for a position.
    """

    make_flight = OpenKey

    def __init__(
        self,
        cache: ResultCache,
        function: AsyncFunction[Any, Any],
        outcomes: Outcomes,
        parts: Parts,
    ) -> None:
        super().__init__(parts)
        self.flights: dict[Entry, OpenKey] = {}  # By the entries of elements that have not left.
        self._cache = cache
        self._function = function
        self._cache_key = outcomes.options.cache_key
        self._outcomes = outcomes
        self._buffer = outcomes.buffer
        self._context = copy_context()
        self._nothing: tuple[Any, ...] = () if outcomes.options.flatten else (None,)
        self._places: Places
        self._value: Any = None
        self._logged = False

    async def open(self) -> None:
        await self._function.open()
        self._places = Places(self.figures, None, await self._cache.open())
        self._places.refresh = lambda key: self.refresh(key, self._value)

    async def close(self) -> None:
        try:
            self._cache.close()
        finally:
            await self._function.close()

    # -- before a call

    def answers(self, flight: Any, now: float) -> bool:
        """Whether the element needs no call: it has its outcome now, or when a call that is on its way ends.

        Raises:
            FunctionError: its value gives no key.
        """
        value = flight.value
        try:
            if self._cache_key is not None:
                value = plain_result("cache_key", self._context.copy().run(self._cache_key, value))
            key = canonical_key(value)
            if key is not None and type(key) is not str and type(key) is not int:
                serialize_key(storable(key))
        except BaseException as error:
            what = "the key of the cache" if self._cache_key is None else "cache_key"
            raise element_error(what, flight.value, error, REMEDY, flight.attempts) from error
        if key is None:
            return False
        self._value = flight.value
        answer = self._places.get(key)
        if answer is not ABSENT:
            self._end(flight, self._kept(answer), now)
            return True
        name = identity(key)
        if self.join(name, self, flight):
            return True
        self.enter(flight, key, name)
        return False

    def _kept(self, answer: Any) -> tuple[Any, ...]:
        """The outputs of an answer, for a consumer."""
        if answer is None:
            return self._nothing
        return answer if self._cache.on_disk else tuple(map(copied, answer))

    # -- after a call

    def complete(self, entry: Any, result: Any, attempts: int) -> str:
        # A refresh has no entry.
        flight = entry if type(entry) is OpenKey else self.flights[entry]
        try:
            outputs = self._outcomes.outputs(result)
        except BaseException as error:
            return self.failed(entry, error, attempts, False)
        if flight.name is not None:
            is_miss = outputs[0] is None if self._nothing else not outputs
            kept = outputs if self._cache.on_disk else self._copied(flight, outputs)
            answer = None if is_miss else kept
            if kept is not None:
                self._places.learn((flight.key,), (answer,), (answer,), Calls(attempts))
        return self._end_all(flight, outputs)

    def _copied(self, flight: OpenKey, outputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """A copy of outputs, which their consumer may change; None if there cannot be one."""
        try:
            return tuple(map(copied, outputs))
        except Exception as error:
            if not self._logged:
                self._logged = True
                logger.warning(
                    "the result for key %s cannot be kept, because it cannot be copied: %s; such elements are called "
                    "for every time; this is logged once",
                    describe(flight.key),
                    describe_error(error),
                )
            return None

    def failed(self, entry: Any, error: BaseException, attempts: int, again: bool) -> str:
        hidden = is_ordinary(error) and not ends_the_run(error)
        return self._unanswered(entry, hidden, lambda one: self._outcomes.failed(one, error, attempts, again))

    def timed_out(self, entry: Any, attempts: int) -> str:
        return self._unanswered(entry, True, lambda one: self._outcomes.timed_out(one, attempts))

    def _unanswered(self, entry: Any, hidden: bool, end: Callable[[Any], str]) -> str:
        """End the elements of a call that has no result.

        Args:
            hidden: whether an old result may take the place of the error.
            end: ends the element of an entry without a result.
        """
        flight = entry if type(entry) is OpenKey else self.flights[entry]
        stale = self._places.stale(flight.key) if hidden and flight.name is not None else ABSENT
        if stale is not ABSENT:
            self.figures.failures += len(flight.waiters) + (not flight.refreshing)
            return self._end_all(flight, self._kept(stale))
        # A refresh that fails concerns no element, so it must not end the run: the old result stays.
        how = "failed" if flight.refreshing and hidden else end(entry)
        self.forget(flight)
        now = self._now()
        for _, follower in flight.waiters:
            self._note(follower, end(follower.entry), now)
        return how

    def _end_all(self, flight: OpenKey, outputs: tuple[Any, ...]) -> str:
        """End the elements of a call, each with outputs of its own, before a consumer can change them."""
        self.forget(flight)
        now = self._now()
        if flight.entry is not None:
            flight.entry.complete(outputs)
            self._buffer.completed()
        for _, follower in flight.waiters:
            self._end(follower, self._copied(flight, outputs) or outputs, now)
        return "result"

    def _end(self, flight: OpenKey, outputs: tuple[Any, ...], now: float) -> None:
        """An element without a call of its own gets its outputs."""
        flight.entry.complete(outputs)
        self._buffer.completed()
        self._note(flight, "result", now)

    def _note(self, flight: OpenKey, how: str, now: float) -> None:
        self._recorder.completed(flight, how, now)
        self.figures.latency.add(now - flight.admitted)
