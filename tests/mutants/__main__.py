"""Plants each bug, and prints which test caught it. Exit code 1 if one survives, or its test fails without it too."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutants.bugs import ROOT, Bug, read_bugs
from tests.mutants.search import Caught, end_all, folders, run_tests, search
from tests.mutants.trees import make_copy, planted

TABLE = ROOT / "artifacts" / "mutants.md"

CONTROL_LIMIT = 600.0
"""Seconds for all tests that caught something, without a bug."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", help="bugs to plant: names, parts of names, files or laws (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many run side by side (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    options = parser.parse_args()
    bugs = [bug for bug in read_bugs() if not options.names or any(_is_meant(bug, name) for name in options.names)]
    if not bugs:
        parser.error(f"no bug is named {' or '.join(options.names)}; --list prints them all")
    if options.list:
        for bug in bugs:
            print(f"{bug.name:40} {bug.law:4} {bug.says}")
        return 0
    # So that no test, server or file stays behind.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-", dir=_memory()) as directory:
        room = Path(directory)
        copy = make_copy(room / "copy")
        # Once for all bugs: what this imports is compiled then.
        collected = run_tests(copy, ["--collect-only", *folders(bugs)], "", CONTROL_LIMIT)
        if collected.failed:
            parser.exit(1, f"without a bug, {collected.failed[0]} cannot be imported: {collected.why}\n")
        results = _search_all(bugs, copy, room, options.jobs)
        wrong = _control(results, copy)
    survived = [caught for caught in results if not caught.test]
    table = _table(results)
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table)
    print(f"\n{table}\n{len(results)} bugs in {time.monotonic() - begun:.0f} s, {len(survived)} survived: {TABLE}")
    for caught in survived:
        print(f"SURVIVED: {caught.bug.name}: {caught.bug.says} ({caught.bug.law}, {caught.why})")
    for test in wrong:
        print(f"FAILS WITHOUT A BUG TOO: {test}")
    return 1 if survived or wrong else 0


def _is_meant(bug: Bug, name: str) -> bool:
    return name in bug.name or name == bug.law or bug.path.endswith(name)


def _memory() -> str | None:
    """A file system in memory, if there is one."""
    place = "/dev/shm"
    return place if os.access(place, os.W_OK) else None


def _search_all(bugs: Sequence[Bug], copy: Path, room: Path, jobs: int) -> list[Caught]:
    def one(bug: Bug) -> Caught:
        with planted(bug, copy, room) as tree:
            return search(bug, tree)

    found: dict[str, Caught] = {}
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for ended in as_completed([pool.submit(one, bug) for bug in bugs]):
                caught = ended.result()
                found[caught.bug.name] = caught
                outcome = caught.test or f"SURVIVED, {caught.why}"
                print(f"{len(found):3}/{len(bugs)} {caught.seconds:5.1f} s  {caught.bug.name}: {outcome}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    return [found[bug.name] for bug in bugs]


def _control(results: Sequence[Caught], copy: Path) -> Sequence[str]:
    """Run the tests that caught bugs without a bug. Returns those that fail."""
    tests = sorted({caught.test for caught in results if caught.test})
    return run_tests(copy, ["--maxfail=1000", *tests], "", CONTROL_LIMIT).failed if tests else ()


def _table(results: Sequence[Caught]) -> str:
    lines = ["| bug | what it does | law | caught by | seconds |", "| --- | --- | --- | --- | ---: |"]
    for caught in results:
        bug = caught.bug
        by = f"`{caught.test}`" + (", which hangs" if caught.why == "hangs" else "") if caught.test else "SURVIVED"
        lines.append(f"| {bug.name} | {bug.says} | {bug.law} | {by} | {caught.seconds:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
