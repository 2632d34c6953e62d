"""The kinds of faults. Each strikes a running job."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import psutil

from tests.chaos.cluster import Cluster, Executor
from tests.chaos.jobs import KEYS, Job
from tests.chaos.service import Call, CountingService

T = TypeVar("T")

COPY = 30.0
"""Seconds in which Spark must have begun a copy of a slow task."""


@dataclass(slots=True)
class Strike:
    """What was done to a job.

    Attributes:
        what: in words, for the line of the run.
        killed: names of executors of which a process was killed.
        begun, ended: seconds of the wall clock.
        paused: seconds for which a process stood still.
    """

    what: str
    begun: float
    ended: float = 0.0
    killed: tuple[str, ...] = ()
    paused: float = 0.0


@dataclass(slots=True)
class Scene:
    """Where a fault strikes.

    Attributes:
        drawn: of the seed.
        run: the name of the run.
        over: whether the job has ended, or hangs.
        decommissioned: names of executors that are to end.
    """

    cluster: Cluster
    service: CountingService
    drawn: random.Random
    run: str
    job: Job
    over: Callable[[], bool]
    decommissioned: set[str] = field(default_factory=set)


Fault = Callable[[Scene], Strike | None]
"""Returns None if there was nothing to strike, because the job had ended."""


def _drawn(scene: Scene, candidates: Callable[[], Sequence[T]]) -> T | None:
    """One of the candidates. Waits while there is none, and returns None if the job ends before."""
    while not scene.over():
        if found := candidates():
            return scene.drawn.choice(found)
        time.sleep(0.02)
    return None


def _worker(scene: Scene) -> tuple[Executor, psutil.Process] | None:
    """A Python worker and its executor."""
    return _drawn(scene, lambda: [(one, worker) for one in scene.cluster.executors() for worker in one.workers()])


def kill_worker(scene: Scene) -> Strike | None:
    """SIGKILL for a Python worker."""
    if (victim := _worker(scene)) is None:
        return None
    executor, worker = victim
    return _kill("worker killed", executor, worker)


def kill_executor(scene: Scene) -> Strike | None:
    """SIGKILL for the JVM of an executor. Its Python processes must end by themselves."""
    if (executor := _drawn(scene, scene.cluster.executors)) is None:
        return None
    return _kill("executor killed", executor, executor.process)


def _kill(what: str, executor: Executor, process: psutil.Process) -> Strike:
    begun = time.time()
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return Strike(f"{what}: it had ended", begun, time.time())
    return Strike(what, begun, time.time(), (executor.name,))


def pause(scene: Scene) -> Strike | None:
    """SIGSTOP for a Python worker or a JVM, for 1 to 5 seconds."""
    if (victim := _worker(scene)) is None:
        return None
    executor, worker = victim
    what, process = scene.drawn.choice([("worker", worker), ("executor", executor.process)])
    seconds, begun = scene.drawn.uniform(1.0, 5.0), time.time()
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)
        finally:
            process.send_signal(signal.SIGCONT)
    return Strike(f"{what} stopped {seconds:.1f} s", begun, time.time(), paused=seconds)


def hold_a_key(scene: Scene) -> None:
    """Before a job: the first call for a drawn key is not answered, so that its task is slow."""
    slow, first = scene.drawn.randrange(KEYS), list[Call]()

    def held(call: Call) -> bool:
        if call.run != scene.run or call.lookup or call.key != slow or (first and first[0] is not call):
            return False
        first[:] = [call]
        return True

    scene.service.hold = held


def wait_for_a_copy(scene: Scene) -> Strike | None:
    """A task is slow until the job has its rows from a copy of it."""
    begun = time.time()
    while not scene.over() and time.time() < begun + COPY:
        time.sleep(0.02)
    scene.service.release()
    return Strike("a call held", begun, time.time())


def lose_shuffle_files(scene: Scene) -> Strike | None:
    """The shuffle files of an executor are deleted, or it is killed, while or before the second stage reads them."""
    if scene.drawn.random() < 0.5:
        return kill_executor(scene)
    begun = time.time()
    places = sorted({file.parents[1] for file in (scene.cluster.directory / "executors").rglob("shuffle_*.data")})
    if scene.over() or not places:
        return None
    deleted = 0
    for file in scene.drawn.choice(places).rglob("shuffle_*"):
        file.unlink(missing_ok=True)
        deleted += 1
    return Strike(f"{deleted} shuffle files deleted", begun, time.time())


def decommission(scene: Scene) -> Strike | None:
    """SIGPWR for the JVM of an executor: it ends its tasks, gets no new ones, and exits."""
    others = lambda: [one for one in scene.cluster.executors() if one.name not in scene.decommissioned]  # noqa: E731
    if (executor := _drawn(scene, others)) is None:
        return None
    scene.decommissioned.add(executor.name)
    begun = time.time()
    with contextlib.suppress(psutil.NoSuchProcess):
        executor.process.send_signal(signal.SIGPWR)
    return Strike("executor decommissioned", begun, time.time())


FAULTS: dict[str, Fault] = {
    "worker": kill_worker,
    "executor": kill_executor,
    "pause": pause,
    "speculation": wait_for_a_copy,
    "shuffle": lose_shuffle_files,
    "decommission": decommission,
}

DRIVER = "driver"
"""The kind of fault that needs drivers of its own: see `streams`."""

ONCE = frozenset({"speculation"})
"""Kinds that come once in a job. Spark copies a slow task after half of the tasks have ended, so a second one would
come too late."""
