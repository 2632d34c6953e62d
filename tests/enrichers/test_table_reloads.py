"""`TableEnricher` that loads its table again: on schedule, and what becomes of the old one when that fails."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import EnricherError, ResultError
from enrichers.table import TableEnricher
from tests.enrichers.helpers import opened
from tests.operator.helpers import virtual


class Loads:
    """A source that gives another table, or an error, every time."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.threads: list[threading.Thread] = []

    def __call__(self) -> Any:
        self.threads.append(threading.current_thread())
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


def numbers(*values: Any) -> Any:
    return [{"k": 1, "v": value} for value in values]


@virtual
async def test_it_is_loaded_again_on_schedule_in_a_thread() -> None:
    loads = Loads(numbers(10), numbers(20), numbers(30, 31))
    loads.results.append(ConnectionError())  # for the time after the last look
    async with opened(TableEnricher(loads, "k", reload_every=60, schema="k int, v int")) as enricher:
        found = []
        for _ in range(3):
            found.append(await enricher.lookup(1))
            await asyncio.sleep(61)
    assert found == [{"v": 10}, {"v": 20}, [{"v": 30}, {"v": 31}]]
    assert threading.main_thread() not in loads.threads


@virtual
async def test_a_reload_adds_changes_and_removes_keys() -> None:
    first = [{"k": 1, "v": 10}, {"k": 4, "v": 40}]
    second = [{"k": 2, "v": 20}, {"k": 4, "v": 44}]
    async with opened(TableEnricher(Loads(first, second), "k", reload_every=60, schema="k int, v int")) as enricher:
        assert [await enricher.lookup(key) for key in (1, 2, 4)] == [{"v": 10}, None, {"v": 40}]
        await asyncio.sleep(61)
        assert [await enricher.lookup(key) for key in (1, 2, 4)] == [None, {"v": 20}, {"v": 44}]


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (ConnectionError("no route"), "ConnectionError: no route"),
        (SystemExit("no file today"), "SystemExit: no file today"),
        (KeyboardInterrupt("told so"), "KeyboardInterrupt: told so"),
        ([{"k": "ten", "v": 1}], "'ten' \\(a text\\), which does not fit"),
        ([{"k": None, "v": 1}], "holds null, which does not fit"),
        (pa.table({"k": [1], "w": [1]}), "no column 'v'"),
        (pa.table({"k": [2**40], "v": [1]}), "2\\*\\*40|1099511627776"),
        (pa.table({"k": [1], "v": [[1]]}), "no cast from array<bigint> to int"),
        (numbers(*["ten"] * 1001), "'ten' \\(a text\\), which does not fit"),
        (7, "the source gave 7"),
    ],
)
@virtual
async def test_a_reload_that_fails_leaves_the_old_table_and_a_warning(
    failure: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    loads = Loads(numbers(10), failure, failure, numbers(40))
    caplog.set_level(logging.WARNING, "asyncio_operator")
    async with opened(
        TableEnricher(loads, "k", reload_every=60, schema=pa.schema([("k", "i4", False), ("v", "i4")]))
    ) as enricher:
        await asyncio.sleep(121)
        assert await enricher.lookup(1) == {"v": 10}
        await asyncio.sleep(60)
        assert await enricher.lookup(1) == {"v": 40}
    first, second = (record.getMessage() for record in caplog.records)
    assert "of 60 s ago stays" in first
    assert "of 120 s ago stays" in second
    assert re.search(says, first), first


@pytest.mark.parametrize("load", [numbers("ten"), pa.table({"k": [1], "v": [2**40]})])
@virtual
async def test_X12_a_value_of_a_reload_that_does_not_fit_is_an_error_of_its_key(load: Any) -> None:
    loads = Loads(numbers(10), load, numbers(40))
    async with opened(TableEnricher(loads, "k", reload_every=60, schema="k int, v int")) as enricher:
        await asyncio.sleep(61)
        with pytest.raises(ResultError, match=r"key 1: .*column 'v'"):
            await enricher.lookup(1)
        await asyncio.sleep(60)
        assert await enricher.lookup(1) == {"v": 40}


async def test_without_a_schema_a_reload_keeps_the_types_of_the_first() -> None:
    """A column of nulls has another type in Arrow, and values that do not fit are a failure."""
    loads = Loads(numbers(10), numbers(10), numbers(None))
    enricher = TableEnricher(loads, "k")
    assert enricher.schema() == pa.schema([("v", pa.int64())])
    for expected in (10, None):
        await enricher.open()
        assert await enricher.lookup(1) == {"v": expected}
        await enricher.close()
    assert enricher.schema() == pa.schema([("v", pa.int64())])


async def test_an_open_that_fails_says_why() -> None:
    enricher = TableEnricher(Loads(ConnectionError("no route")), "k", schema="k int, v int")
    with pytest.raises(EnricherError, match="could not be loaded: ConnectionError: no route") as raised:
        await enricher.open()
    assert isinstance(raised.value.__cause__, ConnectionError)
    await enricher.close()


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
@virtual
async def test_an_asynchronous_source_that_ends_itself_does_not_end_reloading(
    ending: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    loads = Loads(numbers(10), ending("no file today"), numbers(30))

    async def load() -> Any:
        await asyncio.sleep(1)
        return loads()

    async with opened(TableEnricher(load, "k", reload_every=60, schema="k int, v int")) as enricher:
        await asyncio.sleep(100)
        assert await enricher.lookup(1) == {"v": 10}
        await asyncio.sleep(60)
        assert await enricher.lookup(1) == {"v": 30}
    assert len(asyncio.all_tasks()) == 1
    assert f"{ending.__name__}: no file today" in caplog.text


@pytest.mark.parametrize(("swallowed", "pause"), [(1, 1e7), (3, 1e7), (1, 0)])
@virtual
async def test_a_source_that_swallows_its_cancellation_sets_no_table_after_close(swallowed: int, pause: float) -> None:
    """Nor does it take the place of the table of the next `open`, and it is not asked again."""
    asked = 0

    async def load() -> Any:
        nonlocal asked
        asked += 1
        if asked != 2:
            return numbers(asked)
        for _ in range(swallowed):
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(30)
        return numbers(2)

    async with opened(TableEnricher(load, "k", reload_every=60, schema="k int, v int")) as enricher:
        await asyncio.sleep(61)
    await asyncio.sleep(pause)
    with pytest.raises(EnricherError, match="not open"):
        await enricher.lookup(1)
    assert asked == 2
    assert len(asyncio.all_tasks()) == 1 or not pause
    await enricher.open()
    await asyncio.sleep(40)
    assert await enricher.lookup(1) == {"v": 3}
    await enricher.close()


@virtual
async def test_opened_twice_it_reloads_once_and_close_ends_that() -> None:
    async def later() -> Any:
        await asyncio.sleep(0.01)
        return numbers(1)

    enricher = TableEnricher(later, "k", reload_every=60)
    await enricher.open()
    await enricher.open()
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == 2
    await enricher.close()
    assert len(asyncio.all_tasks()) == 1
