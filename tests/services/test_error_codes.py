"""Errors are counted and shown by what their source calls them: an HTTP status, a SQLSTATE, a number."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

import pytest

from asyncio_operator.errors import MOST_KINDS, EnricherError, ResultError, count_kind, keep_verdict
from asyncio_operator.lookup.key_batch import Answer, Failure
from asyncio_operator.services.causes import Cause, lookup_error
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.spark.worker.answers import STATUS, _status
from enrichers.http.errors import status_error


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
        status = _status(Failure(error, 0.1), 0)
        return status.get("http_status"), status.get("retryable")

    assert shown(status_error("x", 503, b"", Secrets(), wait=None, lasting=None)) == (503, True)
    assert shown(status_error("x", 404, b"", Secrets(), wait=None, lasting=None)) == (404, False)
    assert shown(EnricherError("x", code="23505", retryable=False)) == (None, False)
    assert shown(EnricherError("x")) == (None, None)
    assert shown(ValueError("x")) == (None, None)
    found = _status(Answer({"x": 1}, "call", 1, 0.1), 0)
    assert (found.get("http_status"), found.get("retryable")) == (None, None)
