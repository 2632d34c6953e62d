"""`HttpEnricher` before it is opened: arguments, equality, pickling, and what it never shows."""

from __future__ import annotations

import itertools
import ssl
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from asyncio_operator import ConfigurationError, Enricher, Hedge
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.lookup import Lookup
from enrichers.http import HttpEnricher
from tests.ids import shown

URL = "https://api.example/airports/{key}"


def make(url: Any = URL, **options: Any) -> HttpEnricher:
    return HttpEnricher(url, **({"schema": "city string"} | options))


def token() -> dict[str, str]:
    return {"Authorization": "Bearer s3cret-t0ken"}


BATCH = {"batch_url": "https://api.example/airports?codes={keys}"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"schema": pa.schema([("t", pa.duration("s"))])}, ["schema", "'t'", "duration"]),
        ({"schema": "m map<array<int>, int>"}, ["schema", "'m'", "keys in JSON are text"]),
        ({"key": "a b"}, ["key is 'a b'"]),
        ({"key": "1a"}, ["key is '1a'"]),
        ({"key": "keys"}, ["key is 'keys'"]),
        ({"key": ("key", "hour")}, ["{hour} is missing"]),
        ({"url": "https://api.example/airports"}, ["{key} is missing"]),
        (
            {"url": "https://api.example/{kye}"},
            ["{kye} is not a key field", "did you mean 'key'?", "double its braces"],
        ),
        (
            {"url": "https://api.example/{product}"},
            ["url: {product} is not a key field", "write {key}", "key='product'"],
        ),
        (
            {"url": "https://api.example/?p={product}"},
            ["url: a name in braces is not a key field", "write {key}", "by key="],
        ),
        ({"json_body": ["{product}"]}, ["json_body: {product} is not a key field", "key='product'"]),
        ({"url": "https://x.example/{code}/{day}", "key": "code"}, ["{day} is not a key field", "key=['code', 'day']"]),
        ({"url": "https://api.example/{{key}}"}, ["{key} is missing", "single braces"]),
        ({"url": "https://api.example/{key}/{keys}"}, ["{keys} needs a batch_url", "for one key write {key}"]),
        ({"params": {"codes": "{keys}"}}, ["params: 'codes'", "{keys} needs a batch_url"]),
        ({"url": "https://{key}.example/"}, ["host, port or credentials"]),
        ({"url": "ftp://api.example/{key}"}, ["does not begin with http"]),
        ({"url": "https:///{key}"}, ["it has no host"]),
        ({"url": "https://api.example:x/{key}"}, ["host or port"]),
        ({"url": "https://api.example/{key}#top"}, ["contains a #"]),
        ({"url": "https://api.example/{key} x"}, ["blanks or control"]),
        ({"url": "https://api.example/{key}\r\nX: y"}, ["blanks or control"]),
        ({"url": None}, ["url is of type NoneType; it must be a text", "environment variable", "http:// or https://"]),
        ({"url": b"https://x.example/{key}"}, ["url is of type bytes; it must be a text that begins with http://"]),
        ({"batch_url": 5}, ["batch_url is of type int; it must be a text"]),
        ({"method": "HEAD"}, ["method is 'HEAD'", '"POST"']),
        ({"method": 5}, ["method is 5"]),
        ({"headers": ["a"]}, ["headers is of type list"]),
        ({"headers": {"a b": "c"}}, ["'a b'", "not a valid header name"]),
        ({"headers": {"Content-Length": "5"}}, ["Content-Length", "the connection sets it itself"]),
        ({"headers": {"X": "1", "x": "2"}}, ["x: it occurs twice"]),
        ({"headers": {"X": 5}}, ["X: its value is of type int"]),
        ({"headers": {"X": "{keyy}"}}, ["headers: X", "a name in braces"]),
        ({"params": [1]}, ["params is of type list"]),
        ({"params": {"a": b"x"}}, ["params: 'a'", "type bytes"]),
        ({"params": {"a": None}}, ["params: 'a'", "NoneType"]),
        ({"params": {"a": "{nope}"}}, ["params: 'a'"]),
        ({"params": {5: "a"}}, ["params has the name 5"]),
        ({"json_body": {"a": object()}}, ["json_body", "type object"]),
        ({"json_body": {"a": float("nan")}}, ["json_body", "nan"]),
        ({"json_body": {1: 2}}, ["json_body has the name 1"]),
        ({"json_body": "\ud800"}, ["json_body", "surrogate"]),
        ({"extract": "a..b"}, ["extract is 'a..b'"]),
        ({"extract": 5}, ["extract is 5", "dotted path"]),
        ({"extract": lambda: None}, ["extract is", "one argument, the parsed answer"]),
        (BATCH | {"batch_extract": lambda a, b: a}, ["batch_extract is", "one argument, the parsed answer"]),
        ({"headers": lambda key: {}}, ["headers is", "<lambda>, which takes arguments", "without arguments"]),
        ({"ssl": lambda key: None}, ["ssl is", "which takes (key); it must take no arguments"]),
        ({"missing_statuses": ["404"]}, ["missing_statuses is ['404']"]),
        ({"missing_statuses": 99}, ["missing_statuses is 99"]),
        ({"max_batch": 5}, ["max_batch is 5", "no batch_url"]),
        ({"batch_json_body": {"k": "{keys}"}}, ["batch_url"]),
        ({"batch_url": "https://api.example/airports"}, ["{keys} is missing"]),
        ({"batch_url": "https://api.example/{key}"}, ["batch_url: {key} is of one key", "write {keys}"]),
        (
            {"batch_url": "https://api.example/{kyes}"},
            ["{kyes} is not a key field; the key fields are: keys (did you mean 'keys'?): write {keys}; to"],
        ),
        (BATCH | {"json_body": {"a": "{key}"}}, ["pass batch_json_body"]),
        (BATCH | {"batch_json_body": {"a": "{key}"}}, ["batch_json_body: {key} is of one key", "write {keys}"]),
        (
            BATCH | {"json_body": ["{keys}"], "batch_json_body": []},
            ["json_body: {keys} needs a batch_url, where it is replaced"],
        ),
        (BATCH | {"params": {"a": "{key}-{keys}"}}, ["for one or for several"]),
        (BATCH | {"url": "https://x.example/{a}/{b}", "key": ["a", "b"]}, ["2 parts", "batch_json_body"]),
        ({"idempotency_header": "Idempotency-Key"}, ["idempotency_header", "'GET'"]),
        ({"idempotency_header": ["X-I"], "method": "POST"}, ["idempotency_header", "['X-I']"]),
        ({"idempotency_header": "a b", "method": "POST"}, ["idempotency_header", "'a b'"]),
        ({"idempotency_header": "X-I", "method": "POST", "headers": {"x-i": "1"}}, ["headers already contain X-I"]),
        ({"redirects": "yes"}, ["redirects is 'yes'", '"same_host"']),
        ({"ssl": 5}, ["ssl is 5"]),
        ({"ssl": ssl.create_default_context()}, ["cannot be sent to a worker"]),
        ({"url": "https://bob:pw@api.example/{key}", "headers": {"authorization": "Bearer x"}}, ["pass one"]),
        ({"key": ["id", "note"], "optional": ["nte"]}, ["'nte' is not a key field; did you mean 'note'"]),
        ({"key": ["id"], "optional": ["id"]}, ["the only part"]),
        ({"key": ["id", "note"], "optional": 5}, ["optional is 5"]),
        ({"key": ["id", "note"], "optional": np.array([1, 2])}, ["optional is array"]),
        ({"empty_key": "null"}, ["""empty_key is 'null'; it must be "error" | "miss\""""]),
        ({"empty_key": True}, ["empty_key is True"]),
        ({"usage": "usage.total"}, ["usage is 'usage.total'; it must be a mapping"]),
        ({"usage": {"calls": "n"}}, ["usage has the unit 'calls', which is counted"]),
        ({"usage": {7: "n"}}, ["usage has the unit 7, which is not text"]),
        ({"usage": {"tokens": "a..b"}}, ["usage['tokens'] is 'a..b'; it must be a dotted path"]),
        ({"usage": {"tokens": None}}, ["usage['tokens'] is None"]),
    ],
    ids=shown,
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(
    options: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**options)
    assert [name for name in named if name not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize(
    ("options", "idempotent"),
    [
        ({}, True),
        ({"method": "POST"}, True),
        (BATCH | {"batch_url": "https://api.example/all", "batch_json_body": ["{keys}"]}, True),
        ({"idempotent": False}, False),
        ({"method": "POST", "idempotent": False}, False),
    ],
    ids=shown,
)
def test_H2_a_request_may_be_sent_twice_unless_the_user_says_otherwise(
    options: dict[str, Any], idempotent: bool
) -> None:
    made = make(**options)
    assert made.idempotent is idempotent
    if idempotent:
        Lookup(made, hedge=Hedge())
    else:
        with pytest.raises(ConfigurationError, match="has idempotent = False; hedge makes slow calls twice"):
            Lookup(made, hedge=Hedge())


def test_defaults_and_forms_of_arguments() -> None:
    assert isinstance(make(), Enricher)
    assert make().max_batch == 1
    assert make(**BATCH).max_batch == 100
    assert make(**BATCH, max_batch=7).max_batch == 7
    assert make().schema() == pa.schema([("city", pa.string())])
    assert make(connect_timeout=timedelta(seconds=2)) == make(connect_timeout=2)
    assert make(method="post") == make(method="POST")
    assert make(ssl=Path("/ca.pem")) == make(ssl="/ca.pem")
    assert make(key="größe", url="https://x.example/{größe}").key_schema().names == ["größe"]
    assert make(key="code", url="https://x.example/{code}") != make(key="code", url="https://x.example/{key}")


def test_it_is_equal_by_its_arguments_and_changes_with_none_of_them() -> None:
    body = {"a": ["{key}"]}
    enricher = make(json_body=body, method="POST", headers={"X": "y"}, params={"a": 1})
    same = make(json_body={"a": ["{key}"]}, method="POST", headers={"X": "y"}, params={"a": 1})
    assert enricher == same
    assert hash(enricher) == hash(same)
    body["a"].append("changed")
    assert enricher == same
    for other in (make(), make(json_body=body), make(headers={"X": "z"}), make(missing_statuses=(404, 410)), 5):
        assert enricher != other
    assert make() == make(empty_key="error", coerce=False, hints=True, usage={})
    options: list[dict[str, Any]] = [{}, {"empty_key": "miss"}, {"coerce": True}, {"hints": False}]
    options += [{"usage": {"tokens": "usage.total"}}, {"weigh": len}]
    different = [make(**option) for option in options]
    assert all(one != other for one, other in itertools.combinations(different, 2))
    assert len({*map(fingerprint, different)}) == len(options), "a worker shares clients between equal ones"


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"https://bob:{SECRET}@api.example/airports/{{key}}"},
        {"url": f"https://api.example/airports/{{key}}?token={SECRET}&units=metric"},
        {"url": f"https://api.example/airports/{{key}}?version=12&{SECRET}"},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"params": {"token": SECRET}},
        {"json_body": {"password": SECRET}, "method": "POST"},
        {"batch_url": f"https://bob:{SECRET}@api.example/airports?k={{keys}}&token={SECRET}"},
    ],
    ids=shown,
)
def test_X5_repr_shows_where_it_leads_and_no_secret(options: dict[str, Any]) -> None:
    shown = repr(make(**options))
    assert "https://api.example/airports/{key}" in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    "url",
    [
        "https://bob:hun@ter2@host/{key}",
        "https://bob:hun/ter2@host/{key}",
        "https://bob:12/hunter2@host/{key}",
        "https://bob:hun#ter2@host/{key}",
        "https://bob:{hunter2}@host/{key}",
        "https://bob@host:hunter2/{key}",
        "bob:hunter2@host/{key}",
        "https://[hunter2/{key}",
        "https://host/{key}?token={hunter2}",
    ],
)
def test_X5_a_url_that_can_be_misread_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(url)
    shown = "".join(traceback.format_exception(caught.value))
    assert [piece for piece in ("hunter2", "ter2", "hun@", "hun/", "hun#") if piece in shown] == []


