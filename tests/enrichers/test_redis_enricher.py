"""`RedisEnricher` against a real Redis: answers, names, types, errors, secrets, a server that goes and comes back."""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import ConfigurationError, EnricherError, ResultError
from asyncio_operator.testing import check_enricher
from enrichers.redis import RedisEnricher
from enrichers.redis.key_names import Names
from enrichers.scalars import TEXT
from enrichers.typed import row_converter
from tests.enrichers import helpers
from tests.enrichers.helpers import failure
from tests.redis_service import RedisServer, needs_redis, redis_server

__all__ = ["redis_server"]

SCHEMA = "name string, height int"


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    redis_server.command("FLUSHALL")
    return redis_server


def opened(server: RedisServer, **options: Any) -> AbstractAsyncContextManager[RedisEnricher]:
    return helpers.opened(RedisEnricher(**{"url": server.url, "schema": SCHEMA} | options))


@pytest.mark.parametrize("max_batch", [1, 500])
def test_json_keeps_the_contract(server: RedisServer, max_batch: int) -> None:
    server.command("SET", "airport:JFK", '{"name": "Kennedy", "height": 4, "other": []}')
    server.command("SET", "airport:LGA", '[{"name": "a"}, {"name": "b", "height": 7}]')
    server.command("SET", "airport:EWR", "{}")
    server.command("SET", "airport:nothing", "null")
    server.command("SET", "airport:none", "[]")
    check_enricher(
        lambda: RedisEnricher(server.url, schema=SCHEMA, key_template="airport:{key}", max_batch=max_batch),
        known={
            "JFK": {"name": "Kennedy", "height": 4},
            "EWR": {"name": None, "height": None},
            "LGA": [{"name": "a", "height": None}, {"name": "b", "height": 7}],
        },
        missing=["XXX", "nothing", "none", "a b\r\nSET x y\r\n", "ü\0'\"", "\ud800", "x" * 100_000, None],
        secrets=[server.password],
    )
    assert server.command("EXISTS", "x") == b":0\r\n"


def test_hashes_and_plain_values_keep_the_contract(server: RedisServer) -> None:
    server.command("HSET", "JFK", "name", "Kennedy", "height", "4", b"\xff", b"\xff")
    server.command("HSET", "LGA", "height", "", "other", "x")
    server.command("SET", "7", "1.50")
    server.command("SET", "8", "-2")
    url = server.url
    check_enricher(
        lambda: RedisEnricher(lambda: url, schema=SCHEMA, kind="hash", max_batch=3),
        known={"JFK": {"name": "Kennedy", "height": 4}, "LGA": {"name": None, "height": None}},
        missing=["XXX", ""],
        secrets=[server.password],
    )
    check_enricher(
        lambda: RedisEnricher(url, schema="price decimal(10,2)", kind="string"),
        known={7: {"price": Decimal("1.50")}, 8: {"price": Decimal(-2)}},
        missing=[9, -7],
        secrets=[server.password],
    )


async def test_keys_are_written_as_the_template_says(server: RedisServer) -> None:
    key = uuid.UUID(int=5)
    for name in ("{JFK}/7", f"{{2024-02-29}}/{key}", "{\udcff}/0".encode("utf-8", "surrogateescape")):
        server.command("SET", name, "1")
    options = {"key": ["origin", "hour"], "key_template": "{{{origin}}}/{hour}", "kind": "string", "schema": "n int"}
    async with opened(server, **options) as enricher:
        keys = [("JFK", 7), (datetime.date(2024, 2, 29), key), (b"\xff", 0), ("JFK", "8"), ("JFK", None), (None, 7)]
        assert await enricher.lookup_many(keys) == [{"n": 1}, {"n": 1}, {"n": 1}, None, None, None]
        shapes: list[Any] = ["JFK", ("JFK",), ("JFK", 7, 8)]
        for wrong in shapes:
            assert "2 parts origin, hour" in str(await failure(enricher, wrong))
        for wrong in (True, 1.0, Decimal(1), datetime.datetime(2024, 2, 29), (1,)):
            assert (await failure(enricher, ("JFK", wrong))).retryable is False


NO_COLUMN = "none of the columns ['name', 'height']; its fields are ['error', 'code']"
NO_JSON = ("the value is not JSON", 'kind="string" takes a value as it is', 'kind="hash"')


