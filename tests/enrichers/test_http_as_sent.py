"""X12: what a service sends is used as it came, or refused with words: targets of redirects, text, content encodings.

The service is a socket, because a library for servers would correct what it is given.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import EnricherError
from enrichers.http import HttpEnricher, OAuth2
from enrichers.http.bodies import BodyError, decoded
from tests.enrichers.helpers import failure, hanging_up_after, opened, refused

ROW = b'{"v":"x"}'


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """An answer, with headers as bytes of latin-1."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


class Raw:
    """What was asked for, as bytes of latin-1."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.targets: list[str] = []
        self.heads: list[str] = []


@asynccontextmanager
async def served(serve: Callable[[str], bytes]) -> AsyncIterator[Raw]:
    """A service that answers a target with bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = [line for line in head.lower().split("\r\n") if line.startswith("content-length:")]
                if length:
                    await reader.readexactly(int(length[0].partition(":")[2]))
                raw.heads.append(head)
                raw.targets.append(head.split(" ")[1])
                writer.write(serve(raw.targets[-1]))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        raw = Raw(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield raw


async def row_of(sent: bytes, **options: Any) -> Any:
    """The row that an enricher makes of an answer."""
    async with served(lambda _: sent) as service:
        url = service.url + "/{key}"
        async with opened(HttpEnricher(url, **({"schema": "v string"} | options))) as enricher:
            return await enricher.lookup("k")


async def error_of(sent: bytes, **options: Any) -> EnricherError:
    with pytest.raises(EnricherError) as caught:
        await row_of(sent, **options)
    return caught.value


@pytest.mark.parametrize(
    ("url", "options", "asked"),
    [
        ("/{key}?", {}, "/k?"),
        ("/{key}?", {"params": {"a": 1}}, "/k?a=1"),
        ("/{key}", {}, "/k"),
        ("/{key}?a=?", {}, "/k?a=?"),
        ("/{key}??", {}, "/k??"),
        ("/?", {"params": {"k": "{key}"}}, "/?k=k"),
        ("?", {"headers": {"X-Key": "{key}"}}, "/?"),
        ("?&", {"headers": {"X-Key": "{key}"}}, "/?&"),
        ("//{key}/?", {}, "//k/?"),
        ("/a%2fb%41/{key}?s=%3a%7E+%20&t=%e9", {}, "/a%2fb%41/k?s=%3a%7E+%20&t=%e9"),
    ],
)
async def test_X12_a_url_is_sent_as_it_is_written(url: str, options: dict[str, Any], asked: str) -> None:
    async with served(lambda _: answer(ROW)) as service:
        async with opened(HttpEnricher(service.url + url, schema="v string", **options)) as enricher:
            assert await enricher.lookup("k") == {"v": "x"}
        assert service.targets == [asked]


# -- redirects


AS_WRITTEN = [
    *("/a%2Fb?x=%2F", "/a%2fb?x=%2f", "/a?x=%3A%40%2C%3B%3D%26", "/a?x=%2B+%20", "/%41?x=%41%7E%2D%5f", "/a?x=%e9%FF"),
    *("/a?x=%25&y=%2525", "/a?x=100%&y=%zz", "/a|b'\"{}^`?q=|'\"{}^`", "/a?x=1&x=%31&", "/a;b=%3B//c/", "/%2e%2e/a"),
    *("/a?sig=Zm9v%2Fbar%3D%3D&exp=1?/", "/a?", "/?", "/a%2fb?"),
]

ESCAPED = {
    "/items/caf\xe9": "/items/caf%E9",
    "/items/\xe9t\xe9": "/items/%E9t%E9",
    "/search?q=M\xfcnchen&n=1": "/search?q=M%FCnchen&n=1",
    "/items/\x80\xff": "/items/%80%FF",
    "/items/caf\xc3\xa9": "/items/caf%C3%A9",
    "/a b?c d": "/a%20b?c%20d",
}
"""Bytes that no request can hold are escaped one by one."""

RESOLVED = {
    "/a//b/./c/../d": "/a//b/d",
    "/../a/..": "/",
    "../s?%41": "/s?%41",
    "/s/./%2E/#here": "/s/%2E/",
    "../s?#here": "/s?",
    "../s#here": "/s",
}
"""As the standard says."""


@pytest.mark.parametrize(
    ("location", "asked"), [*((one, one) for one in AS_WRITTEN), *ESCAPED.items(), *RESOLVED.items()]
)
async def test_X12_the_target_of_a_redirect_is_asked_for_as_it_is_written(location: str, asked: str) -> None:
    def serve(target: str) -> bytes:
        return answer(b"", "302 Found", f"Location: {location}") if target.startswith("/r/") else answer(ROW)

    async with served(serve) as service:
        async with opened(HttpEnricher(service.url + "/r/{key}?z=1", schema="v string")) as enricher:
            assert await enricher.lookup("k") == {"v": "x"}
        assert service.targets[-1] == asked


@pytest.mark.parametrize(
    "location",
    [
        "http://h\\@x/",
        "http://a@b@c/",
        "/a\x7fb",
        "http:///a",
        "http://\xe9/",
        "ftp://h/x",
        "http://[",
        "x:y",
        "http://:x",
    ],
)
async def test_X12_a_target_that_is_no_url_or_can_be_read_in_two_ways_is_refused(location: str) -> None:
    error = await error_of(answer(b"", "302 Found", f"Location: {location}"), redirects="any")
    assert "redirected to something that is not a URL" in str(error)


# -- character sets


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        *(("iso-8859-1", "Süß"), ("ISO-8859-1", "Ã©"), ("windows-1252", "Preis: 5 €"), ("windows-1251", "\u0420°")),
        *(("gbk", "一些"), ("gb18030", "上海"), ("euc-kr", "서울"), ("big5", "台北"), ("Shift_JIS", "東京")),
        *(("koi8-r", "Привет"), ("us-ascii", "abc"), ("utf8", "é")),
        *((name, "é漢😀") for name in ("UTF-8", "utf-16", "utf-16le", "utf-16be", "utf-32")),
    ],
)
@pytest.mark.parametrize("written", ["application/json; charset={}", 'application/json;a=b; CharSet="{}" ;c=d'])
async def test_X12_text_is_decoded_as_its_answer_declares(charset: str, text: str, written: str) -> None:
    body = json.dumps({"v": text}, ensure_ascii=False).encode(charset)
    assert await row_of(answer(body, "200 OK", f"Content-Type: {written.format(charset)}")) == {"v": text}