@given(st.text(max_size=20), st.text(max_size=20))
def test_X5_no_url_breaks_the_check_or_is_shown(before: str, after: str) -> None:
    text = f"{before}{SECRET}{after}"
    for url in (text, f"https://{text}", f"https://u:{text}@host/{{key}}", f"https://host/{{key}}?a={text}"):
        try:
            shown = repr(make(url))
        except ConfigurationError as error:
            shown = str(error)
        if "@host" in url or "?a=" in url:
            assert SECRET not in shown


def test_X5_headers_that_cannot_be_sent_are_told_without_their_value() -> None:
    for value in (f"{SECRET}\r\nX-Admin: 1", f"{SECRET}\0", f"{SECRET} ", f"{SECRET}é"):
        with pytest.raises(ConfigurationError, match="X-Key") as caught:
            make(headers={"X-Key": value})
        assert SECRET not in str(caught.value)


def test_a_function_for_headers_is_shown_by_its_name_and_pickled_without_the_secret() -> None:
    enricher = make(headers=token)
    assert "token" in repr(enricher)
    assert b"s3cret" not in cloudpickle.dumps(enricher)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("timeout", "timeout= of enrich"),
        ("auth", "headers="),
        ("oauth2", r"headers=OAuth2\(...\)"),
        ("json", "json_body="),
        ("data", "json_body="),
        ("verify", "ssl="),
        ("retry", "an option of enrich"),
        ("jsn_body", "did you mean 'json_body'"),
    ],
)
def test_an_option_of_something_else_is_told_where_it_belongs(option: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{option}' is not an option of HttpEnricher; .*{says}") as caught:
        HttpEnricher("http://h/{key}", schema="a int", **dict[str, Any]({option: "hunter2"}))
    assert "hunter2" not in str(caught.value)
