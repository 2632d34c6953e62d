"""What all tests share: one Spark session, one PostgreSQL, and how long hypothesis searches.

``HYPOTHESIS_PROFILE=nightly python -m pytest --timeout 3600`` searches long.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.servers import postgres
from tools import classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["connect", "postgres", "spark"]

for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
    os.environ.setdefault(variable, classes.options())


def _in_memory() -> str | None:
    """A file system in memory with room for the tests: those of state and of servers mostly wait for a disk."""
    place = "/dev/shm"
    try:
        system = os.statvfs(place)
    except OSError:
        return None
    has_room = system.f_bavail * system.f_frsize >= 4 << 30
    return place if has_room and not system.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK) else None


if "TMPDIR" not in os.environ and (directory := _in_memory()) is not None:
    os.environ["TMPDIR"] = directory
    tempfile.tempdir = None

# On a machine that is busy an example takes long now and then, which is no fault.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile(
    "default", max_examples=60, derandomize=True, deadline=None, suppress_health_check=SLOW
)
hypothesis.settings.register_profile("nightly", max_examples=3000, deadline=None, suppress_health_check=SLOW)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# In debug mode asyncio tells of each step that takes long, as on a busy machine.
TOOK_LONG = "Executing %s took %.3f seconds"
logging.getLogger("asyncio").addFilter(lambda record: record.msg != TOOK_LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--eager", action="store_true", help="give every new asyncio loop the eager task factory (law O18)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--eager"):
        _start_tasks_eagerly()


def _start_tasks_eagerly() -> None:
    factory = getattr(asyncio, "eager_task_factory", None)
    if factory is None:
        raise pytest.UsageError("--eager: asyncio has no eager tasks before Python 3.12; use a newer Python")
    make = asyncio.BaseEventLoop.__init__

    def make_eager(loop: asyncio.BaseEventLoop) -> None:
        make(loop)
        loop.set_task_factory(factory)

    setattr(asyncio.BaseEventLoop, "__init__", make_eager)  # noqa: B010, because mypy allows no other assignment


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide modules and collected tests from the garbage collector.

    They live until the end, and hundreds of tests call `gc.collect`, which otherwise visits them all each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Hide what a file of tests leaves behind, too: modules, caches of libraries, sessions."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests with the mark ``faults``, unless `-m` asks for them, and mark those that use Spark."""
    if "faults" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("faults")])
        items[:] = [item for item in items if not item.get_closest_marker("faults")]
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    _put_first_what_needs_spark(items)


def _put_first_what_needs_spark(items: list[pytest.Item]) -> None:
    """Behind the files with Spark the largest come first, so that processes that run side by side end together."""
    sizes = Counter(item.path for item in items)
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: (item.path not in with_spark, -sizes[item.path]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of processes that run files side by side only two begin with those that need Spark: each has one, which takes
    most of a core and 1 GB. A third begins at the other end, and computes while they wait."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduler = LoadFileScheduling(config, log)
    assign = scheduler._assign_work_unit

    def from_both_ends(node: Any) -> None:
        if node.gateway.id not in ("gw0", "gw1"):
            scheduler.workqueue.move_to_end(next(reversed(scheduler.workqueue)), last=False)
        assign(node)

    scheduler._assign_work_unit = from_both_ends
    return scheduler


def has_connect() -> bool:
    """Whether PySpark has the server of Spark Connect."""
    import pyspark

    return any(Path(pyspark.__file__).with_name("jars").glob("spark-connect_*.jar"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, for all tests of a run."""
    from tests.spark.helpers import DAEMON, local_session

    settings: dict[str, object] = {
        "spark.pyspark.python": sys.executable,
        "spark.python.daemon.module": DAEMON,
        "spark.sql.shuffle.partitions": 2,
        # To compile each plan takes its JVM longer than to interpret it for a few rows. Other Sparks of the tests do.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    if has_connect():
        # It serves Spark Connect too, on a port that is free.
        settings |= {
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": 0,
        }
    session = local_session("local[2]", tmp_path_factory.mktemp("warehouse"), settings)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


PROGRAMS_ON_CONNECT = """
import contextlib, io, json, sys, traceback

for line in sys.stdin:
    program, *sys.argv[1:] = json.loads(line)
    failed, printed = "", io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            failed = traceback.format_exc()
    print(json.dumps([failed, printed.getvalue()]), flush=True)
"""


@pytest.fixture(scope="session")
def connect(spark: SparkSession) -> Iterator[Callable[..., str]]:
    """Runs a program, with arguments, that finds in ``REMOTE`` where that session serves Spark Connect; what it
    prints. All run in one process, which has imported PySpark once; one process has one kind of session."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    if not has_connect():
        pytest.skip("PySpark 3.5 has no server of Spark Connect among its jars")
    assert spark.sparkContext._jvm is not None
    service = getattr(spark.sparkContext._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAMS_ON_CONNECT],
        env=os.environ | {"REMOTE": f"sc://127.0.0.1:{port}", "PYSPARK_PYTHON": sys.executable},
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answer = process.stdin, process.stdout

        def run(program: str, *arguments: str) -> str:
            print(json.dumps([program, *arguments]), file=ask, flush=True)
            failed, printed = json.loads(answer.readline())
            assert not failed, printed + failed[-3000:]
            return str(printed)

        yield run
        process.kill()


@pytest.fixture
def silence() -> Iterator[None]:
    """For tests with many calls that ignore their cancellation, each of which is reported."""
    logger = logging.getLogger("asyncio_operator")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
