"""Kills processes that write state, caches and journals, damages their files, and compares what is left with a model.

Prints what was done and every broken law; exit code 1 if there is one."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from examples.stage import positive
from tests.disks import processes
from tests.disks.runs import WORKS, Runs

STARTED = "DISKS_STARTED"
"""In the environment of the process that does the runs."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.disks", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seeds", type=positive, default=100, help="runs of each kind (default: 100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--kind", choices=WORKS, action="append", help="only this, more than once for more")
    parser.add_argument("--damages", type=int, default=8, help="damaged files of each run (default: 8)")
    parser.add_argument(
        "--every", type=int, metavar="N", help="kill at every Nth write of each seed, in place of random ones"
    )
    parser.add_argument("--show", action="store_true", help="name each run")
    return parser.parse_args(arguments)


def main() -> int:
    chosen = parse()
    if STARTED not in os.environ:
        with processes.with_kills() as environment:
            if environment is None:
                print("no kills at each write: they need Linux and a C compiler", flush=True)
            with_mark = {**(environment or os.environ), STARTED: "1"}
            return subprocess.run(
                [sys.executable, "-m", "tests.disks", *sys.argv[1:]], env=with_mark, check=False
            ).returncode
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="disks-") as room:
        runs = Runs(Path(room))
        shown = 0
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            for name in chosen.kind or WORKS:
                if chosen.show:
                    print(f"{name}, seed {seed}", flush=True)
                if chosen.every:
                    runs.every(name, seed, chosen.every)
                else:
                    runs.seed(name, seed, damages=chosen.damages)
                for line in runs.wrong[shown:]:
                    print(f"WRONG: {line}\n", flush=True)
                shown = len(runs.wrong)
    for what, count in sorted(runs.counts.items()):
        print(f"{count:7} {what}")
    print(f"{chosen.seeds} seeds in {time.monotonic() - begun:.0f} s, {len(runs.wrong)} wrong")
    return 1 if runs.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
