"""Options of the operator: a wrong one is a ConfigurationError that names it, its value, and what is allowed."""

from __future__ import annotations

import asyncio
import functools
import pickle
from datetime import timedelta
from typing import Any

import pytest

from asyncio_operator import (
    AdaptiveCapacity,
    AsyncFunction,
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    BlockingFunction,
    Cache,
    CircuitBreaker,
    ConfigurationError,
    RateLimit,
    Retry,
)
from asyncio_operator.timers import InternalTimerService
from tests.operator.helpers import collect, same, virtual


def plain(value: Any) -> Any:
    return value


def max_of_two(a: Any, b: Any, /) -> Any:
    return max(a, b)


async def hook(value: Any, error: Any = None) -> Any:
    return value


INT = "an int of at least 1"
SECONDS = "a number of seconds or a timedelta, finite and not negative"
NAN, INFINITE = float("nan"), float("inf")

WRONG: list[tuple[str, list[Any], str]] = [
    ("mode", ["key", "Ordered", "", None, 1, ["ordered"]], '"ordered" | "unordered" | "key_ordered"'),
    ("capacity", [0, -1, 1.0, True, "1", None, AdaptiveCapacity], INT),
    ("buffer", [0, -1, 1.0, True, "1"], INT),
    ("timeout", [-1, -0.1, NAN, INFINITE, "1", True, timedelta(seconds=-1)], SECONDS),
    ("grace_period", [-1, NAN, INFINITE, "1", None, timedelta(seconds=-1)], SECONDS),
    ("attempt_timeout", [-1, -0.1, NAN, INFINITE, "1", True, timedelta(seconds=-1)], SECONDS),
    ("capacity", [0], "an int of at least 1, or an AdaptiveCapacity"),
    (
        "retry",
        [True, RateLimit(1), Retry, {"max_attempts": 3}],
        "a Retry, a number of attempts, or None",
    ),
    ("rate_limit", [1.5, Retry(), RateLimit], "a RateLimit, a number of calls in a second"),
    ("circuit_breaker", [0.5, RateLimit(1), CircuitBreaker], "a CircuitBreaker, True, or None"),
    ("batching", [1.5, True, Retry(), Batching], "a Batching, a number of keys"),
    ("trace", [True, "trace.png"], "a Trace, or None"),
    ("hedge", [0.5], "a Hedge, True, or None"),
    ("cache", [5], "a Cache, True, or None"),
    ("timers", [5, InternalTimerService], "a timer service, such as InternalTimerService(on_event_time=...)"),
    ("on_timeout", [1, "skip"], "a function of the value"),
    ("on_error", ["ignore", None, 1], '"fail", "skip", or a function of value and error'),
    ("flatten", [1, None, "yes"], "True or False"),
    ("clock", [1, "now"], "a callable that returns seconds"),
    ("on_timeout", [hook], "an ordinary function"),
    ("on_error", [hook], "an ordinary function"),
    ("on_timeout", [max_of_two], "which takes (a, b, /); it must take one argument, the value"),
    ("on_error", [plain], "which takes (value); it must take two arguments, the value and the error"),
    ("clock", [plain], "which takes (value); it must take no arguments"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), [(n, v, a) for n, values, a in WRONG for v in values])
def test_a_wrong_option_names_the_argument_the_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigurationError) as failure:
        AsyncWaitOperator(same, **{name: value})
    message = str(failure.value)
    assert message.startswith(f"{name} is {value!r}")
    assert allowed in message
    assert isinstance(failure.value, ValueError)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"retry": 3}, {"retry": Retry(3)}),
        ({"rate_limit": 100}, {"rate_limit": RateLimit(100)}),
        ({"batching": 500}, {"batching": Batching(500)}),
        ({"cache": True}, {"cache": Cache()}),
    ],
    ids=repr,
)
def test_a_short_form_is_taken_for_what_it_means(short, long):
    assert AsyncWaitOperator(Many(), **short)._options == AsyncWaitOperator(Many(), **long)._options


@pytest.mark.parametrize(("name", "value"), [("retry", 0), ("rate_limit", -1), ("batching", 0)])
def test_a_number_that_is_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=rf"is {value}; it must be an int of at least 1"):
        AsyncWaitOperator(Many(), **{name: value})


# -- in combination


