"""Records, watermarks and errors, and what an error says of a process that lacks something, or of a wrong name."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from asyncio_operator import (
    AsyncOperatorError,
    AsyncWaitOperator,
    CircuitOpenError,
    ConfigurationError,
    ElementTimeoutError,
    EnricherError,
    FunctionError,
    Record,
    ResultError,
    StateError,
    StateMigrationError,
    Watermark,
)
from asyncio_operator.enricher import did_you_mean, failed_import, missing_here
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.hints import SHOWN, Missing
from asyncio_operator.lookup import Lookup
from asyncio_operator.spark import enrich, plan
from asyncio_operator.testing import FakeEnricher


def test_records_and_watermarks_are_values():
    assert Record(1) == Record(1, None) != Record(1, 2)
    assert Record(1, 2) != Record(2, 2)
    assert Watermark(1) == Watermark(1) != Watermark(2)
    assert Record(1, 1) != Watermark(1)
    assert Record(1) != 1
    assert Watermark(1) != 1
    assert len({Record(1), Record(1), Record(1, 1), Watermark(1), Watermark(1)}) == 3
    assert repr([Record("a", 1), Watermark(2)]) == "[Record('a', timestamp=1), Watermark(2)]"
    assert repr(Record("a", "1")) == "Record('a', timestamp='1')"  # type: ignore[arg-type]


def test_they_match_by_position_and_travel():
    match Record(1, 2):
        case Record(value, timestamp):
            assert (value, timestamp) == (1, 2)
    match Watermark(3):
        case Watermark(timestamp):
            assert timestamp == 3
    assert pickle.loads(pickle.dumps([Record(1, 2), Watermark(3)])) == [Record(1, 2), Watermark(3)]


ERRORS: list[tuple[AsyncOperatorError, type[BaseException]]] = [
    (ConfigurationError("text"), ValueError),
    (ElementTimeoutError("text"), TimeoutError),
    (FunctionError("text", element="7", attempts=2), AsyncOperatorError),
    (ResultError("text"), AsyncOperatorError),
    (EnricherError("text", retryable=True, retry_after=1.5, overload=True), AsyncOperatorError),
    (CircuitOpenError("text"), AsyncOperatorError),
    (StateError("text"), AsyncOperatorError),
    (StateMigrationError("text"), StateError),
]


@pytest.mark.parametrize(("error", "other"), ERRORS)
def test_errors_have_one_root_and_travel_whole(error, other):
    assert isinstance(error, AsyncOperatorError)
    assert isinstance(error, other)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "text"
    assert vars(copy) == vars(error)


def test_a_result_error_is_never_retried():
    assert ResultError.retryable is False


class BrokenError(Exception):
    """Neither its repr nor its text can be made."""

    def __init__(self, reason: BaseException):
        self.reason = reason

    def __repr__(self) -> str:
        raise self.reason

    __str__ = __repr__


class Bytes:
    def __repr__(self) -> str:
        return "\udc80"


def test_X5_a_message_can_always_be_made_and_written():
    assert describe([1, "a"]) == "[1, 'a']"
    assert describe(Bytes()) == "\\udc80"
    for reason in (RuntimeError("secret"), SystemExit(3), KeyboardInterrupt()):
        assert describe(BrokenError(reason)) == f"<BrokenError, whose repr raised {type(reason).__name__}>"
        assert describe_error(BrokenError(reason)) == "BrokenError"
    for long in ("x" * 1000, "\udc80" * 1000):
        assert len(describe(long)) == 200
        assert describe(long).endswith("...")
    assert describe_error(OSError("no file \udc80.txt")) == "OSError: no file \\udc80.txt"
    assert describe_error(ValueError("x" * 10_000)) == f"ValueError: {'x' * 1997}..."
    assert len(describe_error(ValueError("\udc80" * 10_000))) == 2000 + len("ValueError: ")
    assert [describe_error(error) for error in (ValueError("a b"), KeyError())] == ["ValueError: a b", "KeyError"]


# -- what a process lacks is found in an error, and in its causes


def caught(action: Callable[[], Any]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def behind_another(action: Callable[[], Any]) -> None:
    try:
        action()
    except Exception as error:
        raise ValueError("no client") from error


def variable() -> str:
    return os.environ["NO_SUCH_VARIABLE"]


def module() -> Any:
    return importlib.import_module("no_such_module.inside")


def test_a_variable_and_a_module_are_named() -> None:
    assert missing_here(caught(variable)) == Missing("environment variable", "NO_SUCH_VARIABLE")
    assert missing_here(caught(module)) == Missing("module", "no_such_module")
    assert str(missing_here(caught(variable))).startswith("the environment variable 'NO_SUCH_VARIABLE' is not set")
    assert str(missing_here(caught(module))).startswith("the module 'no_such_module' is not installed")


def test_also_behind_other_errors() -> None:
    assert missing_here(caught(lambda: behind_another(variable))) == Missing("environment variable", "NO_SUCH_VARIABLE")
    assert missing_here(caught(lambda: behind_another(lambda: behind_another(module)))) == Missing(
        "module", "no_such_module"
    )


@pytest.mark.parametrize("action", [lambda: dict[str, str]()["s3cret"], lambda: 1 / 0, lambda: int("one")])
def test_any_other_error_says_nothing_of_the_process(action: Callable[[], Any]) -> None:
    assert missing_here(caught(action)) is None
    assert missing_here(caught(lambda: behind_another(action))) is None


def test_an_error_that_was_never_raised_says_nothing() -> None:
    assert missing_here(KeyError("NO_SUCH_VARIABLE")) is None


def test_errors_that_led_to_each_other_are_looked_at_once() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert missing_here(first) is None
    assert failed_import(first) is None
    second.__cause__ = ImportError("no")
    assert failed_import(first) is second.__cause__


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("yaer", ["year", "seats"], "did you mean 'year'?"),
        ("YEAR", ["year", "Year", "years"], "did you mean 'year' or 'Year'?"),
        ("yearss", ["Year", "seats"], "did you mean 'Year'?"),
        ("zzz", ["year", "seats", "year"], "there are year, seats"),
        ("zzz", [], "there are none"),
    ],
)
def test_the_nearest_names_or_all(name: str, names: list[str], expected: str) -> None:
    assert did_you_mean(name, names) == expected


def test_a_long_list_is_cut() -> None:
    said = did_you_mean("zzz", (f"c{i}" for i in range(SHOWN + 10)))
    assert said.endswith(f"c{SHOWN - 1}, and 10 more")


def test_a_wrong_name_of_an_option_says_which_one_was_meant() -> None:
    async def fetch(number: int) -> int:
        return number

    with pytest.raises(ConfigurationError, match=r"'tiemout' is not an option of AsyncWaitOperator; did you mean 'tim"):
        AsyncWaitOperator(fetch, tiemout=1.0)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'cash' is not an option of Lookup; did you mean 'cache'\?"):
        Lookup(FakeEnricher({1: {"x": 1}}), cash=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"'metric' is not an option of enrich; did you mean 'metrics'\?"):
        enrich(None, None, on="id", metric=None)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigurationError, match=r"'chache' is not an option of plan; did you mean 'cache'\?"):
        plan(None, None, on="id", chache=None)  # type: ignore[arg-type]
    assert list(inspect.signature(AsyncWaitOperator).parameters)[:2] == ["function", "mode"]
