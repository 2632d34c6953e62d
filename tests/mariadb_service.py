"""A real MariaDB for tests: started on a port of its own, stoppable in the middle of a test, gone with all its files.

The program is the ``mariadbd`` on PATH or in ``/usr/sbin``, with the files that Debian's package mariadb-server-core
brings. Without it, the fixture skips the tests that need it. The server dies with the test process, also when that is
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.servers import Server

BINARY = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
TABLES = Path("/usr/share/mysql")
SYSTEM = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")

PASSWORD = "s3cret:Pass/word"


class MariadbServer(Server):
    """A MariaDB with the user ``test`` and the database ``d``. `stop` kills it; what was written stays."""

    def __init__(self, **settings: str) -> None:
        super().__init__("mariadb-")
        # A database of the system is 20 MB, so it is made where that costs no disk, if there is such a place.
        shared = Path("/dev/shm")
        self._data = Path(tempfile.mkdtemp(prefix="mariadb-", dir=shared if shared.is_dir() else None))
        self._settings = settings
        self._bootstrap()

    @property
    def url(self) -> str:
        return self.url_with()

    def url_with(self, password: str = PASSWORD, user: str = "test", dialect: str = "mysql", name: str = "d") -> str:
        return f"{dialect}+aiomysql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"

    async def execute(self, *statements: str) -> Any:
        """The rows of the last statement."""
        import aiomysql

        connection = await aiomysql.connect(
            host="127.0.0.1", port=self.port, user="test", password=PASSWORD, autocommit=True, db="d"
        )
        try:
            cursor = await connection.cursor()
            for statement in statements:
                await cursor.execute(statement)
            return await cursor.fetchall()
        finally:
            await connection.ensure_closed()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._data, ignore_errors=True)

    def _bootstrap(self) -> None:
        first = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n"
        last = (
            "FLUSH PRIVILEGES;\nCREATE DATABASE d CHARACTER SET utf8mb4;\n"
            f"CREATE USER 'test'@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON *.* TO 'test'@'%' WITH GRANT OPTION;\n"
        )
        sql = first + "".join((TABLES / name).read_text(encoding="utf-8") for name in SYSTEM) + last
        command = [*self._common(), "--bootstrap", "--skip-networking"]
        done = subprocess.run(command, input=sql.encode(), capture_output=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"MariaDB could not be set up:\n{done.stderr.decode(errors='replace')}")

    def _common(self) -> list[str]:
        assert BINARY is not None
        options = {
            "datadir": str(self._data),
            "user": "root",
            "innodb-log-file-size": "4M",
            "innodb-buffer-pool-size": "16M",
            "innodb-flush-log-at-trx-commit": "0",
        }
        return [BINARY, "--no-defaults", *(f"--{name}={value}" for name, value in options.items())]

    def _command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self._data / "socket"),
            "pid-file": str(self._data / "pid"),
            **self._settings,
        }
        return [*self._common(), "--skip-name-resolve", *(f"--{name}={value}" for name, value in options.items())]

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return bool(connection.recv(1))
        except OSError:
            return False


def needs_mariadb() -> None:
    """Skip the test where there is no MariaDB."""
    pytest.importorskip("aiomysql", reason="the driver of MariaDB")
    if BINARY is None or not all((TABLES / name).exists() for name in SYSTEM):
        pytest.skip("mariadbd is not installed (Debian's package mariadb-server-core)")


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """One running server for the whole session. Tests that stop it make one of their own."""
    needs_mariadb()
    with MariadbServer() as server:
        yield server


def run(work: Any) -> Any:
    """The result of a coroutine, in a test that is not asynchronous."""
    return asyncio.run(work)
