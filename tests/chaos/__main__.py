"""Runs jobs with faults, prints a line for each, and a table at the end. Exits with 1 if a run was wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from examples.stage import Stage, positive, run, workspace
from tests.chaos.faults import DRIVER, FAULTS, ONCE
from tests.chaos.report import Report
from tests.chaos.runs import Runs
from tests.chaos.service import CountingService

ARTIFACTS = Path(__file__).resolve().parents[2] / "artifacts"

KINDS = (*FAULTS, DRIVER)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="chaos", description="Jobs on a cluster, each with faults of one kind.")
    parser.add_argument("--fault", choices=KINDS, action="append", help="a kind of fault, more than once for more")
    parser.add_argument("--times", type=positive, default=100, help="moments of each kind (default: 100)")
    parser.add_argument("--moments", type=positive, default=4, help="moments of a job (default: 4)")
    parser.add_argument("--seed", type=positive, help="only the job of this seed, of each kind")
    parser.add_argument("--first", type=positive, default=1, help="the seed of the first job (default: 1)")
    parser.add_argument("--keep", action="store_true", help="write the histories of runs that are right, too")
    return parser.parse_args(arguments)


def seeds(chosen: argparse.Namespace, moments: int) -> Iterable[int]:
    """The seeds of the jobs of a kind: as many as have the moments that are asked for."""
    if chosen.seed:
        return [chosen.seed]
    return range(chosen.first, chosen.first - (-chosen.times // moments))


def chaos(stage: Stage, chosen: argparse.Namespace) -> None:
    """All runs."""
    kinds = chosen.fault or KINDS
    moments = {kind: 1 if kind in ONCE else min(chosen.moments, chosen.times) for kind in kinds}
    plan = [(kind, seed) for kind in kinds for seed in seeds(chosen, moments[kind])]
    # The jobs of a seed, one kind after the other. Drivers last: they end the session that the others share.
    plan.sort(key=lambda one: (one[0] == DRIVER, one[1]))
    print(f"{len(plan)} jobs on a cluster of two executors; each prints a line when it has ended", flush=True)
    report = Report(ARTIFACTS)
    directory = stage.enter(workspace("chaos"))
    service = CountingService()
    stage.enter(service.service)
    runs = stage.enter(Runs(directory, service, ARTIFACTS / "chaos", keep_all=chosen.keep))
    began = time.monotonic()
    for kind, seed in plan:
        outcome = runs.run(kind, seed, moments[kind])
        if stage.signal is not None:
            return  # A job that was cut off is neither right nor wrong.
        report.add(outcome)
    report.finish(time.monotonic() - began)
    if report.failed:
        sys.exit(1)


if __name__ == "__main__":
    asked = parse()
    sys.exit(run(lambda stage: chaos(stage, asked)))
