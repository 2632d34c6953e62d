"""The error of a lookup names its enricher and its key, each once."""

from __future__ import annotations

import pytest

from asyncio_operator import EnricherError
from asyncio_operator.lookup.answers import run_error
from enrichers import HttpEnricher, RedisEnricher

HTTP = HttpEnricher("http://h/rows/{key}", schema="name string")
REDIS = RedisEnricher("redis://h", schema="name string")


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("HttpEnricher('http://h/rows/{key}'), key 'a': status 500", "status 500"),
        ("HttpEnricher('http://h/rows/{key}'): Connection refused", "Connection refused"),
        ("HttpEnricher('http://h/rows/{key}'), 2 keys from 'b' to 'c': status 500",
         "HttpEnricher('http://h/rows/{key}'), 2 keys from 'b' to 'c': status 500"),
        ("no such key 'a': never", "no such key 'a': never"),
    ],
)  # fmt: skip
def test_X5_an_error_of_an_enricher_does_not_repeat_its_name_and_the_key(text: str, rest: str) -> None:
    error = EnricherError(text)
    raised = run_error(HTTP, "a", error, 2, "; on_error=...")
    assert str(raised) == f"{HTTP!r} failed for key 'a' in attempt 2: EnricherError: {rest}; on_error=..."
    assert raised.__cause__ is error


def test_X5_other_errors_are_said_as_they_are() -> None:
    assert str(run_error(REDIS, "a", ValueError("RedisEnricher(x): y"), 1, "")).endswith(
        "ValueError: RedisEnricher(x): y"
    )
    whole = f"{REDIS!r}, key 'a': timed out"
    assert str(run_error(REDIS, "a", EnricherError(whole), 1, "")).endswith("key 'a': EnricherError: timed out")
