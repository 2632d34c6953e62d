"""What `HttpEnricher` sends: templates, keys escaped by their place, nulls and empty keys, bodies, headers, batches."""

from __future__ import annotations

import asyncio
import datetime
import json
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncio_operator.arrow.key_arrays import distinct, distinct_held
from asyncio_operator.arrow.key_identity import canonical_optional, storable
from asyncio_operator.arrow.key_index import ArrowKeys
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from enrichers.http.keys import json_of, text_of
from enrichers.http.request_plan import Planner, Request
from tests.enrichers.helpers import asked as asked_for
from tests.enrichers.helpers import asked_in_batches, failure, opened, refused
from tests.keyed import key_batch

asked = partial(asked_for, schema="v string")


def plans(**options: Any) -> Any:
    defaults: dict[str, Any] = dict.fromkeys(
        ("params", "headers", "json_body", "batch_url", "batch_json_body", "idempotency_header")
    )
    given_ = {"url": "http://h/{key}", "parts": ("key",), "method": "GET", "max_url_length": 8000}
    return Planner(**{**defaults, **given_, **options}).plans()


def request(key: Any, **options: Any) -> Request:
    values = key if isinstance(key, tuple) else (key,)
    sent: Request = plans(**options).single.request(values)
    return sent


@given(st.text())
def test_any_text_is_read_back_as_it_was_or_refused(key: str) -> None:
    if key in ("", ".", ".."):
        with pytest.raises(ValueError, match="leads elsewhere"):
            request(key)
        assume(False)
    sent = request(key, url="http://h/a/{key}?q={key}", json_body=["{key}", "-{key}"])
    path, _, query = sent.url.removeprefix("http://h").partition("?")
    assert sent.url.isascii()
    assert sent.url.isprintable()
    assert [unquote(part) for part in path.split("/")] == ["", "a", key]
    assert parse_qs(query, keep_blank_values=True, strict_parsing=True) == {"q": [key]}
    assert json.loads(sent.body or b"") == [key, f"-{key}"]


@pytest.mark.parametrize("url", ["/rows/{key}", "/rows/{key}/x", "/rows/.{key}", "/rows/%2e{key}"])
async def test_a_key_that_would_make_another_path_cannot_be_sent(url: str) -> None:
    """Servers make the same of ``%2E%2E`` as of ``..``, and an empty segment is another resource."""
    async with FakeService() as service, asked(service, url) as enricher:
        for key in {"/rows/.{key}": [".", ""], "/rows/%2e{key}": ["."]}.get(url, ["", ".", ".."]):
            error = await failure(enricher, key)
            assert error.retryable is False
            assert error.any_key is False
            assert f"key {key!r}: it cannot be sent" in str(error)
        assert service.requests == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("\ud800", "surrogate"),
        (b"x", "type bytes"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Decimal("NaN"), "NaN"),
        (10**5000, "too many digits"),
        (datetime.timedelta(1), "type timedelta"),
        ("x" * 10_000, "max_url_length=8000"),
        ("é" * 1_400, "max_url_length=8000"),
    ],
    ids=lambda value: str(type(value)),
)
async def test_a_key_that_cannot_be_sent_is_an_error_of_that_key_alone(key: Any, why: str) -> None:
    """In a batch too, before a request: the caller splits it then, until the key stands alone."""
    async with FakeService({"ok": {"v": "1"}}) as service:
        async with asked(service, batch_url=service.url + "/rows?keys={keys}") as enricher:
            for keys in ([key], ["ok", key]):
                error = await failure(enricher, *keys)
                assert why in str(error)
                assert "cannot be sent" in str(error)
                assert len(str(error)) < 500
                assert (error.retryable, error.any_key) == (False, False)
            assert await enricher.lookup("ok") == {"v": "1"}
        assert len(service.requests) == 1


