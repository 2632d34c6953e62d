"""Finds the test that catches a planted bug.

First come the tests that are named after the law, in the folder of the module and in those that use it. Then the rest
of its folder, then the rest of the others, and at last the tests of the law in Spark. Each step ends at the first
failure. A test that does not end is a catch too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import witness
from tests.mutants.bugs import Bug

FOLDERS = {
    "arrow": ("arrow", "lookup"),
    "quota": ("quota", "engine", "lookup", "proof/simulation"),
    "engine": ("operator", "engine", "lookup", "quota", "spark/worker"),
    "enrichers": ("enrichers",),
    "journal": ("journal", "lookup", "proof/simulation", "spark/worker"),
    "lookup": ("lookup", "spark/worker"),
    "loop": ("loop", "operator"),
    "operator": ("operator",),
    "policies": ("policies", "operator", "lookup", "quota"),
    "queues": ("queues", "operator"),
    "checks.py": ("policies", "operator"),
    "function.py": ("operator",),
    "spark": ("spark/worker", "spark/driver", "proof/simulation"),
    "state": ("state", "timers", "lookup"),
    "timers": ("timers", "state"),
    "view": ("view",),
    "windows": ("timers",),
}
"""By folder or file of the package: the folders of tests, the most likely first."""

HOMES = {"L": "lookup", "G": "quota", "T": "timers"}
"""By letter of a law: the folder of tests that goes before that of the module."""

TEST_LIMIT = 60
"""Seconds after which a test hangs. The slowest test takes a quarter of that on a busy machine."""

LIMIT = 600.0
"""Seconds for all tests of one bug."""

EXIT_LIMIT = 10.0
"""Seconds for the exit of a process whose tests have ended."""

NO_TESTS = 5
"""The exit code of pytest if it has chosen no test."""


@dataclass(frozen=True, slots=True)
class Caught:
    """How a bug was caught, or that it was not.

    Attributes:
        test: that failed; empty: the bug survived.
        why: what the test said, in one line.
        seconds: until then.
    """

    bug: Bug
    test: str
    why: str
    seconds: float


def search(bug: Bug, tree: Path) -> Caught:
    """Run tests in a tree with the bug until one fails."""
    begun, imported, ran = time.monotonic(), False, 0
    passing: list[str] = []
    left = list(steps(bug, tree))
    while left:
        skipped = [f"--deselect={test}" for test in passing]
        ended = run_tests(tree, [*left[0], *skipped], bug.module, LIMIT - (time.monotonic() - begun))
        imported |= ended.imported
        ran += ended.ran
        seconds = time.monotonic() - begun
        if ended.failed and not _has_seen(bug, tree, ended.failed[0]):
            passing.append(ended.failed[0])
        elif ended.failed:
            return Caught(bug, ended.failed[0], ended.why, seconds)
        else:
            left.pop(0)
        if seconds >= LIMIT:
            return Caught(bug, "", f"no test of {ran} failed within {LIMIT:g} s", seconds)
    why = f"no test of {ran} failed" if imported else f"no test imported {bug.module}"
    return Caught(bug, "", why, time.monotonic() - begun)


def _has_seen(bug: Bug, tree: Path, test: str) -> bool:
    """Whether a test that failed has seen the bug: it is of the bug's law, or fails alone too.

    A test that fails now and then, whatever the bug, must not count, nor on a busy machine one that fails twice: so one
    that names laws of other letters only has to be in a folder of the module.
    """
    letters = re.findall(r"_([A-Z])\d*(?=_)", test.partition("::")[2])
    own = f"tests/{FOLDERS[bug.file.split('/')[0]][0]}/", f"tests/{bug.file.rpartition('/')[0]}/"
    if letters and bug.law[0] not in letters and not test.startswith(own):
        return False
    return f"_{bug.law}_" in test or bool(run_tests(tree, [test], bug.module, TEST_LIMIT + EXIT_LIMIT).failed)


def folders(bugs: Iterable[Bug]) -> list[str]:
    """The folders with tests that may see one of these bugs, the most likely first."""
    found: dict[str, None] = {}
    for bug in bugs:
        names, home = FOLDERS[bug.file.split("/")[0]], HOMES.get(bug.law[0])
        first = [home] if home in names else []
        found |= dict.fromkeys(f"tests/{name}" for name in [*first, *names])
    return list(found)


def steps(bug: Bug, tree: Path) -> Iterable[list[str]]:
    """The arguments for pytest, step by step."""
    places = folders([bug])
    # Contracts and state machines are named after the group of their laws.
    names = f"_{bug.law}_", f"_{bug.law[0]}_"
    # Only files with such tests: to import all others would take longer than the tests.
    files = (path for place in places for path in sorted((tree / place).glob("test_*.py")))
    named = [str(path.relative_to(tree)) for path in files if any(name in path.read_text() for name in names)]
    if named:
        yield [*named, "-k", " or ".join(names)]
    for place in places:
        yield [place]
    # A session takes longer to start than all other tests of a law.
    of_law = [path for path in sorted((tree / "tests/spark").rglob("test_*.py")) if names[0] in path.read_text()]
    if of_law:
        yield [*(str(path.relative_to(tree)) for path in of_law), "-k", names[0], "-m", "spark"]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run of tests has reported.

    Attributes:
        failed: tests that failed or did not end.
        why: what the first of them said.
        ran: how many tests were begun.
        imported: whether the module with the bug was imported from the tree.
    """

    failed: tuple[str, ...]
    why: str
    ran: int
    imported: bool


