"""L1: parts of a key that may be null are sent, and a null in them is a value: equal to itself, and to nothing else."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError
from asyncio_operator.arrow.key_arrays import distinct, distinct_keys
from asyncio_operator.arrow.key_identity import canonical_optional, storable
from asyncio_operator.spark.worker.rows import key_batch
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers.http import HttpEnricher
from tests.enrichers.helpers import opened, refused

PARTS = ["id", "name", "note"]


def ticket(service: FakeService, **options: Any) -> HttpEnricher:
    body = {"id": "{id}", "name": "{name}", "note": "{note}"}
    return HttpEnricher(
        service.url + "/tickets",
        **{"key": PARTS, "optional": ["note"], "method": "POST", "schema": "n long", "json_body": body, **options},
    )


async def test_L1_a_null_in_an_optional_part_is_sent_as_null() -> None:
    async with FakeService(handler=lambda _: {"n": 1}) as service:
        async with opened(ticket(service)) as enricher:
            assert await enricher.lookup((1, "a", None)) == {"n": 1}
            assert await enricher.lookup((1, None, "b")) is None
            assert await enricher.lookup((None, "a", None)) is None
        assert [request.body for request in service.requests] == [b'{"id":1,"name":"a","note":null}']


@pytest.mark.parametrize(
    ("key", "target", "header"),
    [
        ((1, "a", "b"), "/t/1/x/b?name=a&u=1&note=b", "n-b"),
        ((1, "a", None), "/t/1/x?name=a&u=1", None),
        ((1, None, "b"), "/t/1/x/b?u=1&note=b", "n-b"),
        ((1, None, None), "/t/1/x?u=1", None),
        ((1, "", ""), None, None),
    ],
)
async def test_L1_parameters_headers_and_segments_with_a_null_are_left_out(
    key: tuple[Any, ...], target: str | None, header: str | None
) -> None:
    def answer(request: FakeRequest) -> Any:
        seen.append((request.target, request.headers.get("x-note")))
        return {"n": 1}

    seen: list[tuple[str, str | None]] = []
    async with FakeService(handler=answer) as service:
        enricher = HttpEnricher(
            service.url + "/t/{id}/x/{note}?name={name}&u=1",
            key=PARTS,
            optional=("note", "name"),
            params={"note": "{note}"},
            headers={"X-Note": "n-{note}"},
            schema="n long",
        )
        async with opened(enricher):
            if target is None:
                await refused(enricher, [key])
                return
            assert await enricher.lookup(key) == {"n": 1}
        assert seen == [(target, header)]


async def test_L1_a_null_inside_of_a_text_is_an_error_of_its_key() -> None:
    async with FakeService(handler=lambda _: {"n": 1}) as service:
        enricher = ticket(service, json_body=["{id}", "{name}", "about {note}"])
        async with opened(enricher):
            assert "has no form as text" in str(await refused(enricher, [(1, "a", None)]))


@pytest.mark.parametrize(
    ("key", "optional", "says"),
    [(PARTS, ["nte"], "'nte' is not a key field; did you mean 'note'"), (["id"], ["id"], "the only part")],
)
def test_L1_an_unknown_optional_part_is_refused(key: list[str], optional: list[str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        HttpEnricher("http://h/{id}", key=key, optional=optional, schema="a int")


# -- what is the same key


VALUES = {
    "int": (pa.int64(), st.none() | st.integers(0, 2)),
    "text": (pa.string(), st.none() | st.sampled_from(["", "a", "None", "null"])),
    "float": (pa.float64(), st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.0])),
}


@given(
    st.lists(st.tuples(*(values for _, values in VALUES.values())), max_size=20),
    st.sets(st.integers(0, 2), max_size=3),
)
def test_L1_rows_with_a_null_in_an_optional_part_have_one_key(rows: list[tuple[Any, ...]], optional: set[int]) -> None:
    columns = [pa.array([row[i] for row in rows], kind) for i, (kind, _) in enumerate(VALUES.values())]
    keys, codes = distinct_keys(columns, sorted(optional))
    wanted = [canonical_optional(row, optional) for row in rows]
    assert [None if code < 0 else keys[code] for code in codes] == wanted
    assert len(keys) == len(set(keys)) == len(set(wanted) - {None})
    assert len(set(map(storable, keys))) == len(keys)
    assert distinct(columns, sorted(optional))[1].tolist() == codes.tolist()


def test_L1_a_value_that_python_cannot_hold_is_no_null_of_an_optional_part() -> None:
    days = pa.array([1, 2**30, None, 1], pa.int32()).cast(pa.date32())
    keys, codes = distinct_keys([pa.array([7, 7, 7, 7]), days], (1,))
    assert keys == [(7, datetime.date(1970, 1, 2)), (7, None)]
    assert codes.tolist() == [0, -1, 1, 0]
    batch = pa.record_batch({"a": pa.array([7, 7, 7, 7]), "b": days})
    assert list(key_batch(batch, (0, 1), optional=(1,)).keys) == keys