UUID_KEY = UUID("12345678-1234-5678-1234-567812345678")
BERLIN = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("key", "text", "as_json"),
    [
        ("x", "x", '"x"'),
        (5, "5", "5"),
        (-(2**70), str(-(2**70)), str(-(2**70))),
        (True, "true", "true"),
        (1.5, "1.5", "1.5"),
        (Decimal("12345678901234567890.10"), "12345678901234567890.10", "12345678901234567890.10"),
        (Decimal("1E+3"), "1000", "1000"),
        (Decimal("1E+500"), "1E+500", "1E+500"),
        (-1e-7, "-0.0000001", "-1e-07"),
        (datetime.date(2013, 1, 31), "2013-01-31", '"2013-01-31"'),
        (datetime.datetime(2013, 1, 31, 5, tzinfo=BERLIN), "2013-01-31T05:00:00+01:00", '"2013-01-31T05:00:00+01:00"'),
        (UUID_KEY, str(UUID_KEY), f'"{UUID_KEY}"'),
    ],
)
def test_keys_of_every_type_have_one_form_as_text_and_their_type_in_json(key: Any, text: str, as_json: str) -> None:
    sent = request(key, json_body={"k": "{key}", "t": "{key}.", "n": Decimal("0.1")}, headers={"X": "<{key}>"})
    assert unquote(sent.url) == f"http://h/{text}"
    assert sent.body == f'{{"k":{as_json},"t":"{text}.","n":0.1}}'.encode()
    assert sent.headers["X"] == f"<{text}>"


@pytest.mark.parametrize("key", ["a\r\nX-Admin: 1", "a\0b", "é", "a\tb", " a", "x" * 8001])
async def test_a_key_that_cannot_stand_in_a_header_is_refused(key: str) -> None:
    async with FakeService() as service, asked(service, "/x", headers={"X-Key": "{key}"}) as enricher:
        assert "header" in str(await failure(enricher, key))
        assert service.requests == []


def test_braces_that_name_nothing_are_themselves() -> None:
    graphql = '{ airport(code: $code) { name } } {"a": 1} {5} { key } {} }}'
    body = {"query": graphql, "variables": {"code": "{key}"}, "literal": "{{key}} {{other}}"}
    sent = request("x", json_body=body)
    assert json.loads(sent.body or b"") == {
        "query": graphql,
        "variables": {"code": "x"},
        "literal": "{key} {other}",
    }
    assert request("x", url="http://h/{{key}}/{key}").url == "http://h/%7Bkey%7D/x"


def test_a_composite_key_goes_where_its_parts_are_named() -> None:
    sent = request(("JFK/1", 5), parts=("origin", "hour"), url="http://h/{origin}/w?h={hour}", json_body=["{hour}"])
    assert sent.url == "http://h/JFK%2F1/w?h=5"
    assert sent.body == b"[5]"
    assert request("x", parts=("code",), url="http://h/{code}/{key}").url == "http://h/x/x"


async def test_L1_a_null_in_any_part_is_a_miss_and_asks_nothing() -> None:
    async with FakeService() as service, asked(service, "/{origin}/{hour}", key=("origin", "hour")) as enricher:
        assert await enricher.lookup(("JFK", None)) is None
        assert await enricher.lookup((None, None)) is None
        assert "a tuple of 2 parts, origin, hour" in str(await failure(enricher, "JFK"))
        assert "a tuple of 2 parts" in str(await failure(enricher, ("JFK",)))
        assert service.requests == []


def test_the_users_own_text_is_sent_as_it_is_and_made_sendable() -> None:
    url = "HTTP://Bücher.example:80/a%2Fb/ü/100%/{key}/;v=1?x=%20&y=ä/?&z={key}"
    sent = request("k", url=url, params={"a": [1, True, "b c"], "d&": Decimal("0.10")})
    assert sent.url == (
        "http://xn--bcher-kva.example/a%2Fb/%C3%BC/100%25/k/;v=1?x=%20&y=%C3%A4/?&z=k&a=1&a=true&a=b%20c&d%26=0.10"
    )