class Many(BatchAsyncFunction[Any, Any]):
    async def invoke_batch(self, values: Any) -> Any:
        return [[value, value] for value in values]


KEYED = {"mode": "key_ordered", "key": abs}

MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"mode": "key_ordered"}, 'mode is "key_ordered", and key is missing; give a function of the'),
    ({"key": plain}, 'key is given, and mode is "ordered"; a key is for mode="key_ordered"'),
    (KEYED | {"key": 1}, "key is .*; it must be a function of the value"),
    (KEYED | {"key": hook}, "key is .*; it must be an ordinary function"),
    (KEYED | {"key": max_of_two}, "key is .*; it must take one argument, the value"),
    ({"batching": Batching()}, r"batching is given, and function is .*; batches are for a BatchAsync"),
    (KEYED | {"hedge": True}, r'hedge is Hedge.*, and mode is "key_ordered"; a call and its copy'),
    ({"cache_key": abs}, "cache_key is given, and cache is not"),
    ({"cache": True, "cache_key": 5}, "cache_key is 5"),
    ({"cache": Cache(store="redis://host", expire_after_write=5)}, 'must be "heap" or "rocksdb"'),
    (KEYED | {"cache": Cache(refresh_after=5)}, "refresh_after of cache is 5"),
]


@pytest.mark.parametrize(("options", "says"), MISFITS)
def test_options_that_do_not_fit_are_refused(options, says):
    with pytest.raises(ConfigurationError, match=says):
        AsyncWaitOperator(same, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 1.0, "attempt_timeout": 5.0},
        {"timeout": timedelta(seconds=1), "attempt_timeout": timedelta(seconds=5)},
        {"attempt_timeout": 5.0},
        {"buffer": 1, "capacity": 10},
        {"buffer": 1, "capacity": AdaptiveCapacity()},
        {"retry": Retry(), "rate_limit": RateLimit(100), "circuit_breaker": CircuitBreaker()},
        {"on_timeout": plain, "timeout": 1.0},
        {"on_timeout": plain, "attempt_timeout": 1.0},
        {"on_timeout": plain, "timeout": None},
        {"key": hash, "mode": "key_ordered"},
    ],
)
@virtual
async def test_what_makes_sense_only_at_second_sight_is_allowed(options):
    assert await collect(AsyncWaitOperator(same, **options).process(range(9))) == list(range(9))
    assert await collect(AsyncWaitOperator(Many(), flatten=True, **options).process([1, 2])) == [1, 1, 2, 2]


def test_an_operator_with_every_option_travels_by_pickle():
    operator = AsyncWaitOperator(
        Many(), mode="key_ordered", key=hash, capacity=AdaptiveCapacity(), timeout=9.0, attempt_timeout=3.0,
        retry=Retry(), batching=Batching(), rate_limit=RateLimit(1000), circuit_breaker=CircuitBreaker(), flatten=True,
        on_error=max, on_timeout=plain,
    )  # fmt: skip
    assert list(pickle.loads(pickle.dumps(operator))([1, 2])) == [1, 1, 2, 2]


# -- functions


class Callable:
    async def __call__(self, value: Any) -> Any:
        return value

    async def method(self, value: Any) -> Any:
        return value

    @staticmethod
    async def static(value: Any) -> Any:
        return value

    @classmethod
    async def of_class(cls, value: Any) -> Any:
        return value


async def two(_: Any, value: Any) -> Any:
    return value


async def stream(value: Any) -> Any:
    yield value


class Unwritten(AsyncFunction[Any, Any]):
    pass


WRAP = "Wrap an ordinary function that blocks in BlockingFunction"

NOT_QUITE: list[tuple[Any, str]] = [
    *[(function, WRAP) for function in (plain, 1, None, "f", list, lambda value: value, functools.partial(plain))],
    (two, r"which takes \(_, value\); it must take one argument, the element \(several values: a tuple\)"),
    (functools.partial(same, 1), r"which takes \(\); it must take one argument"),
    (Unwritten, r"a class; pass an instance, Unwritten\(\.\.\.\)"),
    (stream, "return a list, with flatten=True"),
    (Unwritten(), r"^Unwritten does not define `async def invoke\(self, value\)`"),
    (BatchAsyncFunction(), r"^BatchAsyncFunction does not define `async def invoke_batch\(self, values\)`"),
]


