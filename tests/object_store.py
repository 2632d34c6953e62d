"""An object store that speaks as much of S3 as Arrow's client needs, in memory, with the failures of real ones.

It checks signatures (version 4). A put is atomic. It can be slow, answer 503 (SlowDown), close the connection in the
middle of a request, or lose the reply to a request that it has carried out. `tests.moto_store` puts the same failures
before a server of others.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from collections import Counter
from collections.abc import MutableMapping
from typing import Self
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


KEY_ID, SECRET = "key", "secret"
"""The credentials of the only user."""


class FailingServer:
    """A server in a thread of its own, before a store. It has one bucket, "bucket".

    Attributes:
        objects: by key.
        requests: how many came, by method.
        delay: seconds before each answer.
        refuse: the number of next requests that get 503.
        cut: the number of next puts that are closed when half of their body has come.
        lose: the number of next puts that are carried out, and whose connection is then closed.
    """

    objects: MutableMapping[str, bytes]

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.delay = 0.0
        self.refuse = self.cut = self.lose = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="object store", daemon=True)
        self._runner: web.AppRunner | None = None

    def url(self, path: str) -> str:
        """The URL of a directory in the bucket, for a `Journal`."""
        options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{self.port}"
        return f"s3://bucket/{path}?{options}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests[request.method] += 1
        if self.delay:
            await asyncio.sleep(self.delay)
        is_put = request.method == "PUT"
        if is_put and self.cut:
            self.cut -= 1
            await request.content.read(max(1, (request.content_length or 2) // 2))
            return self._hang_up(request)
        body = await request.read()
        if self.refuse:
            self.refuse -= 1
            return _error(503, "SlowDown")
        if signature_of(request, SECRET) not in request.headers.get("Authorization", ""):
            return _error(403, "SignatureDoesNotMatch")
        response = await self.carry_out(request, body)
        if is_put and self.lose:
            self.lose -= 1
            return self._hang_up(request)
        return response

    async def carry_out(self, request: web.Request, body: bytes) -> web.Response:
        """Do what a request asks for."""
        raise NotImplementedError

    def _hang_up(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


class ObjectStore(FailingServer):
    """A store in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}

    async def carry_out(self, request: web.Request, body: bytes) -> web.Response:
        bucket, _, key = unquote(request.path).lstrip("/").partition("/")
        if bucket != "bucket":
            return _error(404, "NoSuchBucket")
        return self._object(request, key, _decoded(request, body)) if key else self._bucket(request)

    def _bucket(self, request: web.Request) -> web.Response:
        if request.method == "HEAD":
            return web.Response()
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        found, folders = [], set()
        for key in sorted(self.objects):
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    found.append(key)
        start = int(request.query.get("continuation-token", 0))
        most = int(request.query.get("max-keys", 1000))
        page = found[start : start + most]
        is_cut = start + most < len(found)
        parts = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>x</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in page
        ]
        parts += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        parts += [f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"]
        parts += [f"<NextContinuationToken>{start + most}</NextContinuationToken>"] if is_cut else []
        return _xml(f"<ListBucketResult {NAMESPACE}><Name>bucket</Name>{''.join(parts)}</ListBucketResult>")

    def _object(self, request: web.Request, key: str, body: bytes) -> web.Response:
        upload = request.query.get("uploadId")
        match request.method:
            case "PUT" if upload is not None:
                self._uploads[upload][int(request.query["partNumber"])] = body
                return web.Response(headers={"ETag": _tag(body)})
            case "PUT":
                self.objects[key] = body
                return web.Response(headers={"ETag": _tag(body)})
            case "POST" if upload is not None:
                parts = self._uploads.pop(upload)
                self.objects[key] = b"".join(parts[number] for number in sorted(parts))
                return _xml(
                    f"<CompleteMultipartUploadResult {NAMESPACE}><ETag>x</ETag></CompleteMultipartUploadResult>"
                )
            case "POST":
                upload = f"upload-{self.requests.total()}"
                self._uploads[upload] = {}
                about = f"<Bucket>bucket</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                return _xml(f"<InitiateMultipartUploadResult {NAMESPACE}>{about}</InitiateMultipartUploadResult>")
            case "DELETE":
                self.objects.pop(key, None)
                return web.Response(status=204)
        if key not in self.objects:
            return _error(404, "NoSuchKey")
        data, status = self.objects[key], 200
        headers = {"ETag": _tag(data), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(data))})
        if (span := request.headers.get("Range")) is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            data, status = data[int(first) : int(last) + 1 if last else None], 206
        return web.Response(status=status, body=data, headers=headers)


def signature_of(request: web.Request, secret: str) -> str:
    """The signature that a request must have: version 4, as "Authenticating Requests" in the S3 API reference says."""
    _, _, stated = request.headers.get("Authorization", "").partition("AWS4-HMAC-SHA256 ")
    parts = dict(part.strip().partition("=")[::2] for part in stated.split(",") if part)
    scope = parts.get("Credential", "").partition("/")[2]
    names = parts.get("SignedHeaders", "").split(";")
    query = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in request.query.items())
    canonical = [
        request.method,
        quote(unquote(request.path), safe="/-_.~"),
        "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{' '.join(request.headers.get(name, '').split())}" for name in names),
        "",
        ";".join(names),
        request.headers.get("x-amz-content-sha256", ""),
    ]
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{request.headers.get('x-amz-date', '')}\n{scope}\n{hashed}"
    return f"Signature={hmac.digest(key, text.encode(), 'sha256').hex()}"


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _xml(text: str, status: int = 200) -> web.Response:
    return web.Response(status=status, text=f'<?xml version="1.0"?>{text}', content_type="application/xml")


def _error(status: int, code: str) -> web.Response:
    return _xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status)


def _decoded(request: web.Request, body: bytes) -> bytes:
    """The body without the chunks of "aws-chunked", in which the client may add a checksum."""
    if "x-amz-decoded-content-length" not in request.headers:
        return body
    data = b""
    while body:
        head, _, body = body.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        data, body = data + body[:size], body[size + 2 :]
    return data