async def test_what_goes_with_every_request_and_what_the_user_may_replace_or_add() -> None:
    async with FakeService({"x": {"v": "1"}}) as service:
        async with asked(service, "/rows/{key}", method="PUT", json_body=1) as enricher:
            await enricher.lookup("x")
        async with asked(service, "/rows/{key}", headers={"accept": "a/b", "user-agent": "me"}) as enricher:
            await enricher.lookup("x")
        # Of an address in numbers no client keeps cookies.
        url = service.url.replace("://127.0.0.1", "://bob:p%40ss@localhost")
        async with opened(HttpEnricher(f"{url}/rows/{{key}}", schema="v string")) as enricher:
            service.answer_next(FakeAnswer({"v": "1"}, headers={"Set-Cookie": "id=7"}))
            await enricher.lookup("x")
            await enricher.lookup("x")
        first, second, third, fourth = service.requests
        assert third.headers["authorization"] == fourth.headers["authorization"] == "Basic Ym9iOnBAc3M="
        assert "cookie" not in fourth.headers, "cookies are neither kept nor sent"
        assert first.method == "PUT"
        assert (first.headers["accept"], first.headers["content-type"]) == ("application/json", "application/json")
        assert first.headers["user-agent"] == "asyncio-operator"
        assert (second.headers["accept"], second.headers["user-agent"]) == ("a/b", "me")
        assert "content-type" not in second.headers


async def test_connections_are_used_again_and_bounded_by_per_host_alone() -> None:
    rows = {str(i): {"v": str(i)} for i in range(150)}
    async with FakeService(rows) as service:
        async with asked(service, "/rows/{key}") as enricher:
            for i in range(20):
                await enricher.lookup(str(i))
            await enricher.lookup("missing")
            assert service.connections == 1
        everybody = asyncio.Event()

        async def wait(_: FakeRequest) -> Any:
            if service.most_at_once == 150:
                everybody.set()
            await everybody.wait()
            return {"v": "1"}

        service._handler = wait
        async with asked(service, "/wait/{key}") as enricher:
            await asyncio.gather(*map(enricher.lookup, range(150)))
        assert service.most_at_once == 150, "aiohttp alone would have stopped at 100"
    async with FakeService(rows, latency=0.001) as service, asked(service, "/rows/{key}", per_host=3) as enricher:
        await asyncio.gather(*map(enricher.lookup, range(30)))
        assert (service.connections, service.most_at_once) == (3, 3)


async def test_an_idempotency_key_is_that_of_the_request() -> None:
    options = {"method": "POST", "json_body": {"k": "{key}"}, "idempotency_header": "Idempotency-Key"}
    async with FakeService(handler=lambda _: {"v": "1"}) as service:
        for _ in range(2):
            async with asked(service, "/x", **options) as enricher:
                for key in ("a", "b", 5, "5"):
                    await enricher.lookup(key)
        keys = [sent.headers["idempotency-key"] for sent in service.requests]
        assert keys[:4] == keys[4:], "a retry, in another worker too, has the same"
        assert len({*keys}) == 4
        assert all(str(UUID(key)) == key for key in keys)


# -- batches


ROWS = {"JFK": {"v": "1"}, "a/b": {"v": "2"}, "é": {"v": "3"}, "a,b": {"v": "4"}, 7: {"v": "5"}, True: {"v": "6"}}


@pytest.mark.parametrize("batch", ["map", "list"])
async def test_several_keys_are_one_request_aligned_with_the_keys(batch: str) -> None:
    async with FakeService(ROWS, batch=batch) as service:
        url = service.url + "/rows?keys={keys}"
        async with asked(service, "/rows/{key}", batch_url=url) as enricher:
            found = await enricher.lookup_many(["JFK", None, "LAX", "é", "a/b", 7, True, "a,b"])
            assert found == [{"v": "1"}, None, None, {"v": "3"}, {"v": "2"}, {"v": "5"}, {"v": "6"}, {"v": "4"}]
            assert service.paths() == ["/rows?keys=JFK,LAX,%C3%A9,a%2Fb,7,true,a%2Cb"]
            assert await enricher.lookup_many([None, "JFK"]) == [None, {"v": "1"}]
            assert service.paths()[1:] == ["/rows/JFK"], "one key needs no list"
            assert await enricher.lookup_many([None]) == [None]
            assert await enricher.lookup_many([]) == []
            assert len(service.requests) == 2


