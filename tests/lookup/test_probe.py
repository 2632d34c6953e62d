"""`Enricher.probe` and `try_lookup`: one lookup, opened and closed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from asyncio_operator import Enricher, EnricherError
from asyncio_operator.enricher import as_schema


class Counted(Enricher):
    def __init__(self) -> None:
        self.history: list[str] = []

    def schema(self) -> Any:
        return as_schema("a int")

    async def open(self) -> None:
        self.history.append("open")

    async def lookup(self, key: Any) -> Any:
        self.history.append("lookup")
        if key == "bad":
            raise EnricherError("refused", retryable=False)
        return {"a": 1} if key == "x" else None

    async def close(self) -> None:
        self.history.append("close")


async def test_a_probe_is_one_lookup_between_open_and_close() -> None:
    one = Counted()
    assert await one.probe("x") == {"a": 1}
    assert one.history == ["open", "lookup", "close"]


def test_a_lookup_is_tried_without_a_loop() -> None:
    one = Counted()
    assert [one.try_lookup(key) for key in ("x", "y", None)] == [{"a": 1}, None, None]
    pickle.dumps(one)


async def test_a_lookup_is_tried_inside_a_running_loop() -> None:
    one = Counted()
    assert one.try_lookup("x") == {"a": 1}
    with pytest.raises(EnricherError, match="refused"):
        one.try_lookup("bad")
    assert one.history == ["open", "lookup", "close"] * 2
