"""The body of an answer: its content codings undone, and its bytes decoded to text.

Both are used as the answer declares them, or refused with words; neither is guessed. A byte order mark declares too.
Without any declaration JSON is UTF-8 (RFC 8259, 8.1). Bytes that are not valid are an error, never replacement
characters.

Source: RFC 9110, 8.4 (content codings) and 8.3.2 (charset); RFC 2781 (UTF-16).
"""

from __future__ import annotations

import codecs
import re
import zlib
from functools import lru_cache

import pyarrow as pa

ACCEPTED = "gzip, deflate"
"""What requests accept. Answers in any coding of `_STREAMS` are decoded too."""

_STREAMS = {"gzip": "gzip", "x-gzip": "gzip", "br": "brotli", "zstd": "zstd"}
"""Content codings that pyarrow undoes, with its names."""

_MOST_CODINGS = 3
"""Content codings of one answer. Services use one; each more costs a pass over the body."""

_CHARSET = re.compile(r';\s*charset\s*=\s*(?:"([^"]*)"|([^\s;]*))', re.IGNORECASE)

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks. That of UTF-32 is first: it begins with that of UTF-16, and no JSON begins with a NUL."""

_MAY_BEGIN_MARK = frozenset(mark[0] for mark, _ in _MARKS)

_ONLY_PYTHON = frozenset({"idna", "mbcs", "oem", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Codecs of Python that are no character sets."""


class BodyError(ValueError):
    """A body cannot be decoded, or is too large; the message says why.

    Attributes:
        retryable: whether the next answer may be different.
    """

    def __init__(self, problem: str, retryable: bool = False) -> None:
        super().__init__(problem)
        self.retryable = retryable


def too_large(limit: int) -> BodyError:
    """The error for an answer with more bytes."""
    return BodyError(f"the answer is larger than max_response_bytes={limit}")


def decompressed(body: bytes, codings: str, limit: int) -> bytes:
    """The body without its content codings, which the header ``Content-Encoding`` lists in their order.

    Raises:
        BodyError: a coding is not known, the body is not in it, or more than `limit` bytes come out. No more than that
            are made.
    """
    named = [name.strip().lower() for name in codings.split(",")]
    names = [name for name in named if name not in ("", "identity")]
    if len(names) > _MOST_CODINGS:
        raise BodyError(f"the answer has {len(names)} content encodings; at most {_MOST_CODINGS} are decoded")
    for name in reversed(names):
        if name not in _STREAMS and name != "deflate":
            raise BodyError(
                f"the answer has the content encoding {name[:40]!r}, which was not requested and is not "
                f"supported; supported: deflate, {', '.join(_STREAMS)}"
            )
        if body:
            try:
                body = _inflated(body, limit) if name == "deflate" else _read(body, _STREAMS[name], limit)
            except (OSError, zlib.error) as error:
                raise BodyError(f"the answer is not in {name}, its content encoding: {error}", True) from None
        if len(body) > limit:
            raise too_large(limit)
    return body


def _read(body: bytes, codec: str, limit: int) -> bytes:
    # The stream checks sums and the end, and goes on with the next member, as gzip and zstd allow.
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        return bytes(stream.read(limit + 1))


def _inflated(body: bytes, limit: int) -> bytes:
    """Of zlib's format, as the standard says, or without its head, as some services send it."""
    stream = zlib.decompressobj(zlib.MAX_WBITS if body[0] & 0x0F == 8 else -zlib.MAX_WBITS)
    content = stream.decompress(body, limit + 1)
    if len(content) <= limit and (not stream.eof or stream.unused_data):
        raise zlib.error("it has no end" if not stream.eof else "bytes follow its end")
    return content


def decoded(body: bytes, content_type: str) -> str:
    """The text of a body, in the character set that its ``Content-Type`` or its byte order mark declares, or UTF-8.

    Raises:
        BodyError: the character set is not known, or the body is not in it.
    """
    declared = _charset(content_type)
    mark, marked = b"", None
    if body[:1] and body[0] in _MAY_BEGIN_MARK:
        mark, marked = next(((mark, name) for mark, name in _MARKS if body.startswith(mark)), (b"", None))
    if marked is not None and declared not in (None, marked, marked[:6]):
        raise BodyError(f"its charset is {declared}, but it begins with the byte order mark of {marked}")
    if marked is None and declared in ("utf-16", "utf-32"):
        raise BodyError(
            f"its charset is {declared}, but it has no byte order mark; {declared}le and {declared}be need none"
        )
    name = marked or declared or "utf-8"
    try:
        return body[len(mark) :].decode(name).removeprefix("\ufeff")
    except UnicodeError as error:
        known = " by default" if marked is None and declared is None else ""
        raise BodyError(f"it is not in {name.upper()}, its character set{known}: {error}") from None


@lru_cache(maxsize=256)
def _charset(content_type: str) -> str | None:
    """Python's name of the declared character set; None if none is declared."""
    names = {(quoted or bare).strip().lower() for quoted, bare in _CHARSET.findall(content_type)} - {""}
    if not names:
        return None
    if len(names) > 1:
        raise BodyError(f"its Content-Type names {len(names)} character sets")
    name = names.pop()
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):
        codec = None
    if codec is None or not codec._is_text_encoding or codec.name.replace("_", "-") in _ONLY_PYTHON:
        raise BodyError(f"its charset {name[:40]!r} is not known")
    return "utf-8" if codec.name in ("utf-8", "utf-8-sig", "utf_8_sig") else codec.name