async def test_several_keys_in_a_body_keep_their_types() -> None:
    async with FakeService(ROWS, batch="list") as service:
        async with asked(
            service, "/rows/{key}", batch_url=f"{service.url}/rows", batch_json_body="{keys}", params={"u": 1}
        ) as enricher:
            assert await enricher.lookup_many(["JFK", 7, True]) == [{"v": "1"}, {"v": "5"}, {"v": "6"}]
        sent = service.requests[0]
        assert (sent.method, sent.target, sent.body) == ("POST", "/rows?u=1", b'["JFK",7,true]')


async def test_several_composite_keys_are_a_list_of_objects() -> None:
    def weather(incoming: FakeRequest) -> Any:
        return [{"v": f"{key['origin']}@{key['hour']}"} for key in incoming.json()["of"]]

    async with (
        FakeService(handler=weather) as service,
        asked(
            service,
            "/{origin}/{hour}",
            key=("origin", "hour"),
            batch_url=f"{service.url}/several",
            batch_json_body={"of": "{keys}"},
        ) as enricher,
    ):
        assert await enricher.lookup_many([("JFK", 5), ("LGA", None), ("EWR", 6)]) == [
            {"v": "JFK@5"},
            None,
            {"v": "EWR@6"},
        ]


def test_parameters_and_headers_go_where_their_names_say() -> None:
    made = plans(
        url="http://h/one",
        batch_url="http://h/many",
        params={"code": "{key}", "codes": "{keys}", "units": "metric"},
        headers={"X-One": "{key}", "X-Many": "{keys}", "X-Both": "b"},
    )
    one, many = made.single.request(("a",)), made.batch.request((["a", "b"],))
    assert one.url == "http://h/one?code=a&units=metric"
    assert one.headers == {"X-One": "a", "X-Both": "b"}
    assert many.url == "http://h/many?codes=a,b&units=metric"
    assert many.headers == {"X-Many": "a,b", "X-Both": "b"}


async def test_a_key_that_its_path_does_not_take_is_asked_for_in_a_list_of_its_own() -> None:
    """So that it does not depend on the company of a key whether it is found."""
    async with FakeService({"..": {"v": "1"}, "JFK": {"v": "2"}}) as service:
        async with asked(service, "/rows/{key}", batch_url=service.url + "/rows?keys={keys}") as enricher:
            assert await enricher.lookup_many(["..", "JFK"]) == [{"v": "1"}, {"v": "2"}]
            assert await enricher.lookup_many([".."]) == [{"v": "1"}]
        assert service.paths() == ["/rows?keys=..,JFK", "/rows?keys=.."]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_as_text_has_no_exponent_and_is_read_back_as_the_same(value: float) -> None:
    text = text_of(value)
    assert "e" not in text.lower()
    assert "." in text
    assert repr(float(text)) == repr(value)
    assert repr(json.loads(json_of(value))) == repr(value)


# -- empty keys


def found(sent: FakeRequest) -> dict[str, int]:
    """A row that holds the length of the key."""
    return {"a": len(sent.query["q"][0]) if sent.query else len(sent.path.rpartition("/")[2])}


async def test_an_empty_key_is_an_error_where_it_has_no_place_and_the_error_names_the_choice() -> None:
    async with FakeService(handler=found) as service:
        async with asked_for(service, "/find/{key}") as enricher:
            assert 'empty_key="miss" makes an empty key a miss' in str(await failure(enricher, ""))
            assert "empty_key" not in str(await failure(enricher, ".."))
        assert service.requests == []
        async with asked_for(service, "/find?q={key}") as enricher:
            assert await enricher.lookup("") == {"a": 0}, "elsewhere it is sent"


