"""`asyncio_operator.services.causes`: what a library's error means becomes one of this package that tells no secret."""

from __future__ import annotations

import sqlite3
import traceback
from collections import Counter
from typing import Any

import numpy as np
import pytest

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.errors import MOST_KINDS, ResultError, count_kind, keep_verdict
from asyncio_operator.lookup.key_batch import Answer, Failure
from asyncio_operator.services.causes import Cause, caused, lookup_error
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.spark.worker.rows import FAILED, FOUND, STATUS, statuses_of
from enrichers.http.errors import status_error

SECRET = "hunter2hunter2"
SECRETS = Secrets([SECRET])


def raised(error: Exception) -> Exception:
    """With a frame whose variables hold a secret."""
    password = SECRET
    try:
        raise error
    except Exception as caught:
        assert password
        return caught


def test_an_error_says_what_its_cause_says() -> None:
    cause = Cause("the server has too many clients", retryable=True, overload=True, any_key=False)
    error = lookup_error(raised(OSError("full")), cause, "X(y)", SECRETS, key="key 1")
    assert str(error) == "X(y), key 1: the server has too many clients (full)"
    assert (error.retryable, error.overload, error.any_key, error.retry_after) == (True, True, False, None)
    assert cause.error("m", retry_after=2.0).retry_after == 2.0


def test_a_key_that_is_not_to_blame_is_not_named() -> None:
    error = lookup_error(raised(OSError()), Cause("it is gone", retryable=None), "X", SECRETS, key="key 1")
    assert str(error) == "X: it is gone (OSError)"
    assert (error.retryable, error.any_key) == (None, True)


def test_an_error_may_be_of_a_class_of_its_own_and_have_other_words() -> None:
    class LateError(EnricherError, TimeoutError):
        pass

    error = lookup_error(raised(OSError("no")), Cause("c", kind=LateError), "X", SECRETS, words=f"{SECRET}\nsaid")
    assert type(error) is LateError
    assert str(error) == "X: c (*** said)"


def test_own_words_are_cut() -> None:
    assert len(str(lookup_error(ValueError("x" * 10_000), Cause("c"), "X", SECRETS))) < 320


@pytest.mark.parametrize("deep", [False, True])
def test_X5_a_cause_that_would_tell_a_secret_is_left_out_and_any_other_kept(deep: bool) -> None:
    for words, kept in (("refused", True), (f"refused {SECRET}", False)):
        error = raised(OSError(words))
        if deep:
            error = raised(RuntimeError("lost"))
            error.__context__ = raised(OSError(words))
        problem = lookup_error(error, Cause("c"), "X", SECRETS)
        assert (problem.__cause__ is error) is kept
        assert SECRET not in everything_of(problem)


def test_X5_no_frame_of_a_library_stays_with_an_error() -> None:
    error = raised(RuntimeError("lost"))
    error.__cause__ = raised(OSError("refused"))
    assert SECRET in everything_of(error)
    problem = caused(ConfigurationError("c"), error, SECRETS)
    assert problem.__cause__ is error
    assert SECRET not in everything_of(problem)


def everything_of(error: BaseException) -> str:
    """What the most talkative of tools would log: tracebacks with the variables of every frame."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


# -- what an error is counted and shown by: an HTTP status, a SQLSTATE, a number


class ServerError(Exception):
    def __init__(self, *args: Any, **said: Any) -> None:
        super().__init__(*args)
        self.__dict__ |= said


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (status_error("x", 503, b"", Secrets(), wait=None, lasting=None), "EnricherError 503"),
        (status_error("x", 404, b"", Secrets(), wait=None, lasting=None), "EnricherError 404"),
        (lookup_error(ServerError("x", sqlstate="23505"), Cause("x"), "x", Secrets()), "EnricherError 23505"),
        (lookup_error(ServerError(1205, "x"), Cause("x"), "x", Secrets()), "EnricherError 1205"),
        (lookup_error(OSError(111, "refused"), Cause("x"), "x", Secrets()), "EnricherError"),
        (lookup_error(sqlite3.OperationalError("x"), Cause("x"), "x", Secrets()), "EnricherError"),
        (EnricherError("x"), "EnricherError"),
        (EnricherError("x", code="a text with spaces"), "EnricherError"),
        (EnricherError("x", code=7_000_000), "EnricherError"),
        (ResultError("x"), "ResultError"),
        (ExceptionGroup("g", [EnricherError("x", code=429), ValueError()]), "EnricherError 429"),
        (keep_verdict(EnricherError("made"), EnricherError("x", code=500)), "EnricherError 500"),
        (EnricherError.of(ExceptionGroup("g", [EnricherError("x", code=500)])), "EnricherError 500"),
    ],
    ids=str,
)
def test_V1_an_error_is_counted_by_its_type_and_code(error: Exception, kind: str) -> None:
    assert count_kind(kinds := Counter[str](), error) == kind
    assert kinds == {kind: 1}


def test_V1_kinds_of_errors_are_bounded() -> None:
    kinds = Counter[str]()
    for number in range(1000):
        count_kind(kinds, EnricherError("x", code=f"X{number}"))
    assert len(kinds) == MOST_KINDS + 1
    assert kinds["EnricherError"] == 1000 - MOST_KINDS


def test_X6_the_status_has_the_http_status_and_whether_a_call_may_succeed_later() -> None:
    assert [field.name for field in STATUS][-2:] == ["http_status", "retryable"]

    def shown(error: BaseException) -> tuple[Any, Any]:
        status = statuses_of([Failure(error, 0.1)], np.array([FAILED, FOUND])).to_pylist()[0]
        return status.get("http_status"), status.get("retryable")

    assert shown(status_error("x", 503, b"", Secrets(), wait=None, lasting=None)) == (503, True)
    assert shown(status_error("x", 404, b"", Secrets(), wait=None, lasting=None)) == (404, False)
    assert shown(EnricherError("x", code="23505", retryable=False)) == (None, False)
    assert shown(EnricherError("x")) == (None, None)
    assert shown(ValueError("x")) == (None, None)
    found = statuses_of([Answer({"x": 1}, "call", 1, 0.1)], np.array([FOUND, FOUND])).to_pylist()[0]
    assert (found.get("http_status"), found.get("retryable")) == (None, None)
