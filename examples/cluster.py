"""Enrichment on a cluster: a standalone master, two workers with an executor each, and one executor that is killed.

    python -m examples.cluster
    python -m examples.cluster --rows 50000 --keep-executors

The workers' Python has the dependencies of this project, but not the project itself. A zip with the package is sent
with the job: `package` makes it, and `spark.submit.pyFiles` (the option ``--py-files`` of ``spark-submit``) sends it.
In the middle of the job an executor is killed. Spark runs its tasks again on the other executor, and no row is lost or
doubled. Everything runs on this machine, in its own processes, and needs neither root nor a network. The service and
the data are those of `enrich_from_http`. docs/production.md explains what to do on your own cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.stage import ProblemError, Stage, job, local_spark, positive, require_java, run, step, tail, workspace

if TYPE_CHECKING:
    import psutil
    from pyspark.sql import DataFrame, SparkSession

    from asyncio_operator.testing import FakeService

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("asyncio_operator", "enrichers")

HOSTS = ("127.0.0.1", "localhost")
"""One host for each worker. Spark treats them as two machines, which speculative execution needs."""

SMALL = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
"""All processes are on one machine. Spark gives an executor at least 450 MB."""

CAPACITY = 20
"""Calls in flight for each task. Two tasks run at the same time, so the service gets up to 40."""

LATENCY = 0.1
"""Seconds that the service takes for an answer."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
JAVA = os.environ.get("SPARK_DAEMON_JAVA_OPTS", SHORT_LIVED)
"""Options for five JVMs that live for a minute and share the processors of one machine."""

START_TIMEOUT = 60.0
"""Seconds within which a master and its workers must have started."""

STOP_TIMEOUT = 20.0
"""Seconds that they may take to end."""


