"""Measures one peer by itself: `python -m benchmarks.peers NAME --json FILE`.

The first turn of a work warms up and is not counted. In "faults", a worker of the peer is killed when half of the rows
have been asked, if it has workers: processes of its own, apart from the program and its JVM, that call the service.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import psutil

from asyncio_operator.testing import FakeRequest
from benchmarks.peers import environments, services, trials
from benchmarks.peers.measure import expected_found, task_of
from benchmarks.peers.process import Program
from benchmarks.peers.processes import cpu_seconds, kill_worker
from benchmarks.peers.report import java_version, version
from benchmarks.peers.results import Result, Turn, WorkResult, compared
from benchmarks.peers.roster import Peer, Work
from benchmarks.peers.task import SERVED, Answer, Task

PRICE = 0.001
"""Dollars for a key, as a small answer of a model costs."""


def measured_alone(peer: Peer, works: Sequence[Work], turns: int, price: float, directory: Path) -> Result:
    """The result of a peer at these works, of which those of other groups are left out."""
    works = [work for work in works if peer.group in work.rows and (peer.models or not work.models)]
    machine = {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "busy": round(psutil.cpu_percent(1.0) / 100, 2),
    }
    versions = {"python": platform.python_version(), "java": java_version()}
    versions |= {name: metadata.version(name) for name in ("pyspark", "asyncio-operator")}
    try:
        if peer.reason:
            raise environments.UnavailableError(peer.reason)
        python = environments.python_of(peer.environment) if peer.environment else Path(sys.executable)
        done = _all(peer, works, turns, price, directory, python)
    except environments.UnavailableError as error:
        done = {work.name: WorkResult(0, reason=f"not installed: {error}") for work in works}
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Result(peer.name, version(peer), peer.group, machine, versions, day, price, done)


def _all(
    peer: Peer, works: Sequence[Work], turns: int, price: float, directory: Path, python: Path
) -> dict[str, WorkResult]:
    done: dict[str, WorkResult] = {}
    with contextlib.ExitStack() as stack:
        tasks: Mapping[str, Task] = {}
        if any(work.task == "postgres" for work in works):
            tasks = stack.enter_context(services.postgres(directory))
        program = Program(python, peer.program, directory / f"{peer.program}.log")
        stack.callback(program.close)
        for work in works:
            print(f"{peer.name}: {work.title} ...", file=sys.stderr, flush=True)
            task = task_of(peer, work, tasks)
            task = trials.prepared(task, directory) if work.task in trials.PATIENCE else task
            done[work.name] = _work(program, peer, work, task, turns, price)
    return done


def _work(program: Program, peer: Peer, work: Work, task: Task, turns: int, price: float) -> WorkResult:
    first, cannot = _turn(program, peer, work, replace(task, check=True), price)
    if cannot or (first.error and work.task not in trials.PATIENCE):
        return WorkResult(task.rows, reason=cannot or first.error)
    taken = [_turn(program, peer, work, task, price)[0] for _ in range(turns)]
    return WorkResult(task.rows, taken)


def _turn(program: Program, peer: Peer, work: Work, task: Task, price: float) -> tuple[Turn, str]:
    """One run, and why the program has no way to do it."""
    killed: list[bool] = []

    def half(port: int) -> None:
        killed.append(kill_worker(program.pid, port))

    before = cpu_seconds(program.pid)
    with _serving(task, half if work.name == "faults" else None) as (task, requests):
        answer = program.ask(task, work.timeout)
        asked = trials.counts_of(requests) if task.work in SERVED else None
        tokens = trials.tokens_of(requests) if peer.models else None
    if answer.cannot:
        return Turn(), answer.cannot
    error = answer.error
    rows = {"right": 0, "lost": task.rows, "doubled": 0, "wrong": 0} if error else _rows(task, answer)
    seconds = None if error else round(answer.seconds, 4)
    # What a killed process had spent is not known any more.
    spent = None if error or any(killed) else round(cpu_seconds(program.pid) - before, 2)
    turn = Turn(seconds, spent, killed=any(killed), error=error, **rows)
    if asked is not None:
        money = round(asked.keys * price, 6)
        turn = replace(turn, calls=asked.calls, refused=asked.refused, repeated=asked.repeated, money=money)
        turn = replace(turn, tokens=tokens)
    return turn, ""


@contextlib.contextmanager
def _serving(task: Task, half: Callable[[int], None] | None) -> Iterator[tuple[Task, list[FakeRequest]]]:
    """The task with the address of its service, and what the service is asked."""
    if task.work == "http":
        with services.http(task.rows) as service:
            yield replace(task, url=service.url, rate=services.ASKED), service.requests
    elif task.work in SERVED:
        with trials.TrialService(task.work, task.rows, half) as trial:
            yield replace(task, url=trial.url), trial.requests
    else:
        yield task, []


def _rows(task: Task, answer: Answer) -> dict[str, int | None]:
    """How many rows are right, lost, doubled and wrong: from their answers, or only from their number."""
    if answer.answers is not None:
        return {**compared(Counter(map(trials.name_of, task.values())), Counter(answer.answers))}
    if answer.found is None:
        return {}
    rows = task.rows if answer.rows is None else answer.rows
    expected = expected_found(task)
    missing = max(expected - answer.found, task.rows - rows, 0)
    return {
        "right": task.rows - missing,
        "lost": missing,
        "doubled": max(rows - task.rows, 0),
        "wrong": max(answer.found - expected, 0),
    }
