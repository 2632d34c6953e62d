"""docs/start.md: its programs, in the Spark of the tests; and from its first command to its last, in an empty folder.

The latter must not need the network: the packages that the page downloads are those of this Python, and `pip` installs
only what is in the repository. The port of the page's service is one that is free.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.testing import FakeService
from tests.pages import DOCS, programs_of

ROOT = DOCS.parent

STEP = re.compile(r"(?:Save this as `(\w+\.py)`:\n\n)?^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A block, and the name of the file that it is to be saved as."""

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""With an option that begins with ``no-``, pip takes 0 for a yes."""


def script_of(text: str) -> str:
    """The commands of the page, one after the other, with a file for every program."""
    steps = []
    for name, kind, block in STEP.findall(text):
        assert (kind == "python") == bool(name), f"a program that is not saved, or a command that is: {block}"
        steps.append(f"cat > {name} <<'END OF FILE'\n{block}END OF FILE\n" if name else block)
    return "".join(steps)


def packages_beside(folder: Path) -> Path:
    """A folder with the installed packages, without this project's own."""
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and "asyncio_operator" not in path.name:
            (folder / path.name).symlink_to(path)
    return folder


def this_python(folder: Path) -> Path:
    """A folder whose ``python3`` is this Python, for which the installed packages are made."""
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    (folder / "python3").chmod(0o755)
    return folder


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.spark
def test_the_programs_of_the_page_print_what_it_says(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    files = re.findall(r"^echo '(.*)' > customers(/\d+\.json)$", text, re.MULTILINE)
    known = {path: json.loads(row) for row, path in files}
    assert len(known) == 2
    with FakeService(handler=lambda request: known.get(request.path)) as service:
        for program in programs_of("start.md"):
            exec(compile(program.replace("http://localhost:8000", service.url), "start.md", "exec"), {})
        assert "/99.json" in {request.path for request in service.requests}
    tables = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    printed = capsys.readouterr().out
    assert [table in printed for table in tables] == [True, True]


# It starts four Sparks, and installs: a minute. tests/release is about what is installed.
@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.timeout(360)
def test_every_command_and_program_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    script = script_of(text)
    assert all(program in script for program in programs_of("start.md"))
    work = tmp_path / "work"
    work.mkdir()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHON", "VIRTUAL_"))
    }
    environment = OFFLINE | {
        "CLONE": str(ROOT),
        "PATH": f"{this_python(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(packages_beside(tmp_path / "packages")),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    running = subprocess.Popen(
        ["bash", "-eu", "-c", script.replace("8000", str(free_port()))],
        cwd=work,
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, complaints = running.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, printed + complaints[-3000:]
    tables = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert table in printed
    assert '"GET /99.json HTTP/1.1" 404' in (work / "enrichment" / "requests.log").read_text(encoding="utf-8")