def run_tests(tree: Path, arguments: Sequence[str], module: str, limit: float) -> Ended:
    """Run pytest in a tree, at most for `limit` seconds."""
    report = tree / "report.jsonl"
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'proof'}",
        "TMPDIR": str(_temporary(tree)),
        witness.REPORT: str(report),
        witness.TREE: str(tree),
        witness.MODULE: module,
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.mutants.witness", "-p", "no:cacheprovider"]
    options = [f"--timeout={TEST_LIMIT}", f"--basetemp={tree / 'b'}", "-m", "not spark"]
    with (tree / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, *options, *arguments],
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        try:
            code = _wait(process, limit, report)
        finally:
            _running.discard(process)
    return _read(report, code, (tree / "output.txt").read_text(errors="replace"))


def _temporary(tree: Path) -> Path:
    """A directory for temporary files, open to all users like the system's: some tests become another user."""
    made = tree / "tmp"
    made.mkdir(exist_ok=True)
    for directory in (tree.parent, tree):
        directory.chmod(0o755)
    made.chmod(0o1777)
    return made


_running: set[subprocess.Popen[bytes]] = set()


def end_all() -> None:
    """End all tests that run now."""
    for process in list(_running):
        _end(process)


def _wait(process: subprocess.Popen[bytes], limit: float, report: Path) -> int | None:
    """The exit code; None if the process had to be ended.

    A thread that hangs because of the bug may keep the process when all tests have ended.
    """
    deadline = time.monotonic() + limit
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1.0)
            if report.exists() and '"imported"' in report.read_text():
                deadline = min(deadline, time.monotonic() + EXIT_LIMIT)
    except BaseException:
        _end(process)
        raise
    _end(process)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End pytest, first so that its fixtures can stop their servers."""
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(report: Path, code: int | None, output: str) -> Ended:
    lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    imported = any(line.get("imported") for line in lines)
    ran = sum("begun" in line for line in lines)
    failed = [line for line in lines if "failed" in line]
    if failed:
        why = failed[0]["why"]
        return Ended(tuple(line["failed"] for line in failed), "hangs" if "Timeout (>" in why else why, ran, True)
    if code in (0, NO_TESTS):
        return Ended((), "", ran, imported)
    latest = next((line["begun"] for line in reversed(lines) if "begun" in line), "")
    if not latest:
        raise RuntimeError(f"pytest could not run the tests (exit code {code}):\n{output[-3000:]}")
    return Ended((latest,), "hangs" if code is None else f"the process died with exit code {code}", ran, True)
