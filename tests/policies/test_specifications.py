"""What all specifications have in common: checked when made, frozen, compared by value, and fit to travel."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.journal import Journal
from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
from asyncio_operator.policies.batching import Batching
from asyncio_operator.policies.cache import Cache
from asyncio_operator.policies.circuit_breaker import CircuitBreaker
from asyncio_operator.policies.hedge import Hedge
from asyncio_operator.policies.rate_limit import RateLimit
from asyncio_operator.policies.retry import ExponentialBackoff, FixedBackoff, Retry
from asyncio_operator.state.rocksdb_options import RocksDBOptions
from asyncio_operator.testing import FakeEnricher, ManualClock

EXAMPLES: list[tuple[Any, dict[str, Any]]] = [
    (AdaptiveCapacity, {"initial": 7, "minimum": 2, "maximum": 70}),
    (Batching, {"max_size": 5, "linger": 0.25}),
    (
        Cache,
        {
            "max_rows": 5,
            "expire_after_write": 9.0,
            "expire_after_access": 8.0,
            "cache_missing": True,
            "missing_ttl": 1.0,
            "refresh_after": 2.5,
            "stale_if_error": True,
            "store": "rocksdb",
            "directory": "cache",
            "rocksdb": RocksDBOptions(max_log_bytes=1 << 21),
        },
    ),
    (CircuitBreaker, {"failure_ratio": 0.25, "window": 5.0, "minimum_calls": 3, "open_for": 1.5}),
    (Hedge, {"after": "p99.5", "extra": 0.1, "floor": 0.5, "cap": 2.5}),
    (Journal, {"path": "/j", "identity": "a", "flush_every": 2.0, "expire_after": 3.0, "keep_missing": False}),
    (RateLimit, {"rate": 5, "per": 2.0, "burst": 3}),
    (ExponentialBackoff, {"initial": 0.5, "multiplier": 3.0, "maximum": 5.0, "jitter": False}),
    (FixedBackoff, {"delay": 2.0}),
    (
        RocksDBOptions,
        {
            "write_buffer_bytes": 1 << 21,
            "block_cache_bytes": 1 << 22,
            "max_log_bytes": 1 << 23,
            "background_jobs": 1,
            "compression": "zstd",
        },
    ),
    (Retry, {"max_attempts": 5, "backoff": FixedBackoff(1.0), "on": (OSError,), "if_result": callable}),
]


async def later(result):
    """What could not be awaited."""


WRONG = [
    (AdaptiveCapacity, {"initial": 0}, "initial is 0;"),
    (AdaptiveCapacity, {"initial": 1001}, "initial is 1001;"),
    (AdaptiveCapacity, {"initial": 5, "minimum": 6}, "initial is 5;"),
    (AdaptiveCapacity, {"minimum": 0}, "minimum is 0;"),
    (AdaptiveCapacity, {"maximum": 2.5}, r"maximum is 2\.5;"),
    (AdaptiveCapacity, {"minimum": 9, "maximum": 8}, "maximum is 8; it must not be less than minimum, 9"),
    (Batching, {"max_size": 0}, "max_size is 0;"),
    (Batching, {"linger": -0.1}, r"linger is -0\.1;"),
    (Cache, {"max_rows": 0}, "max_rows is 0;"),
    (Cache, {"max_rows": True}, "max_rows is True;"),
    (Cache, {"expire_after_write": 0}, "expire_after_write is 0;"),
    (Cache, {"expire_after_write": 0.0001}, r"expire_after_write is 0\.0001; it must be at least 0\.001"),
    (Cache, {"expire_after_write": 1e15}, "expire_after_write is 1000000000000000.0; it must be at most 1000000000000"),
    (Cache, {"expire_after_access": -1}, "expire_after_access is -1;"),
    (Cache, {"missing_ttl": "1"}, "missing_ttl is '1';"),
    (Cache, {"missing_ttl": 1, "cache_missing": False}, "missing_ttl is 1.0, and cache_missing is False"),
    (Cache, {"cache_missing": 1}, "cache_missing is 1;"),
    (Cache, {"stale_if_error": None}, "stale_if_error is None;"),
    (Cache, {"refresh_after": 5, "expire_after_write": 5}, "refresh_after is 5.0, and expire_after_write is 5.0"),
    (Cache, {"refresh_after": 5, "expire_after_access": 4}, "refresh_after is 5.0, and expire_after_access is 4.0"),
    (Cache, {"store": "disk"}, "store is 'disk';"),
    (Cache, {"store": "rocksdb"}, "directory is None;"),
    (Cache, {"store": "rocksdb", "directory": ""}, "directory is '';"),
    (
        Cache,
        {"store": "rocksdb", "directory": "dbfs:/cache"},
        "directory is 'dbfs:/cache'; it must be a path on a local",
    ),
    (Cache, {"store": "rocksdb", "directory": "~/cache"}, "directory is '~/cache'; it must be a path on a local disk"),
    (Cache, {"directory": "here"}, "directory is 'here', and store is \"heap\""),
    (CircuitBreaker, {"failure_ratio": 0}, "failure_ratio is 0;"),
    (CircuitBreaker, {"failure_ratio": 1.1}, r"failure_ratio is 1\.1;"),
    (CircuitBreaker, {"failure_ratio": math.nan}, "failure_ratio is nan;"),
    (CircuitBreaker, {"failure_ratio": True}, "failure_ratio is True;"),
    (CircuitBreaker, {"window": 0}, "window is 0;"),
    (CircuitBreaker, {"window": 5e-324}, r"window is 5e-324; it must be at least 0\.001 seconds"),
    (CircuitBreaker, {"minimum_calls": 0}, "minimum_calls is 0;"),
    (CircuitBreaker, {"open_for": timedelta(0)}, r"open_for is datetime\.timedelta\(0\);"),
    (Hedge, {"after": "p49.9"}, "after is 'p49.9'; it must be a number of seconds, a timedelta, or a percentile"),
    (Hedge, {"after": "p99.95"}, "after is 'p99.95';"),
    (Hedge, {"after": "98"}, "after is '98';"),
    (Hedge, {"after": "p098"}, "after is 'p098';"),
    (Hedge, {"after": 0}, "after is 0; it must be more than 0 seconds"),
    (Hedge, {"after": None}, "after is None; it must be a number of seconds"),
    (Hedge, {"extra": 0}, r"extra is 0; it must be a number over 0 and at most 1"),
    (Hedge, {"extra": 1.01}, r"extra is 1\.01;"),
    (Hedge, {"extra": True}, "extra is True;"),
    (Hedge, {"floor": -1}, "floor is -1;"),
    (Hedge, {"cap": 0}, "cap is 0;"),
    (Hedge, {"cap": 0.001}, r"cap is 0\.001 s; it must not be less than floor, which is 0\.01 s"),
    (Hedge, {"after": 2, "cap": 1}, r"after is 2\.0 s; it must not be more than cap, which is 1\.0 s"),
    (RateLimit, {"rate": 0}, "rate is 0;"),
    (RateLimit, {"rate": 0.5}, r"rate is 0\.5; .*for less than one start in a window, make the window longer"),
    (RateLimit, {"rate": 1, "per": 0}, "per is 0;"),
    (RateLimit, {"rate": 1, "per": math.inf}, "per is inf;"),
    (RateLimit, {"rate": 1, "burst": -1}, "burst is -1;"),
    (RateLimit, {"rate": 10**20}, "rate is 100000000000000000000; it must be at most 10,000,000"),
    (RateLimit, {"rate": 10**400}, "rate is 1000"),
    (RateLimit, {"rate": 1, "burst": 10**7}, r"rate \+ burst is 10000001; it must be at most 10,000,000"),
    (ExponentialBackoff, {"initial": -1}, "initial is -1;"),
    (ExponentialBackoff, {"initial": 10**400}, "initial is 1000"),
    (ExponentialBackoff, {"initial": 11}, r"maximum is 10\.0 s; it must not be less than initial, which is 11\.0 s"),
    (ExponentialBackoff, {"multiplier": 0.5}, r"multiplier is 0\.5;"),
    (ExponentialBackoff, {"multiplier": math.inf}, "multiplier is inf;"),
    (ExponentialBackoff, {"multiplier": 10**400}, "multiplier is 1000"),
    (ExponentialBackoff, {"jitter": 1}, "jitter is 1;"),
    (FixedBackoff, {"delay": "1"}, "delay is '1';"),
    (Retry, {"max_attempts": 0}, "max_attempts is 0;"),
    (Retry, {"max_attempts": True}, "max_attempts is True;"),
    (Retry, {"backoff": 1.0}, r"backoff is 1\.0;"),
    (Retry, {"on": OSError("x")}, "on is OSError"),
    (Retry, {"on": [OSError]}, "on is "),
    (Retry, {"on": np.array([OSError, ValueError])}, "on is "),
    (Retry, {"on": (OSError, int)}, "on is "),
    (Retry, {"on": KeyboardInterrupt}, "on is .*KeyboardInterrupt"),
    (Retry, {"if_result": 5}, "if_result is 5;"),
    (Retry, {"if_result": later}, "if_result is .*async def"),
    (Retry, {"if_result": lambda: True}, "if_result is .*, which takes .*; it must take one argument, the result"),
]


@pytest.mark.parametrize(("kind", "values"), EXAMPLES)
def test_it_is_a_value_that_travels(kind, values):
    specification = kind(**values)
    assert dataclasses.asdict(specification).keys() == values.keys()
    assert all(getattr(specification, name) == value for name, value in values.items())
    assert specification == kind(**values)
    assert hash(specification) == hash(kind(**values))
    assert cloudpickle.loads(cloudpickle.dumps(specification)) == specification
    for name, value in values.items():
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(specification, name, value)
    assert not hasattr(specification, "__dict__")


@pytest.mark.parametrize("kind", [AdaptiveCapacity, Batching, CircuitBreaker, ExponentialBackoff, Hedge, Retry])
def test_it_has_defaults_and_differs_from_another(kind):
    values = dict(EXAMPLES)[kind]
    assert kind() == kind()
    for name, value in values.items():
        assert getattr(kind(), name) != value
        if kind is not AdaptiveCapacity or name != "maximum":
            assert kind(**{name: value}) != kind()


@pytest.mark.parametrize(("kind", "values", "message"), WRONG)
def test_R1_a_wrong_value_is_named_with_what_is_allowed(kind, values, message):
    with pytest.raises(ConfigurationError, match=f"^{message}") as caught:
        kind(**values)
    assert "must" in str(caught.value)


def test_durations_may_be_timedeltas():
    half = timedelta(seconds=0.5)
    assert FixedBackoff(half) == FixedBackoff(0.5)
    assert ExponentialBackoff(half, maximum=half) == ExponentialBackoff(0.5, maximum=0.5)
    assert RateLimit(1, half) == RateLimit(1, 0.5)
    assert CircuitBreaker(window=half, open_for=half) == CircuitBreaker(window=0.5, open_for=0.5)
    assert Batching(linger=half) == Batching(linger=0.5)
    assert Hedge(half) == Hedge(0.5)
    assert Hedge(floor=half, cap=half) == Hedge(floor=0.5, cap=0.5)
    assert Journal("/j", flush_every=half, expire_after=half) == Journal("/j", flush_every=0.5, expire_after=0.5)
    assert FakeEnricher({1: {"a": 1}}, half) == FakeEnricher({1: {"a": 1}}, 0.5)
    assert ManualClock(0.5).advance(half) == 1.0


def test_one_exception_class_is_a_tuple_of_one():
    assert Retry(on=OSError) == Retry(on=(OSError,))


@pytest.mark.parametrize(("bounds", "initial"), [({}, 20), ({"maximum": 8}, 8), ({"minimum": 30}, 30)])
def test_the_initial_capacity_that_nobody_chose_yields_to_the_bounds(bounds, initial):
    assert AdaptiveCapacity(**bounds).initial == initial
