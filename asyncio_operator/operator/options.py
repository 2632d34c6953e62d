"""The options of the operator, checked and bundled in `RunOptions` for all its runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from asyncio_operator.checks import flag, milliseconds, of_kind, one_of, plain_function
from asyncio_operator.elements import Record
from asyncio_operator.engine.options import IN_WORDS, CallOptions, OperatorMode
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.policies.cache import Cache
from asyncio_operator.trace import Trace

OnError = Literal["fail", "skip"] | Callable[[Any, BaseException], Any]


class OperatorTimers(Protocol):
    """A timer service, or a manager of several, as far as a run uses it."""

    def advance_watermark(self, timestamp: int, limit: int | None = None) -> bool: ...

    def collect_into(self, output: Callable[[Record[Any]], object] | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(CallOptions):
    """The options of every run of an operator.

    Attributes:
        clock: gives seconds; the circuit breaker measures ages with it. None for the loop's time.
        mode, key: with "key_ordered" and a key, calls of one key run one after the other.
        timers: fire with the watermarks of a run.
        cache: what results are kept for, and how long; by `cache_key`, or by value.
    """

    on_error: OnError = "fail"
    on_timeout: Callable[[Any], Any] | None = None
    flatten: bool = False
    trace: Trace | None = None
    clock: Callable[[], float] | None = None
    mode: OperatorMode = "ordered"
    key: Callable[[Any], Any] | None = None
    timers: OperatorTimers | None = None
    cache: Cache | None = None
    cache_key: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        CallOptions.__post_init__(self)
        if one_of("mode", self.mode, get_args(OperatorMode)) == "key_ordered":
            if self.key is None:
                raise ConfigurationError('mode is "key_ordered", and key is missing; give a function of the value')
            plain_function("key", self.key, "a function of the value that gives its key", "the value")
        elif self.key is not None:
            raise ConfigurationError(f'key is given, and mode is "{self.mode}"; a key is for mode="key_ordered" only')
        of_kind("trace", self.trace, Trace)
        if self.on_timeout is not None:
            plain_function("on_timeout", self.on_timeout, "a function of the value", "the value")
        if not isinstance(self.on_error, str) or self.on_error not in ("fail", "skip"):
            allowed = '"fail", "skip", or a function of value and error'
            plain_function("on_error", self.on_error, allowed, "the value", "the error")
        milliseconds(self.clock)
        flag("flatten", self.flatten)
        if self.timers is not None and (isinstance(self.timers, type) or not hasattr(self.timers, "collect_into")):
            raise ConfigurationError(
                f"timers is {describe(self.timers)}; it must be a timer service, such as "
                "InternalTimerService(on_event_time=...), or a TimerServiceManager"
            )
        if self.key is not None and self.hedge is not None:
            raise ConfigurationError(
                f'hedge is {self.hedge!r}, and mode is "key_ordered"; a call and its copy would overlap, which calls '
                'of one key must not; use "ordered", or leave hedge out'
            )
        of_kind("cache", self.cache, Cache, IN_WORDS["cache"])
        if self.cache_key is not None:
            plain_function("cache_key", self.cache_key, "a function of the value that gives its key", "the value")
        if self.cache is None:
            if self.cache_key is not None:
                raise ConfigurationError("cache_key is given, and cache is not; it gives the key of a kept result")
        elif self.cache.is_shared:
            raise ConfigurationError(
                f'cache is {self.cache!r}; its store must be "heap" or "rocksdb" here, because a Redis keeps rows with '
                "columns, as those of enrich and Lookup"
            )
        elif self.key is not None and self.cache.refresh_after is not None:
            raise ConfigurationError(
                f'refresh_after of cache is {self.cache.refresh_after}, and mode is "key_ordered"; a refresh and the '
                "call of an element with its key would overlap, which calls of one key must not; use expire_after_write"
            )
