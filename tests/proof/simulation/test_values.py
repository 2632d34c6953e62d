"""Law Y1: a simulation accuses no enricher for what Arrow does to the values of its rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from asyncio_operator import Enricher
from asyncio_operator.enricher import as_schema
from asyncio_operator.testing import Simulation
from asyncio_operator_proof.simulation.canonical import plain

EAST = dt.timezone(dt.timedelta(hours=5))


class Number(int):
    """A number of the user."""


class Text(str):
    """A text of the user."""


class AsTheyAre(Enricher):
    """Returns what the service has."""

    max_batch = 3

    def __init__(self, client: Any) -> None:
        self._client = client

    def schema(self) -> Any:
        return self._client.schema

    async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
        found: list[Any] = await self._client.ask(keys)
        return found


@pytest.mark.parametrize(
    "rows",
    [
        {1: {"v": [1, 2]}, 2: {"v": []}},
        {1: {"v": (1, 2)}},
        {1: {"v": Decimal("1.5")}, 2: {"v": Decimal("1.25")}},
        {1: {"v": dt.datetime(2020, 1, 1, tzinfo=EAST)}, 2: {"v": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}},
        {1: {"v": float("nan")}, 2: {"v": 1.0}},
        {1: {"v": [float("nan"), 1]}},
        {1: {"v": {"a": 1}}, 2: {"v": {"b": Decimal(2)}}},
        {1: {"v": bytearray(b"x")}},
        {1: {"v": Number(1)}, 2: {"v": 2}},
        {1: {"v": Text("x")}},
        {1: {"v": 1}, 2: {"v": 1.5}},
        {1: {"v": dt.date(2020, 1, 1), "w": dt.datetime(2020, 1, 1)}},
        {1: {"v": dt.time(1)}},
        {1: {"v": dt.timedelta(1)}},
        {1: {"v": None}},
        {1: {"_row": 1}},
    ],
    ids=str,
)
def test_Y1_values_that_arrow_changes_are_no_accusation(rows: dict[Any, Any]) -> None:
    wrong = {seed: found for seed in range(5) if (found := Simulation(seed, AsTheyAre, rows=rows).violations())}
    assert wrong == {}


def test_Y1_an_enricher_may_declare_other_types_than_the_service_has() -> None:
    class Declares(AsTheyAre):
        def schema(self) -> Any:
            return as_schema("v float, w decimal(10,4), x int")

    rows = {1: {"v": 0.1, "w": Decimal("1.5"), "x": 2}, 2: {"v": 1, "w": Decimal("0.25")}}
    assert {seed: found for seed in range(12) if (found := Simulation(seed, Declares, rows=rows).violations())} == {}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ({1: {"v": [1, 2]}}, [2, 1]),
        ({1: {"v": Decimal("1.50")}}, Decimal("1.51")),
        ({1: {"v": float("nan")}}, 0.0),
        ({1: {"v": {"a": 1}}}, {"a": None}),
    ],
    ids=str,
)
def test_Y1_a_wrong_value_of_any_type_is_seen(rows: dict[Any, Any], wrong: Any) -> None:
    class Changes(AsTheyAre):
        async def lookup_many(self, keys: Sequence[Any]) -> Sequence[Any]:
            return [row and {"v": wrong} for row in await super().lookup_many(keys)]

    found = [one for seed in range(12) for one in Simulation(seed, Changes, rows=rows).violations()]
    assert any("has other rows" in one for one in found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.5"), Decimal("1.500")),
        (dt.datetime(2020, 1, 1, 5, tzinfo=EAST), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (float("nan"), float("nan")),
        ((1, [Number(2)]), [1, (2,)]),
        (Text("x"), "x"),
    ],
)
def test_Y1_equal_values_have_one_form(one: Any, other: Any) -> None:
    assert plain(one) == plain(other)
    assert plain([one]) != plain(["other"])