@pytest.mark.parametrize("url", ["/find/{p}/{q}", "/find/{p}?q={q}"])
async def test_L1_an_empty_key_or_part_is_a_miss_by_choice_and_is_not_asked_for(url: str) -> None:
    async with (
        FakeService(handler=lambda _: {"a": 1}) as service,
        asked_for(service, url, key=["p", "q"], empty_key="miss") as enricher,
    ):
        assert await enricher.lookup(("x", "y")) == {"a": 1}
        for key in (("", "y"), ("x", ""), ("", ""), (None, "y")):
            assert await enricher.lookup(key) is None
    assert len(service.requests) == 1
    rows = {"x": {"a": 1}, "y": {"a": 2}}
    async with FakeService(rows) as service, asked_in_batches(service, empty_key="miss") as enricher:
        assert await enricher.lookup_many(["", "x", "", "y", None]) == [None, {"a": 1}, None, {"a": 2}, None]
        assert await enricher.lookup_many(["", ""]) == [None, None]
    assert [request.query for request in service.requests] == [{"keys": ["x,y"]}]


def in_order(request: FakeRequest) -> Any:
    """What services that split a list at its commas answer: they leave empty parts out."""
    texts = request.query.get("keys") or [request.headers.get("x-keys", "")]
    if request.path != "/many":
        return found(request)
    return [{"a": len(text)} for text in texts[0].split(",") if text]


@pytest.mark.parametrize(
    "options", [{"batch_url": "/many?keys={keys}"}, {"batch_url": "/many", "headers": {"X-Keys": "{keys}"}}]
)
async def test_B4_an_empty_key_in_a_list_with_commas_is_the_error_of_that_key_alone(options: dict[str, Any]) -> None:
    async with FakeService(handler=in_order) as service:
        options["batch_url"] = service.url + options["batch_url"]
        enricher = HttpEnricher(service.url + "/find/{key}", schema="a int", **options)
        async with Lookup(enricher) as lookup:
            lookups = [lookup.get(key) for key in ("tea", "", "coffee")]
            tea, empty, coffee = await asyncio.gather(*lookups, return_exceptions=True)
    assert (tea, coffee) == ({"a": 3}, {"a": 6})
    assert "key ''" in str(empty)
    assert 'empty_key="miss"' in str(empty)


async def test_an_empty_key_has_its_place_in_a_json_list() -> None:
    def rows(request: FakeRequest) -> list[dict[str, int]]:
        return [{"a": len(key)} for key in request.json()]

    async with FakeService(handler=rows) as service:
        options = {"batch_url": service.url + "/many", "batch_json_body": "{keys}"}
        async with asked_for(service, "/find?q={key}", **options) as enricher:
            assert await enricher.lookup_many(["tea", ""]) == [{"a": 3}, {"a": 0}]


# -- parts that may be null


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
    array, codes = distinct_held(columns, sorted(optional))
    keys = [*ArrowKeys(array)]
    wanted = [canonical_optional(row, optional) for row in rows]
    assert [None if code < 0 else keys[code] for code in codes] == wanted
    assert len(keys) == len(set(keys)) == len(set(wanted) - {None})
    assert len(set(map(storable, keys))) == len(keys)
    assert distinct(columns, sorted(optional))[1].tolist() == codes.tolist()


def test_L1_a_value_that_python_cannot_hold_is_no_null_of_an_optional_part() -> None:
    days = pa.array([1, 2**30, None, 1], pa.int32()).cast(pa.date32())
    array, codes = distinct_held([pa.array([7, 7, 7, 7]), days], (1,))
    assert (keys := [*ArrowKeys(array)]) == [(7, datetime.date(1970, 1, 2)), (7, None)]
    assert codes.tolist() == [0, -1, 1, 0]
    batch = pa.record_batch({"a": pa.array([7, 7, 7, 7]), "b": days})
    assert list(key_batch(batch, (0, 1), optional=(1,)).keys) == keys