@pytest.mark.parametrize(("function", "remedy"), NOT_QUITE)
def test_a_function_that_could_never_be_called_is_refused(function, remedy):
    with pytest.raises(ConfigurationError, match=remedy):
        AsyncWaitOperator(function, on_error="skip")


def later(value: Any = None) -> Any:
    return asyncio.get_running_loop().create_future()


METHODS: list[tuple[str, Any, str]] = [
    ("invoke", plain, r"^{}.invoke is an ordinary function; make it `async def invoke\(self, value\)`, or wrap"),
    ("invoke", later, "is an ordinary function"),
    ("invoke", stream, "return a list, with flatten=True"),
    ("invoke", two, r"^{}.invoke is .*, which takes \(_, value\); it must take one argument, the element"),
    ("invoke_batch", plain, r"an ordinary function; make it `async def invoke_batch\(self, values\)`, or wrap"),
    ("invoke_batch", two, "it must take one argument, the list of elements"),
    ("open", later, r"^{}.open is an ordinary function; make it `async def open\(self\)`$"),
    ("open", True, r"^{}.open is True; in an AsyncFunction `open` is the method `async def open\(self\)`; keep"),
    ("close", same, r"^{}.close is .*, which takes \(value\); it must take no arguments"),
    ("timeout", same, "^{}.timeout is .*; it must be an ordinary function, not an `async def`"),
    ("timeout", max_of_two, "^{}.timeout is .*; it must take one argument, the element"),
    ("timeout", 5.0, r"^{}.timeout is 5.0; in .* the hook `def timeout\(self, value\)`; .* the operator timeout=5.0"),
]


@pytest.mark.parametrize(("name", "method", "remedy"), METHODS)
def test_a_method_that_could_never_be_called_is_refused(name, method, remedy):
    class One(AsyncFunction[Any, Any]):
        async def invoke(self, value: Any) -> Any:
            return value

    for kind in (One, Many):
        if "invoke" in name and hasattr(kind, "invoke_batch") != (name == "invoke_batch"):
            continue
        function = kind()
        setattr(function, name, method)
        with pytest.raises(ConfigurationError, match=remedy.format(kind.__name__)):
            AsyncWaitOperator(function, on_error="skip")


BLOCKING: list[tuple[tuple[Any, ...], str]] = [
    *[((function,), "takes an ordinary function") for function in (same, 1, None, functools.partial(same), Callable())],
    ((max_of_two,), r"which takes .*; it must take one argument, the element"),
    *[((plain, workers), r"max_workers is .*; it must be an int of at least 1") for workers in (0, 1.5, True, None)],
]


@pytest.mark.parametrize(("given", "says"), BLOCKING)
def test_a_blocking_function_is_an_ordinary_one_of_the_element_and_has_a_worker(given, says):
    with pytest.raises(ConfigurationError, match=says):
        BlockingFunction(given[0], **({"max_workers": given[1]} if len(given) > 1 else {}))


@pytest.mark.parametrize("elements", [1, None, object()])
def test_elements_have_to_be_iterable(elements):
    with pytest.raises(ConfigurationError, match="it must be an iterable or an asynchronous iterable"):
        AsyncWaitOperator(same).process(elements)
    with pytest.raises(ConfigurationError, match="it must be an ordinary iterable"):
        AsyncWaitOperator(same)(elements)


FUNCTIONS = [same, Callable(), Callable().method, Callable.static, Callable.of_class, functools.partial(two, 0)]


@pytest.mark.parametrize("function", FUNCTIONS)
@virtual
async def test_whatever_is_async_and_takes_a_value_is_a_function(function):
    assert await collect(AsyncWaitOperator(function).process([1, 2])) == [1, 2]


def test_an_operator_tells_what_it_is():
    told = repr(AsyncWaitOperator(same, mode="unordered", capacity=7))
    assert told == "AsyncWaitOperator(same, mode='unordered', capacity=7)"


def test_an_operator_that_has_run_travels_too():
    operator = AsyncWaitOperator(BlockingFunction(abs))
    assert list(operator([-1])) == [1]
    copy = pickle.loads(pickle.dumps(operator))
    assert copy.metrics.admitted == 0
    assert list(copy([-2])) == [2]