@settings(max_examples=30)
@given(st.text(), st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]))
def test_X12_a_byte_order_mark_declares(text: str, name: str) -> None:
    body = f"{{{text}".encode(name, "replace")
    wanted = body.decode(name)
    assert decoded("\ufeff".encode(name) + body, "application/json") == wanted
    assert decoded("\ufeff".encode(name) + body, f"a/b; charset={name[:6].strip('-')}") == wanted
    with pytest.raises(BodyError, match="but it begins with the byte order mark"):
        decoded("\ufeff".encode(name) + body, "a/b; charset=gbk")


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ('{"v":"Süß"}'.encode("latin-1"), "application/json", "it is not in UTF-8, its character set by default"),
        ('{"v":"é"}'.encode(), "application/json; charset=us-ascii", "it is not in ASCII, its character set"),
        ('{"v":"一"}'.encode("gbk")[:-3] + b'"}', "a/b; charset=gbk", "it is not in GBK, its character set"),
        (b'{"v":"\x81"}', "application/json; charset=windows-1252", "it is not in CP1252"),
        (b'{"v":"a"}', "application/json; charset=klingon", "its charset 'klingon' is not known"),
        (b'{"v":"a"}', "application/json; charset=unicode_escape", "its charset 'unicode_escape' is not known"),
        (b'{"v":"a"}', "application/json; charset=base64", "its charset 'base64' is not known"),
        ('{"v":"a"}'.encode("utf-16-le"), "application/json; charset=utf-16", "it has no byte order mark"),
        (b'{"v":"a"}', "application/json; charset=utf-8; charset=gbk", "names 2 character sets"),
        ('\ufeff{"v":"é"}'.encode(), "a/b; charset=iso-8859-1", "it begins with the byte order mark of utf-8"),
        (b'{"v":"\xed\xa0\x80"}', "application/json", "it is not in UTF-8"),
    ],
)
async def test_X12_text_that_is_not_in_its_character_set_is_an_error_of_its_key(
    body: bytes, kind: str, says: str
) -> None:
    error = await error_of(answer(body, "200 OK", f"Content-Type: {kind}"))
    assert says in str(error)
    assert "key 'k'" in str(error)
    assert error.retryable is False


async def test_X12_a_token_is_decoded_as_its_answer_declares() -> None:
    token = json.dumps({"access_token": "T"}).encode("utf-16")

    def serve(target: str) -> bytes:
        utf_16 = "Content-Type: application/json; charset=utf-16"
        return answer(token, "200 OK", utf_16) if target == "/token" else answer(ROW)

    async with served(serve) as service:
        headers = OAuth2(service.url + "/token", "me", "hunter2hunter2")
        async with opened(HttpEnricher(service.url + "/r/{key}", schema="v string", headers=headers)) as enricher:
            assert await enricher.lookup("k") == {"v": "x"}
        assert "Authorization: Bearer T" in service.heads[-1]


