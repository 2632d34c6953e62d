"""What a journal keeps and where: only the options, and what its path means to Spark and to Arrow.

| written | for Spark | for Arrow |
| --- | --- | --- |
| `/data/answers`, `data/answers`, `file:///data/answers` | `file:///data/answers` | a local path |
| `s3://bucket/answers`, `s3a://`, `s3n://` | `s3a://bucket/answers` | `bucket/answers` on `S3FileSystem` |
| `gs://bucket/answers` | `gs://bucket/answers` | `bucket/answers` on `GcsFileSystem` |
| `hdfs://name:8020/answers` | the same | `/answers` on `HadoopFileSystem("name", 8020)` |

Spark takes a path without a scheme as one of its default file system, which is HDFS on many clusters. A journal takes
it as a local (or mounted) one, and gives Spark the scheme. An S3 location may end in options of Arrow's client, such as
``?region=eu-central-1&endpoint_override=localhost:9000&scheme=http``; Spark has its own in ``fs.s3a``. This module
opens nothing and imports no library.

`flush_every` is one second by default: a kill then costs at most about one second of paid answers, and a worker writes
at most 3,600 files an hour, which compaction makes few. There is no default expiry: how old an answer may be is a
decision that only the user can make. Misses are kept, because a miss was paid for like any other answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from asyncio_operator.checks import Duration, flag, lasting, must_be
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.hints import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Answers of an enricher, kept in files that outlive the job and are used again.

    Attributes:
        path: of a directory: local or mounted, ``s3://``, ``gs://`` or ``hdfs://``. Relative ones become absolute.
        identity: the name of what was asked, such as ``"customers-v2"``; None for the enricher's class and
            configuration. A journal is used only by enrichers of its identity.
        flush_every: seconds (or a timedelta) after which an answer is written at the latest.
        expire_after: seconds (or a timedelta) after which an answer is no longer used; None for never. It is stored
            with each answer, and shortens the life of those that are there.
        keep_missing: whether a miss is stored, and used.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    path: str | Path = field(kw_only=False)
    identity: str | None = None
    flush_every: Duration = 1.0
    expire_after: Duration | None = None
    keep_missing: bool = True

    def __post_init__(self) -> None:
        place = locate(self.path)
        object.__setattr__(self, "path", place.path if place.kind == LOCAL else str(self.path))
        if self.identity is not None and not (isinstance(self.identity, str) and self.identity.strip()):
            raise must_be("identity", self.identity, "a text, such as 'customers-v2', or None")
        object.__setattr__(self, "flush_every", lasting("flush_every", self.flush_every))
        if self.expire_after is not None:
            object.__setattr__(self, "expire_after", lasting("expire_after", self.expire_after))
        flag("keep_missing", self.keep_missing)

    @property
    def location(self) -> Location:
        """What the path means to Spark and to Arrow."""
        return locate(self.path)


LOCAL, S3, GS, HDFS = "local", "s3", "gs", "hdfs"

_KINDS = {"file": LOCAL, "s3": S3, "s3a": S3, "s3n": S3, "gs": GS, "hdfs": HDFS}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")

S3_OPTIONS = ("region", "endpoint_override", "scheme")

WHERE = 'a local or mounted path, "s3://bucket/...", "gs://bucket/..." or "hdfs://name/..."'


@dataclass(frozen=True, slots=True)
class Location:
    """A place that both Spark and Arrow can write."""

    kind: str  # "local", "s3", "gs" or "hdfs".
    for_spark: str  # The URL that Spark knows.
    path: str  # The path on Arrow's file system of that kind.
    authority: str = ""  # Host and port of HDFS; empty for "default", which the configuration of Hadoop names.
    options: Mapping[str, str] = field(default_factory=dict)  # For Arrow's S3 client.

    def __str__(self) -> str:
        """For messages."""
        return self.path if self.kind == LOCAL else self.for_spark


def locate(path: object) -> Location:
    """The location that a path means. ConfigurationError if it is no path, has a scheme that Spark or Arrow cannot
    write, or shows credentials."""
    text = str(path) if isinstance(path, str | Path) else ""
    if not text.strip() or "\0" in text:
        raise must_be("path", path, WHERE)
    scheme = _SCHEME.match(text) if isinstance(path, str) else None
    if scheme is None:
        return _local(text)
    name = scheme[1].lower()
    if name not in _KINDS:
        more = "; on Databricks, write /dbfs/... or /Volumes/..." if name == "dbfs" else ""
        raise ConfigurationError(f"path has the scheme {name!r}; a journal is on {WHERE}{more}")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ConfigurationError(
            "path (not shown, it may hold a secret) has credentials before an @: give them to Spark and Arrow in "
            "another way, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    kind = _KINDS[name]
    if kind == LOCAL:
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigurationError(f"path is {describe(path)}; a local one is file:///..., with three slashes")
        return _local(text[len(scheme[0]) :].removeprefix("//localhost") or "/")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if kind != S3 or option not in S3_OPTIONS:
            known = did_you_mean(option, S3_OPTIONS) if kind == S3 else f"a {scheme[0]}// location takes none"
            raise ConfigurationError(f"path has the option {option!r}; {known}")
    inner = parts.path.strip("/")
    if kind != HDFS and not parts.netloc:
        raise ConfigurationError(f"path is {describe(text)}; the name of the bucket is missing")
    if not inner or "//" in inner:
        raise ConfigurationError(f"path is {describe(text)}; a journal needs a directory of its own, such as /answers")
    shown = {S3: "s3a", GS: "gs", HDFS: "hdfs"}[kind]
    for_arrow = f"/{inner}" if kind == HDFS else f"{parts.netloc}/{inner}"
    return Location(kind, f"{shown}://{parts.netloc}/{inner}", for_arrow, parts.netloc if kind == HDFS else "", options)


def _local(text: str) -> Location:
    if text.startswith("~"):
        raise ConfigurationError(f"path is {describe(text)}: ~ is not supported, pass Path(...).expanduser()")
    # Two slashes at the start mean the same as one, but `abspath` keeps them.
    path = "/" + os.path.abspath(text).lstrip("/")
    return Location(LOCAL, f"file://{path}", path)
