"""The S3 of moto, a server that others wrote, in a process and an environment of its own, behind the same failures.

The environment is made at the first use, from `moto.txt`, in ``.venv-peers/moto``: moto and what it needs take 100 MB,
and want an older python-dateutil than this project has. Its own check of signatures refuses the queries of Arrow's
listings, so they are checked before it.
"""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

import aiohttp
import pyarrow.fs as pafs
import pytest
from aiohttp import web

from benchmarks.peers.environments import UnavailableError, python_of
from tests.object_store import KEY_ID, SECRET, FailingServer

PROGRAM = """
import sys
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""

NOT_PASSED_ON = {"connection", "expect", "transfer-encoding", "content-length", "keep-alive", "date", "server"}
"""Headers that are of a connection, and not of a request or its answer."""


class Objects(MutableMapping[str, bytes]):
    """The objects of a bucket, through Arrow."""

    def __init__(self, files: pafs.FileSystem) -> None:
        self._files = files

    def __getitem__(self, key: str) -> bytes:
        with self._files.open_input_stream(f"bucket/{key}") as file:
            return bytes(file.read())

    def __setitem__(self, key: str, data: bytes) -> None:
        with self._files.open_output_stream(f"bucket/{key}") as file:
            file.write(data)

    def __delitem__(self, key: str) -> None:
        self._files.delete_file(f"bucket/{key}")

    def __iter__(self) -> Iterator[str]:
        found = self._files.get_file_info(pafs.FileSelector("bucket", recursive=True))
        return iter([one.path.removeprefix("bucket/") for one in found if one.type == pafs.FileType.File])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        self._files.delete_dir_contents("bucket")


class MotoStore(FailingServer):
    """Passes requests on to moto."""

    def __init__(self) -> None:
        super().__init__()
        try:
            python = python_of("moto", requirements=Path(__file__).parent)
        except UnavailableError as error:
            pytest.skip(f"moto cannot be installed: {error}")
        self._moto = subprocess.Popen(
            [str(python), "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._session: aiohttp.ClientSession | None = None
        self._url = ""

    def __enter__(self) -> Self:
        assert self._moto.stdout is not None
        port = int(self._moto.stdout.readline())
        self._url = f"http://127.0.0.1:{port}"
        with urlopen(Request(f"{self._url}/bucket", b"", method="PUT"), timeout=30):
            pass
        self.objects = Objects(
            pafs.S3FileSystem(
                access_key=KEY_ID,
                secret_key=SECRET,
                region="us-east-1",
                scheme="http",
                endpoint_override=f"127.0.0.1:{port}",
            )
        )
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        with suppress(Exception):
            super().__exit__(*error)
        self._moto.kill()
        self._moto.communicate()

    async def carry_out(self, request: web.Request, body: bytes) -> web.Response:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False, connector=aiohttp.TCPConnector(force_close=True)
            )
        passed = {name: text for name, text in request.headers.items() if name.lower() not in NOT_PASSED_ON}
        async with self._session.request(
            request.method,
            self._url + request.raw_path,
            headers=passed,
            data=io.BytesIO(body),
            skip_auto_headers=["Content-Type"],
        ) as answer:
            found = {name: text for name, text in answer.headers.items() if name.lower() not in NOT_PASSED_ON}
            if request.method == "HEAD":
                found["Content-Length"] = answer.headers.get("Content-Length", "0")
            return web.Response(status=answer.status, headers=found, body=await answer.read())
