"""The words that everybody uses: records, watermarks, errors."""

from __future__ import annotations

import pickle
from typing import Any

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


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("secret")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("secret")


class Leaving:
    def __repr__(self) -> str:
        raise SystemExit(3)


class LeavingError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Bytes:
    def __repr__(self) -> str:
        return "\udc80"


def test_X5_a_message_can_always_be_made_and_written():
    assert describe(Leaving()) == "<Leaving, whose repr raised SystemExit>"
    assert describe_error(LeavingError()) == "LeavingError"
    assert describe(Bytes()) == "\\udc80"
    assert describe_error(OSError("no file \udc80.txt")) == "OSError: no file \\udc80.txt"
    assert len(describe("\udc80" * 1000)) == 200
    assert describe_error(ValueError("x" * 10_000)) == f"ValueError: {'x' * 1997}..."
    assert len(describe_error(ValueError("\udc80" * 10_000))) == 2000 + len("ValueError: ")


def test_describe_cuts_and_never_fails():
    assert describe([1, "a"]) == "[1, 'a']"
    assert len(describe("x" * 1000)) == 200
    assert describe("x" * 1000).endswith("...")
    assert describe(Mute()) == "<Mute, whose repr raised RuntimeError>"


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("a b"), "ValueError: a b"), (KeyError(), "KeyError"), (MuteError(), "MuteError")],
)
def test_an_error_is_described_by_type_and_text(error: Any, text: str):
    assert describe_error(error) == text
