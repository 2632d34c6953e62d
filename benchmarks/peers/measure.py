"""Runs the peers in turns on each work, and checks that each has done all of it.

Law: a figure counts only if the warm-up turn has returned every row, with a result for each key that has one. A side
that fails is left out of the work, with its error as the reason; the others go on.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.peers import environments, services
from benchmarks.peers.process import Program
from benchmarks.peers.roster import CAPACITY, Peer, Work
from benchmarks.peers.task import Answer, Task


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of a peer at a work.

    Attributes:
        rate: rows per second of the median turn; 0 if there is none.
        rows: rows of a turn.
        requests: requests to the HTTP service for each row; None for other works.
        reason: why there is no rate.
    """

    rate: float = 0.0
    rows: int = 0
    requests: float | None = None
    reason: str = ""


Figures = dict[tuple[str, str], Figure]
"""By the names of peer and work."""


@dataclass(slots=True)
class _Side:
    peer: Peer
    program: Program
    task: Task
    seconds: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    reason: str = ""


def measured(peers: Sequence[Peer], works: Sequence[Work], turns: int, directory: Path) -> Figures:
    """The figures of peers at works."""
    figures: Figures = {}
    with contextlib.ExitStack() as stack:
        tasks: Mapping[str, Task] = {}
        if any(work.task == "postgres" for work in works):
            tasks = stack.enter_context(services.postgres(directory))
        for group in dict.fromkeys(peer.group for peer in peers):
            chosen = [peer for peer in peers if peer.group == group]
            with _programs(chosen, directory, figures, works) as programs:
                for work in works_of(group, works):
                    ready = [peer for peer in chosen if peer.name in programs]
                    sides = [_Side(peer, programs[peer.name], task_of(peer, work, tasks)) for peer in ready]
                    started = time.perf_counter()
                    print(f"{group}: {work.title} ...", end="", flush=True, file=sys.stderr)
                    _take_turns(sides, work, turns)
                    print(f" {time.perf_counter() - started:.0f} s", file=sys.stderr)
                    figures.update({(side.peer.name, work.name): _figure(side) for side in sides})
    return figures


def works_of(group: str, works: Sequence[Work]) -> list[Work]:
    """Those that there are for a group."""
    return [work for work in works if group in work.rows]


@contextlib.contextmanager
def _programs(
    peers: Sequence[Peer], directory: Path, figures: Figures, works: Sequence[Work]
) -> Iterator[dict[str, Program]]:
    """By the name of the peer; those of one environment may share one."""
    running: dict[tuple[str, str], Program] = {}
    programs: dict[str, Program] = {}
    for peer in peers:
        place = peer.environment, peer.program
        try:
            python = environments.python_of(peer.environment) if peer.environment else Path(sys.executable)
        except environments.UnavailableError as error:
            figures.update({(peer.name, work.name): Figure(reason=f"not installed: {error}") for work in works})
            continue
        log = directory / f"{peer.environment or 'ours'}-{peer.program}.log"
        programs[peer.name] = running.setdefault(place, Program(python, peer.program, log))
    try:
        yield programs
    finally:
        for program in running.values():
            program.close()


def task_of(peer: Peer, work: Work, tasks: Mapping[str, Task]) -> Task:
    """What a program gets for a work, apart from the address of a service.

    Args:
        tasks: those of `services.postgres`, where the work is one of them.
    """
    rows = peer.rows.get(work.name, work.rows[peer.group])
    task = tasks["distant" if work.distant else "postgres"] if work.task == "postgres" else Task("", work.task, 0)
    return replace(task, side=peer.side, rows=rows, ordered=work.ordered, capacity=CAPACITY, batch=work.batch)


def _take_turns(sides: Sequence[_Side], work: Work, turns: int) -> None:
    for turn in range(1 + turns):
        for side in sides:
            if not side.reason:
                answer, requests = _ask(side, work, check=turn == 0)
                side.reason = answer.cannot or answer.error or wrong(side.task, answer)
                if turn:
                    side.seconds.append(answer.seconds)
                    side.requests.append(requests)


def _ask(side: _Side, work: Work, check: bool) -> tuple[Answer, float]:
    """The answer, and how many requests were made."""
    task = replace(side.task, check=check)
    if work.task != "http":
        return side.program.ask(task, work.timeout), 0.0
    with services.http(task.rows) as service:
        answer = side.program.ask(replace(task, url=service.url, rate=services.ASKED), work.timeout)
        return answer, len(service.requests)


def wrong(task: Task, answer: Answer) -> str:
    """The rows that a program has lost or invented, in words; "" if none."""
    if answer.rows is not None and answer.rows != task.rows:
        return f"gave {answer.rows:,} rows for {task.rows:,}"
    if answer.found is None:
        return ""
    found = expected_found(task)
    return "" if answer.found == found else f"found {answer.found:,} of {found:,} rows"


def expected_found(task: Task) -> int:
    """How many rows of a task have an answer."""
    if task.work != "postgres":
        return task.rows
    planes = set(json.loads(Path(task.keys).with_name("planes.json").read_text(encoding="utf-8")))
    return sum(key in planes for key in task.values())


def _figure(side: _Side) -> Figure:
    if side.reason:
        return Figure(reason=side.reason, rows=side.task.rows)
    rows = side.task.rows
    requests = statistics.median(side.requests) / rows if side.task.work == "http" else None
    return Figure(rows / statistics.median(side.seconds), rows, requests)