# -- content encodings

RAW_DEFLATE = zlib.compress(ROW)[2:-4]


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", gzip.compress(ROW, mtime=0)),
        ("GZIP", gzip.compress(ROW, mtime=0)),
        ("x-gzip", gzip.compress(ROW, mtime=0)),
        ("gzip", gzip.compress(ROW[:4], mtime=0) + gzip.compress(ROW[4:], mtime=0)),
        ("deflate", zlib.compress(ROW)),
        ("deflate", RAW_DEFLATE),
        ("br", pa.compress(ROW, codec="brotli", asbytes=True)),
        ("zstd", pa.compress(ROW, codec="zstd", asbytes=True)),
        ("identity", ROW),
        ("", ROW),
        ("gzip, gzip", gzip.compress(gzip.compress(ROW, mtime=0), mtime=0)),
        ("gzip,identity, br", pa.compress(gzip.compress(ROW, mtime=0), codec="brotli", asbytes=True)),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_X12_content_encodings_are_undone_in_their_order(coding: str, body: bytes, chunked: bool) -> None:
    sent = answer(body, "200 OK", f"Content-Encoding: {coding}")
    if chunked:
        parts = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: {coding}\r\n\r\n"
        sent = head.encode() + parts + b"0\r\n\r\n"
    assert await row_of(sent) == {"v": "x"}


@pytest.mark.parametrize(
    ("coding", "body", "retryable"),
    [
        ("gzip", ROW, True),
        ("gzip", gzip.compress(ROW, mtime=0)[:-9], True),
        ("gzip", gzip.compress(ROW, mtime=0)[:-3], True),
        ("gzip", gzip.compress(ROW, mtime=0)[:-8] + bytes(8), True),
        ("gzip", gzip.compress(ROW, mtime=0) + b"more", True),
        ("deflate", zlib.compress(ROW)[:-3], True),
        ("deflate", zlib.compress(ROW) + b"more", True),
        ("deflate", RAW_DEFLATE[:-1], True),
        ("br", pa.compress(ROW, codec="brotli", asbytes=True)[:-2], True),
        ("zstd", ROW, True),
        ("compress", ROW, False),
        ("aes128gcm", ROW, False),
        ("gzip, gzip, gzip, gzip", ROW, False),
    ],
)
async def test_X12_a_body_that_is_not_in_its_content_encoding_is_an_error_of_its_key(
    coding: str, body: bytes, retryable: bool
) -> None:
    error = await error_of(answer(body, "200 OK", f"Content-Encoding: {coding}"))
    assert "content encoding" in str(error)
    assert "key 'k'" in str(error)
    assert error.retryable is retryable


@pytest.mark.parametrize(("status", "retryable"), [(401, False), (403, False), (418, False), (429, True), (503, True)])
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "unknown"])
async def test_a_status_keeps_its_meaning_whatever_its_body(status: int, retryable: bool, coding: str) -> None:
    error = await error_of(answer(b"oops", f"{status} X", f"Content-Encoding: {coding}"))
    assert str(status) in str(error)
    assert error.retryable is retryable
    assert await row_of(answer(b"oops", "404 X", f"Content-Encoding: {coding}")) is None


@pytest.mark.parametrize("status", ["401 X", "404 X", "500 X"])
async def test_a_status_keeps_its_meaning_if_its_body_breaks_off(status: str) -> None:
    sent = answer(b"oops", status).replace(b"Content-Length: 4", b"Content-Length: 40")
    async with hanging_up_after(sent) as url:
        async with opened(HttpEnricher(url + "/{key}", schema="v string", missing_statuses=())) as enricher:
            assert status[:3] in str(await failure(enricher, "k"))
        async with opened(HttpEnricher(url + "/{key}", schema="v string")) as enricher:
            if status == "404 X":
                assert await enricher.lookup("k") is None


# -- large headers


async def test_a_header_that_is_too_large_is_an_error_that_names_the_option() -> None:
    sent = answer(ROW, "200 OK", f"Content-Security-Policy: {'x' * 9_000}")
    async with served(lambda _: sent) as service:
        async with opened(HttpEnricher(service.url + "/{key}", schema="v string")) as enricher:
            error = await refused(enricher, ["k"])
        assert "larger than max_header_bytes=8190" in str(error)
        assert "xxx" not in str(error)
        async with opened(HttpEnricher(service.url + "/{key}", schema="v string", max_header_bytes=9_500)) as enricher:
            assert await enricher.lookup("k") == {"v": "x"}
    error = await error_of(answer(ROW, "200 " + "y" * 9_000))
    assert "larger than max_header_bytes=8190" in str(error)
