"""Runs jobs with faults, prints a line for each, and a table at the end. Exits with 1 if a run was wrong."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from examples.stage import Stage, positive, run, workspace
from tests.chaos.faults import FAULTS
from tests.chaos.report import Report
from tests.chaos.runs import DRIVER, Runs
from tests.chaos.service import CountingService

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"

KINDS = (*FAULTS, DRIVER)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description="Jobs on a cluster, each with a fault.")
    parser.add_argument("--fault", choices=KINDS, action="append", help="a kind of fault, more than once for more")
    parser.add_argument("--times", type=positive, default=100, help="runs of each kind (default: 100)")
    parser.add_argument("--seed", type=positive, help="only the run of this seed, of each kind")
    parser.add_argument("--first", type=positive, default=1, help="the seed of the first run (default: 1)")
    parser.add_argument("--keep", action="store_true", help="write the histories of runs that are right, too")
    return parser.parse_args(arguments)


def chaos(stage: Stage, chosen: argparse.Namespace) -> None:
    """All runs."""
    seeds = [chosen.seed] if chosen.seed else range(chosen.first, chosen.first + chosen.times)
    kinds = chosen.fault or KINDS
    report = Report(ARTIFACTS)
    directory = stage.enter(workspace("chaos"))
    service = CountingService()
    stage.enter(service.service)
    runs = stage.enter(Runs(directory, service, ARTIFACTS / "chaos", keep_all=chosen.keep))
    began = time.monotonic()
    plan = [(kind, seed) for seed in seeds for kind in kinds if kind != DRIVER]
    plan += [(DRIVER, seed) for seed in seeds if DRIVER in kinds]
    for kind, seed in plan:
        report.add(runs.run(kind, seed))
    report.finish(time.monotonic() - began)
    if report.failed:
        sys.exit(1)


if __name__ == "__main__":
    asked = parse()
    sys.exit(run(lambda stage: chaos(stage, asked)))
