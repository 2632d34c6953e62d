"""What enrichers share besides secrets and causes: names as arguments, coroutines of callers inside a running loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from enrichers.names import names_of
from enrichers.threads import run_in_thread


def test_names_are_one_or_several() -> None:
    assert names_of("key", "a b") == ("a b",)
    assert names_of("key", ["a", "b"]) == ("a", "b")
    assert names_of("key", ("größe", "_x1"), words=True) == ("größe", "_x1")
    assert names_of("table", ["a", "a"], repeated=True) == ("a", "a")


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ("", {}),
        ([], {}),
        (5, {}),
        ({"a"}, {}),
        (["a", "a"], {}),
        (["a", 5], {}),
        (["a", ""], {}),
        ("a\0b", {}),
        ("a", {"reserved": "a"}),
        ("a b", {"words": True}),
        ("1a", {"words": True}),
        (["a", ""], {"repeated": True}),
    ],
)
def test_X4_other_names_are_refused(value: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"key is .*; it must be a name, or a list of different names"):
        names_of("key", value, **options)


async def test_a_coroutine_is_run_to_its_end_inside_of_a_running_loop() -> None:
    ended: list[bool] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def work() -> str:
        task = asyncio.ensure_future(linger())
        await asyncio.sleep(0)
        assert not task.done()
        return threading.current_thread().name

    assert run_in_thread(work, "test") == "asyncio-operator-test"
    assert ended == [True], "what is left behind is ended too"

    async def fail() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit, match="7"):
        run_in_thread(fail, "test")


async def test_a_thread_that_hangs_is_not_waited_for() -> None:
    released = threading.Event()

    async def work() -> int:
        asyncio.get_running_loop().run_in_executor(None, released.wait)
        return 7

    try:
        assert run_in_thread(work, "test") == 7
    finally:
        released.set()