@pytest.mark.parametrize(
    ("kind", "stored", "says"),
    [
        ("json", "{'a': 1}", ["Expecting property name"]),
        ("json", "", ["Expecting value"]),
        ("json", "7", ["7 (a number) is not a row"]),
        ("json", '[{"name": "a"}, 7]', ["7 (a number) is not a row"]),
        ("json", '{"height": "4"}', ["column 'height' holds '4' (a text), which does not fit int:"]),
        ("json", '{"height": 4.5}', ["column 'height' holds 4.5 (a number), which does not fit int:"]),
        ("json", '{"height": 2147483648}', ["2147483648"]),
        ("json", "[" * 100_000, ["recursion"]),
        ("json", '{"name": "\\ud800"}', ["surrogate pair"]),
        ("json", '{"error": "no", "code": 7}', [NO_COLUMN, "give columns in schema= the names of the fields"]),
        ("json", '[{"name": "a"}, {"error": "no", "code": 7}]', [NO_COLUMN]),
        # Of what is not JSON the beginning is shown, with the remedy.
        ("json", "New York,\t13," + "x" * 10_000, [*NO_JSON, "Expecting value: line 1", "with 'New York, 13,xxxx"]),
        ("json", b"\xff\xfe" + b"x" * 10_000, [*NO_JSON, "'utf-8' codec can't decode byte 0xff", "begins with "]),
        ("json", "s3cret:Pass/word " + "x" * 10_000, [*NO_JSON, "begins with '*** xxxx"]),
        ("json", "[" + "x" * 25 + " s3cret:Pass/word", [*NO_JSON, "begins with '[xxxx"]),
        ("hash", "4", ["the value is of another type of Redis (WRONGTYPE"]),
        ("hash", {"height": "four"}, ["the column 'height' holds b'four' (bytes), which does not fit int:"]),
        ("hash", {"error": "no", "code": "7"}, [NO_COLUMN]),
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_a_value_that_does_not_fit_is_an_error_of_its_key(
    server: RedisServer, kind: Any, stored: Any, says: list[str]
) -> None:
    for name, value in (("bad", stored), ("good", {"name": "a"} if kind == "hash" else '{"name": "a"}')):
        if isinstance(value, dict):
            server.command("HSET", name, *(text for pair in value.items() for text in pair))
        else:
            server.command("SET", name, value)
    async with opened(server, kind=kind) as enricher:
        error = await failure(enricher, "good", "bad")
        for text in ("key 'bad'", *says):
            assert text in str(error)
        assert isinstance(error, ResultError) is not any(text in str(error) for text in ("not JSON", "WRONGTYPE"))
        assert (error.retryable, error.any_key) == (False, False)
        assert await enricher.lookup("good") == {"name": "a", "height": None}
    everything = str(error) + repr(error.__cause__) + repr(error.__context__)
    assert "x" * 40 not in everything
    assert "s3c" not in everything


async def test_it_connects_again_after_a_restart() -> None:
    needs_redis()
    with RedisServer() as server:
        server.command("SET", "k", '{"name": "a"}')
        async with opened(server) as enricher:
            assert await enricher.lookup("k") == {"name": "a", "height": None}
            server.restart()
            server.command("SET", "k", '{"name": "b"}')
            assert await enricher.lookup("k") == {"name": "b", "height": None}
            server.stop()
            error = await failure(enricher, "k")
            assert (error.retryable, error.any_key) == (True, True)
            assert f"127.0.0.1:{server.port}" in str(error)
            server.start()
            assert await enricher.lookup("k") is None


async def test_a_server_that_hangs_is_left_at_the_deadline() -> None:
    needs_redis()
    with RedisServer() as server:
        async with opened(server, pool_size=1) as enricher:
            assert await enricher.lookup("k") is None
            server.command("CLIENT", "PAUSE", "600", "ALL")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await enricher.lookup("k")
            # Its connection was cut: the late answer is nobody's.
            assert await enricher.lookup_many(["k", "l"]) == [None, None]


async def test_cancelled_lookups_lose_no_place_in_the_pool(server: RedisServer) -> None:
    for number in range(50):
        server.command("SET", str(number), str(number))
    async with opened(server, pool_size=2, kind="string", schema="n int") as enricher:
        await helpers.cancelled_at_any_turn(enricher, lambda number: {"n": number})


@pytest.mark.parametrize("kind", ["json", "hash"])
async def test_no_more_commands_run_at_once_than_the_pool_has_connections(server: RedisServer, kind: Any) -> None:
    async with opened(server, pool_size=2, kind=kind) as enricher:
        before = server.command("INFO", "stats").split(b"total_connections_received:")[1].split()[0]
        await asyncio.gather(*map(enricher.lookup, range(200)))
        after = server.command("INFO", "stats").split(b"total_connections_received:")[1].split()[0]
        assert int(after) - int(before) - 1 <= 2


async def test_missing_permissions_are_not_retryable(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "reader", "on", ">other-s3cret", "~public:*", "+hgetall")
    async with opened(server, url=server.url_with("other-s3cret", "reader")) as enricher:
        error = await failure(enricher, "k")
        assert (error.retryable, error.any_key) == (False, True)
        assert "permissions do not suffice" in str(error)
    async with opened(server, url=server.url_with("other-s3cret", "reader"), kind="hash") as enricher:
        assert await enricher.lookup("public:k") is None
        error = await failure(enricher, "k")
        assert (error.retryable, error.any_key) == (False, False)


async def test_X14_a_database_that_is_not_there_is_no_keys_fault(server: RedisServer) -> None:
    async with opened(server, url=server.url.removesuffix("/0") + "/99") as enricher:
        error = await failure(enricher, "k", "l")
        assert (error.retryable, error.any_key) == (False, True)
        assert "there is no such database" in str(error)


async def test_a_crowded_server_says_so() -> None:
    needs_redis()
    with RedisServer(maxclients="1") as server:
        async with opened(server, pool_size=1) as enricher, opened(server) as another:
            await enricher.lookup("k")
            error = await failure(another, "k")
            assert (error.retryable, error.overload) == (True, True)


async def test_a_url_from_a_function_is_asked_for_every_connection() -> None:
    needs_redis()
    with RedisServer() as server:
        asked: list[str] = []

        def url() -> str:
            asked.append(server.url)
            return server.url

        async with opened(server, url=url) as enricher:
            await enricher.lookup("k")
            await enricher.lookup("k")
            connections = len(asked)
            server.password = "an0ther-s3cret"
            server.restart()
            assert await enricher.lookup("k") is None
            assert len(asked) > connections


async def test_tls() -> None:
    needs_redis()
    with RedisServer(tls=True) as server:
        async with opened(server, url=server.tls_url) as enricher:
            assert await enricher.lookup("k") is None
        async with opened(server, url=server.untrusted_url) as enricher:
            error = await failure(enricher, "k")
            assert "certificate of the server does not verify" in str(error)
            assert error.retryable is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"url": 7}, "of type int"),
        ({"url": "http://:s3cret@x"}, "does not begin"),
        ({"url": "redis://:s3cret@x#y"}, "holds a #"),
        ({"url": "redis://:s3c@ret@x"}, "an @ in a place"),
        ({"url": "redis://:s3cret/@x"}, "cannot be read|an @ in a place"),
        ({"url": "redis://x/s3cret"}, "number of a database"),
        ({"url": "redis://x:s3cret"}, "port cannot be read"),
        ({"url": "unix://"}, "no path"),
        ({"url": "redis://:s3cret@x/3", "cluster": True}, "database 0 only"),
        ({"url": "redis://:s3cret@x?db=3", "cluster": True}, "database 0 only"),
        ({"url": "unix://:s3cret@/socket", "cluster": True}, "no socket of a file"),
        ({"kind": "list"}, "kind is 'list'"),
        ({"kind": "string"}, "2 columns"),
        ({"key_template": "airport"}, "{key} is missing in it, .* one name: write {key}"),
        ({"key_template": "{}"}, "{} is not a key field; the key fields are: key: write {key}; braces"),
        ({"key_template": "{key"}, "it has a single brace: write {key}; .* as {{ and }}"),
        ({"key_template": "{key!r}"}, "as it is: write {key}, without !"),
        ({"key_template": "{key:>5}"}, "as it is: write {key}, without !"),
        (
            {"key_template": "airport:{faa}"},
            "{faa} is not a key field; the key fields are: key: write {key}, or name the parts in their order, "
            "key='faa'",
        ),
        (
            {"key_template": "{origin}:{hour}"},
            r"write {key}, or name the parts in their order, key=\['origin', 'hour'\]",
        ),
        (
            {"key_template": "{key}{other}"},
            r"{other} is not a key field; the key fields are: key: .* key=\['key', 'other'\]",
        ),
        ({"key_template": "{key.name}"}, "{key.name} is not a key field; the key fields are: key: write {key}; braces"),
        ({"key_template": 7}, "key_template is 7; it must be a text that holds {key}"),
        ({"key_template": "\ud800{key}"}, "half of a surrogate pair"),
        ({"key": ["a", "b"], "key_template": "{a}"}, "{b} is missing in it, .*: write {a} and {b}"),
        (
            {"key": ["a", "b"], "key_template": "{key}"},
            "{key} is not a key field; the key fields are: a, b: write {a} and {b}",
        ),
    ],
)
def test_wrong_arguments_are_configuration_errors(arguments: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as raised:
        RedisEnricher(**{"url": "redis://localhost", "schema": SCHEMA} | arguments)
    assert "s3cret" not in str(raised.value).replace(json.dumps(arguments.get("url")), "")


def test_repr_shows_where_it_leads_and_no_secret() -> None:
    enricher = RedisEnricher("rediss://me:s3cret@cache:6380/2?ssl_password=s3cret", schema=SCHEMA, kind="hash")
    assert repr(enricher) == "RedisEnricher('rediss://cache:6380/2', hash at '{key}')"


async def test_V4_its_spans_name_the_server_and_the_command(server: RedisServer) -> None:
    async with opened(server, key_template="airport:{key}") as enricher:
        found = enricher.call_attributes()
    assert (found["db.system.name"], found["db.operation.name"]) == ("redis", "MGET")
    assert set(found) >= {"server.address", "server.port"}
    assert "s3cret" not in str(found)


# -- names and plain values


PARTS = (
    st.text(max_size=5)
    | st.sampled_from(["\ud800", "{0}", "%s"])
    | st.integers()
    | st.binary(max_size=5)
    | st.dates()
    | st.uuids()
    | st.none()
    | st.sampled_from([True, 1.5, datetime.datetime(2024, 2, 29)])
)
TEMPLATES = [("{key}", ("key",)), ("a{{:{key}%s}}:{key}", ("key",)), ("{b}:{{{a}}}:{b}", ("a", "b"))]


def outcome(names: Any, *arguments: Any) -> Any:
    try:
        return names(*arguments)
    except EnricherError as error:
        return str(error)


@pytest.mark.parametrize(("template", "parts"), TEMPLATES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_many_keys_have_the_names_that_they_have_one_by_one(
    template: str, parts: tuple[str, ...], data: st.DataObject
) -> None:
    names = Names(template, parts)
    part = data.draw(st.sampled_from([PARTS, st.text(max_size=5) | st.integers()]))
    one = part if len(parts) == 1 else st.tuples(*[part] * len(parts)) | part | st.tuples(part)
    keys = data.draw(st.lists(one, max_size=5))
    assert outcome(names.of_many, keys) == outcome(lambda: list(map(names.of, keys)))


VALUES = (
    st.binary(max_size=5)
    | st.text("0123456789+-.eE :TZ_", max_size=12).map(str.encode)
    | st.one_of(st.integers(), st.floats(), st.decimals(), st.booleans(), st.datetimes(), st.dates(), st.times()).map(
        lambda value: str(value).encode()
    )
    | st.sampled_from([b"", b" ", b" 7\n", b"\xff", b"[1]", b'{"a": 1}', b"1e400", b"9" * 5000, b"0" * 400 + b"7"])
)

TYPES = [
    pa.string(), pa.binary(), pa.binary(3), pa.bool_(), pa.int16(), pa.int64(), pa.uint8(), pa.float32(), pa.float64(),
    pa.decimal128(10, 2), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us"),
    pa.list_(pa.int64()), pa.struct([("a", pa.int64())]),
]  # fmt: skip


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("data_type", TYPES, ids=str)
@settings(max_examples=50, deadline=None)
@given(value=VALUES)
def test_a_plain_value_is_converted_as_a_row_of_one_column(
    data_type: pa.DataType, nullable: bool, value: bytes
) -> None:
    schema = pa.schema([pa.field("n", data_type, nullable)])
    quick = RedisEnricher("redis://x", schema=schema, kind="string")._conversion()

    def converted(convert: Any, item: Any) -> str:
        try:
            return repr(convert(item))
        except (ValueError, ArithmeticError, RecursionError) as error:
            return f"{type(error).__name__}: {error}"

    assert converted(quick, value) == converted(row_converter(schema, TEXT), {"n": value})
