"""The words that everybody uses: records, watermarks, errors."""

from __future__ import annotations

import pickle

import pytest

from asyncio_operator import (
    AsyncOperatorError,
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
from asyncio_operator.errors import describe, describe_error


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
