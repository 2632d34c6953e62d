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
    CircuitBreaker,
    ConfigurationError,
    RateLimit,
    Record,
    Retry,
)
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
    ("on_timeout", [1, "skip"], "a function of the value"),
    ("on_error", ["ignore", None, 1], '"fail", "skip", or a function of value and error'),
    ("flatten", [1, None, "yes"], "True or False"),
    ("clock", [1, "now"], "a function that gives seconds"),
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
    [({"retry": 3}, {"retry": Retry(3)}), ({"rate_limit": 100}, {"rate_limit": RateLimit(100)})],
    ids=repr,
)
def test_a_number_is_taken_for_what_it_means(short, long):
    assert AsyncWaitOperator(same, **short)._options == AsyncWaitOperator(same, **long)._options


def test_a_number_is_taken_for_the_size_of_a_batch():
    batched = AsyncWaitOperator(Many(), batching=500)
    assert batched._options == AsyncWaitOperator(Many(), batching=Batching(500))._options


@pytest.mark.parametrize(("name", "value"), [("retry", 0), ("rate_limit", -1), ("batching", 0)])
def test_a_number_that_is_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigurationError, match=rf"is {value}; it must be an int of at least 1"):
        AsyncWaitOperator(Many(), **{name: value})


# -- in combination


def test_key_ordered_without_a_key_is_refused():
    with pytest.raises(ConfigurationError, match='mode is "key_ordered", and key is missing; give a function of the'):
        AsyncWaitOperator(same, mode="key_ordered")


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_a_key_is_for_key_ordered_only(mode):
    with pytest.raises(
        ConfigurationError, match=f'key is given, and mode is "{mode}"; a key is for mode="key_ordered"'
    ):
        AsyncWaitOperator(same, mode=mode, key=plain)


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        (1, "be a function of the value"),
        ("id", "be a function"),
        (hook, "be an ordinary function"),
        (max_of_two, "take one argument, the value"),
    ],
)
def test_O15_a_key_has_to_be_an_ordinary_function_of_the_value(key, allowed):
    with pytest.raises(ConfigurationError, match=f"key is .*; it must {allowed}"):
        AsyncWaitOperator(same, mode="key_ordered", key=key)


class Many(BatchAsyncFunction[Any, Any]):
    async def invoke_batch(self, values: Any) -> Any:
        return [[value, value] for value in values]


@pytest.mark.parametrize("function", [same, BlockingFunction(plain)])
def test_batching_is_for_a_BatchAsyncFunction_only(function):
    with pytest.raises(
        ConfigurationError, match=r"batching is given, and function is .*; batches are for a BatchAsync"
    ):
        AsyncWaitOperator(function, batching=Batching())


@pytest.mark.parametrize("options", [{}, {"attempt_timeout": 1.0}])
def test_R2_on_timeout_is_for_a_deadline(options):
    """That there may be none, 0 says openly."""
    with pytest.raises(
        ConfigurationError, match=r"on_timeout is given, and timeout is not; .* set the deadline with timeout="
    ):
        AsyncWaitOperator(same, on_timeout=plain, **options)
    AsyncWaitOperator(same, on_timeout=plain, timeout=0, **options)


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
        {"key": hash, "mode": "key_ordered"},
    ],
)
@virtual
async def test_what_makes_sense_only_at_second_sight_is_allowed(options):
    assert await collect(AsyncWaitOperator(same, **options).process(range(9))) == list(range(9))
    assert await collect(AsyncWaitOperator(Many(), flatten=True, **options).process([1, 2])) == [1, 1, 2, 2]


@virtual
async def test_a_BatchAsyncFunction_is_called_in_batches_whatever_else_is_given():
    assert await collect(AsyncWaitOperator(Many(), batching=Batching(max_size=1)).process([1])) == [[1, 1]]
    assert await collect(AsyncWaitOperator(Many()).process([1])) == [[1, 1]]


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


@pytest.mark.parametrize("function", [plain, 1, None, "f", list, lambda v: v, functools.partial(plain)])
def test_a_function_that_is_not_async_is_refused(function):
    with pytest.raises(ConfigurationError, match="Wrap an ordinary function that blocks in BlockingFunction"):
        AsyncWaitOperator(function)


NOT_QUITE = [
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


@pytest.mark.parametrize("function", [same, 1, None, functools.partial(same), Callable()])
def test_a_blocking_function_has_to_be_an_ordinary_one(function):
    with pytest.raises(ConfigurationError, match="takes an ordinary function"):
        BlockingFunction(function)


def test_a_blocking_function_takes_the_element():
    with pytest.raises(ConfigurationError, match=r"which takes .*; it must take one argument, the element"):
        BlockingFunction(max_of_two)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, None])
def test_a_blocking_function_needs_a_worker(workers):
    with pytest.raises(ConfigurationError, match=r"max_workers is .*; it must be an int of at least 1"):
        BlockingFunction(plain, max_workers=workers)


@pytest.mark.parametrize("elements", [1, None, object()])
def test_elements_have_to_be_iterable(elements):
    with pytest.raises(ConfigurationError, match="it must be an iterable or an asynchronous iterable"):
        AsyncWaitOperator(same).process(elements)
    with pytest.raises(ConfigurationError, match="it must be an ordinary iterable"):
        AsyncWaitOperator(same)(elements)


def test_the_synchronous_face_takes_no_asynchronous_iterable():
    async def source():
        yield 1

    with pytest.raises(ConfigurationError, match="pass an asynchronous one to operator"):
        AsyncWaitOperator(same)(source())


FUNCTIONS = [same, Callable(), Callable().method, Callable.static, Callable.of_class, functools.partial(two, 0)]


@pytest.mark.parametrize("function", FUNCTIONS)
@virtual
async def test_whatever_is_async_and_takes_a_value_is_a_function(function):
    assert await collect(AsyncWaitOperator(function).process([1, 2])) == [1, 2]


def test_an_operator_tells_what_it_is():
    told = repr(AsyncWaitOperator(same, mode="unordered", capacity=7))
    assert told == "AsyncWaitOperator(same, mode='unordered', capacity=7)"


def test_an_operator_travels_by_pickle():
    operator = pickle.loads(pickle.dumps(AsyncWaitOperator(same, mode="unordered", timeout=1.0)))
    assert list(operator([1, Record(2, 3)])) == [1, Record(2, 3)]


def test_an_operator_that_has_run_travels_too():
    operator = AsyncWaitOperator(BlockingFunction(abs))
    assert list(operator([-1])) == [1]
    copy = pickle.loads(pickle.dumps(operator))
    assert copy.metrics.admitted == 0
    assert list(copy([-2])) == [2]
