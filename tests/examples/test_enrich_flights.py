"""The demo, run as `make demo` runs it: what it writes, what it says, and that nothing of it is left, ever."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.examples.programs import frames
from tests.servers import PostgresServer

ROOT = Path(__file__).resolve().parent.parent.parent

ENDING = 15.0
"""Seconds after its end in which processes that are ending may still be seen."""

LIMIT = 100.0
"""Seconds after which a demo that is not over is killed, before pytest's timeout hides what it said."""


class Demo:
    """The demo with a temporary directory of its own, which shows what it leaves."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="demo-"))
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        self.output = self.directory / "flights.parquet"
        self._closing = contextlib.ExitStack()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        own = {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(
            [sys.executable, "-u", str(ROOT / "examples" / "enrich_flights.py"), *arguments],
            env=os.environ | own | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_signals,  # noqa: PLW1509
        )
        self._closing.enter_context(process)
        self._closing.callback(process.kill)
        limit = threading.Timer(LIMIT, process.kill)
        limit.start()
        self._closing.callback(limit.cancel)
        return process

    def finish(self, process: subprocess.Popen[str], said: str = "") -> tuple[int, str]:
        """Its exit status and all that it said, `said` first."""
        said += process.communicate()[0]
        assert process.returncode != -signal.SIGKILL, f"the demo was not over after {LIMIT:.0f} s; it said:\n{said}"
        return process.returncode, said

    def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Its exit status and what it said."""
        return self.finish(self.start(*arguments, **environment))

    def run_until(self, moment: str) -> tuple[subprocess.Popen[str], str]:
        """A demo that has just said `moment`, and all that it has said."""
        process = self.start("--output", str(self.output))
        assert process.stdout is not None
        said = ""
        while moment not in said:
            character = process.stdout.read(1)
            assert character, f"the demo ended, or was not there after {LIMIT:.0f} s; it said:\n{said}"
            said += character
        return process, said

    def close(self) -> None:
        """End whatever is left of it."""
        self._closing.close()
        for pid, _ in list(self._processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def remains(self) -> list[str]:
        """Files and processes that it has left behind."""
        processes = self.remaining_processes()
        files = [str(path) for path in [*self.temporary.rglob("*"), *self.directory.glob("*.part-*")]]
        return [*files, *processes]

    def remaining_processes(self) -> list[str]:
        """Processes that it has left behind."""
        deadline = time.monotonic() + ENDING
        while (processes := list(self._processes())) and time.monotonic() < deadline:
            psutil.wait_procs([psutil.Process(pid) for pid, _ in processes if psutil.pid_exists(pid)], timeout=0.5)
        return [f"{pid} {command}" for pid, command in processes]

    def _processes(self) -> Iterator[tuple[int, str]]:
        for process in psutil.process_iter(["pid", "cmdline", "status", "environ"]):
            command = " ".join(process.info["cmdline"] or ())
            where = f"{command} {(process.info['environ'] or {}).get('TMPDIR')}"
            if str(self.temporary) in where and process.info["status"] != psutil.STATUS_ZOMBIE:
                yield process.info["pid"], command


def _heed_signals() -> None:
    """Also where the tests themselves run under nohup or in the background of a shell, which ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def demo() -> Iterator[Demo]:
    made = Demo()
    try:
        yield made
    finally:
        made.close()


ROWS = 8_000


@pytest.mark.spark
@pytest.mark.faults  # As a program; of what it writes and says the test below knows more.
def test_the_demo_writes_what_a_join_in_pandas_gives_and_leaves_nothing(demo: Demo) -> None:
    status, said = demo.run("--rows", str(ROWS), "--output", str(demo.output))
    assert status == 0, said
    check(demo.output, said)
    assert demo.remains() == []


def check(output: Path, said: str) -> None:
    """With status 0 the output is complete; a few lines of what it says are promised."""
    expected = expected_flights(ROWS)
    written = pq.read_table(output)
    assert written.num_rows == ROWS
    assert written.schema.names == list(expected.columns)
    assert written.cast(pa.Table.from_pandas(expected, preserve_index=False).schema).equals(
        pa.Table.from_pandas(expected, preserve_index=False)
    )
    found = [int(expected[column].notna().sum()) for column in ("plane_manufacturer", "dest_name", "visib")]
    for name, count in zip(("planes", "airports", "weather"), found, strict=True):
        line = next(line for line in said.splitlines() if line.startswith(name))
        assert line.split()[1:4] == [f"{ROWS:,}", f"{count:,}", f"{ROWS - count:,}"]
    assert f"Parquet: {output}" in said
    assert "rows a second" in said
    assert "WARN" not in said


def expected_flights(rows: int) -> pd.DataFrame:
    data = frames()
    planes = data["planes"][["tailnum", "year", "manufacturer", "model", "seats"]]
    airports = data["airports"][["faa", "name", "lat", "lon"]]
    weather = data["weather"][["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    planes.columns = ["tailnum", *(f"plane_{name}" for name in planes.columns[1:])]
    airports.columns = ["dest", *(f"dest_{name}" for name in airports.columns[1:])]
    flights = data["flights"].head(rows)
    for table, key in ((planes, ["tailnum"]), (airports, ["dest"]), (weather, ["origin", "time_hour"])):
        flights = flights.merge(table, on=key, how="left")
    return flights


@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGINT, "Reading the flights", marks=pytest.mark.faults),
        (signal.SIGINT, "Starting PostgreSQL"),
        pytest.param(signal.SIGHUP, "Loading planes", marks=pytest.mark.faults),
        pytest.param(signal.SIGTERM, "Starting Spark", marks=pytest.mark.faults),
        pytest.param(signal.SIGINT, "Enriching", marks=pytest.mark.faults),
    ],
    ids=lambda value: str(value).replace(" ", "-"),
)
def test_interrupted_at_any_moment_the_demo_leaves_nothing_and_tells_no_traceback(
    demo: Demo, number: signal.Signals, moment: str
) -> None:
    process, said = demo.run_until(moment)
    # As a terminal does it: to every process of the group.
    os.killpg(process.pid, number)
    status, said = demo.finish(process, said)
    assert status == 128 + number, said
    assert "Traceback" not in said
    assert not demo.output.exists()
    assert demo.remains() == []


@pytest.mark.spark
@pytest.mark.faults
def test_killed_outright_the_demo_leaves_no_process(demo: Demo) -> None:
    process, _ = demo.run_until("Handing the flights")
    process.kill()
    process.wait()
    assert demo.remaining_processes() == []


@pytest.mark.spark
def test_with_a_dsn_the_demo_makes_a_schema_of_its_own_and_drops_it(
    play: Callable[..., str], postgres: PostgresServer, tmp_path: Path
) -> None:
    output = tmp_path / "flights.parquet"
    said = play("enrich_flights", "--dsn", postgres.tcp_dsn(), "--rows", str(ROWS), "--output", str(output))
    check(output, said)
    assert "enrich_flights_" in said
    assert "dropped at the end" in said
    assert postgres.password not in said
    assert postgres.fetch("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'enrich_flights_%'") == []
    assert [*tmp_path.iterdir()] == [output]


@pytest.mark.parametrize(
    ("reason", "dsn", "environment"),
    [
        ("refuses the credentials", None, {}),
        ("127.0.0.1:1/nowhere", "postgresql://me:wr0ng-Secret@127.0.0.1:1/nowhere", {}),
        ("Java 17 or newer", "", {"JAVA_HOME": "/nowhere"}),
    ],
)
def test_what_cannot_work_is_told_in_a_sentence_without_a_password(
    demo: Demo, postgres: PostgresServer, reason: str, dsn: str | None, environment: dict[str, str]
) -> None:
    dsn = postgres.tcp_dsn(password="wr0ng-Secret") if dsn is None else dsn
    refused(demo, reason, *(["--dsn", dsn] if dsn else []), **environment)


def test_an_output_that_exists_is_left_alone(demo: Demo) -> None:
    demo.output.write_text("mine")
    refused(demo, "exists already")
    assert demo.output.read_text() == "mine"


def refused(demo: Demo, reason: str, *arguments: str, **environment: str) -> None:
    status, said = demo.run(*arguments, "--output", str(demo.output), **environment)
    assert status == 1
    assert reason in said.splitlines()[-1], said
    assert "Traceback" not in said
    assert "wr0ng-Secret" not in said
    assert demo.remains() == []


def test_an_option_that_it_does_not_have_is_refused(demo: Demo) -> None:
    status, said = demo.run("--keep")
    assert status == 2
    assert "--keep" in said.splitlines()[-1]