def package(directory: Path) -> Path:
    """The zip for ``--py-files``: a wheel under another name, because Spark ignores files with the suffix .whl."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if built.returncode:
        raise ProblemError(f"the wheel could not be built: {(built.stderr or built.stdout).strip()}")
    [wheel] = directory.glob("asyncio_operator-*.whl")
    return wheel.rename(directory / "asyncio_operator.zip")


def bare_python(directory: Path) -> Path:
    """A Python with all packages of the current one, except the two of this project and paths to other places."""
    import venv

    venv.EnvBuilder(symlinks=True).create(directory)
    [site] = (directory / "lib").glob("python*/site-packages")
    for installed in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(installed).iterdir():
            if not entry.name.startswith(PACKAGES) and entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return directory / "bin" / "python"


@contextlib.contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers of one core each. They write all files to `directory`. Yields the master's URL."""
    log = directory / "cluster.log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [sys.executable, __file__, "--keep", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            # Executors must not find the modules of this process.
            env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_CONF_DIR")}
            | {"PYTHONPATH": str(ROOT)},
            text=True,
            start_new_session=True,
        )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        url = keeper.stdout.readline().strip()
        if not url:
            raise ProblemError(f"the cluster did not start; it says:\n{tail(log)}")
        yield url
    finally:
        keeper.stdin.close()
        try:
            keeper.wait(2 * STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
        keeper.stdout.close()


def _keep_cluster(directory: Path) -> None:
    """The program of a process that runs a cluster until its standard input ends, also if its parent is killed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "SPARK_DAEMON_MEMORY": "256m",
        # A workspace finds its processes by the directory in their commands.
        "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={directory} -Dspark.master.rest.enabled=false {JAVA}",
        "SPARK_LOCAL_DIRS": str(directory / "executors"),
    }
    with contextlib.ExitStack() as stack:
        master = _daemon(directory, "master", environment, ["--host", HOSTS[0]])
        stack.callback(_end, [master])
        url = _said(directory / "master.log", "Starting Spark master at ", 1)[0]
        workers: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, workers)
        for host in HOSTS:
            place = ["--host", host, "--cores", "1", "--memory", "512m", "--work-dir", str(directory / host), url]
            workers.append(_daemon(directory, "worker", environment, place))
        _said(directory / "master.log", "Registering worker ", len(HOSTS))
        print(url, flush=True)
        sys.stdin.read()


def _daemon(directory: Path, name: str, environment: dict[str, str], options: Sequence[str]) -> subprocess.Popen[bytes]:
    from pyspark.find_spark_home import _find_spark_home

    program = str(Path(_find_spark_home()) / "bin" / "spark-class")
    kind = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
    with (directory / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            [program, kind, "--port", "0", "--webui-port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=directory,
        )


def _said(log: Path, words: str, times: int) -> list[str]:
    """The text after some words in a log. Waits until the words have been written `times` times."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        lines = log.read_text(errors="replace").split("\n")[:-1]
        found = [line.partition(words)[2].split()[0] for line in lines if words in line]
        if len(found) >= times:
            return found
        time.sleep(0.05)
    raise ProblemError(f"after {START_TIMEOUT:.0f} s {log.name} does not say {words!r}:\n{tail(log)}")


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def executors(directory: Path) -> list[psutil.Process]:
    """The processes of the executors of a cluster in `directory`."""
    import psutil

    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in command and any(
            str(directory) in part for part in command
        ):
            found.append(process)
    return found


def options(directory: Path, master: str, python: Path) -> dict[str, str]:
    """The configuration of a session on the cluster, without the package."""
    return SMALL | {
        "spark.master": master,
        "spark.driver.host": HOSTS[0],
        # Both executors must have started before the first task.
        "spark.cores.max": str(len(HOSTS)),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        # Replaces PYSPARK_PYTHON, which examples/stage.py sets to the Python of this program.
        "spark.sql.execution.pyspark.python": str(python),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={directory} {JAVA}",
        "spark.executor.extraJavaOptions": f"-Djava.io.tmpdir={directory} {JAVA}",
    }


def enriched(flights: DataFrame, url: str) -> DataFrame:
    """The flights with the airport they fly to, one row for each flight, in their order."""
    from asyncio_operator.spark import enrich
    from enrichers import HttpEnricher

    airports = HttpEnricher(url + "/rows/{faa}", key="faa", schema="name string, lat double, lon double")
    return enrich(flights, airports, on={"dest": "faa"}, prefix="dest_", capacity=CAPACITY)


def where(spark: SparkSession) -> DataFrame:
    """The Python that runs lookups, and the place of its package."""
    from asyncio_operator.spark import enrich
    from enrichers import FunctionEnricher

    def place() -> dict[str, Any]:
        import asyncio_operator

        return {"python": sys.executable, "package": os.path.abspath(asyncio_operator.__file__)}

    async def look(key: int) -> dict[str, Any]:
        return place()

    keys = spark.range(0, len(HOSTS), numPartitions=len(HOSTS))
    return enrich(keys, FunctionEnricher(look, "python string, package string"), on="id")


def demo(stage: Stage, chosen: argparse.Namespace) -> None:
    """Runs the whole demo."""
    from examples.enrich_flights import flights_of, read_data
    from examples.enrich_from_http import rows_of

    require_java()
    from asyncio_operator.testing import FakeService

    directory = stage.enter(workspace("cluster"))
    with step("Reading the flights"):
        data = read_data()
    with step("Making a zip of the package, and a Python without it"):
        zipped = package(directory)
        python = bare_python(directory / "python")
    with step("Starting a master and two workers"):
        master = stage.enter(standalone(directory))
    with step("Starting the service and Spark"):
        airports = stage.enter(FakeService(rows_of(data["airports"]), latency=LATENCY))
        settings = options(directory, master, python) | {
            "spark.app.name": "cluster",
            "spark.submit.pyFiles": str(zipped),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        }
        spark = stage.enter(local_spark(directory, **settings))
    with step("Asking the workers where they have the package from"):
        rows = where(spark).collect()
    for row in rows:
        print(f"  {row.python} has it from {row.package}")
    flights = flights_of(spark, data["flights"], chosen.rows)
    running = executors(directory)
    if not chosen.keep_executors:
        threading.Thread(target=kill, args=(running[0], airports), daemon=True).start()
    with step(f"Enriching {chosen.rows:,} flights on {len(running)} executors; tasks done:"), job(spark):
        table = enriched(flights, airports.url).toArrow()
    print(f"{table.num_rows:,} rows, of which {table.num_rows - table['dest_name'].null_count:,} have an airport.")
    print(f"The service got {len(airports.requests):,} requests, at most {airports.most_at_once} at once.")


def kill(executor: psutil.Process, airports: FakeService) -> None:
    """Kill an executor when the service has received some requests."""
    while len(airports.requests) < 5 * CAPACITY:
        time.sleep(0.01)
    executor.kill()
    print(" (an executor is killed)", end="", flush=True)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="cluster", description="Enrich flights on a cluster that loses an executor.")
    parser.add_argument("--rows", type=positive, default=40_000, help="the number of flights (default: 40,000)")
    parser.add_argument("--keep-executors", action="store_true", help="kill no executor")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--keep"]:
        _keep_cluster(Path(sys.argv[2]))
    else:
        asked = parse()
        sys.exit(run(lambda stage: demo(stage, asked)))
