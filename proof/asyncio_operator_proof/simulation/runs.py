"""Runs a scenario: real tasks in simulated workers, on one thread, until all of them have ended."""

from __future__ import annotations

import gc
import logging
import random
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncio_operator.arrow.answer_tables import row_finder
from asyncio_operator.engine.options import meant
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import open_place
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.build_task import EnrichOptions, enrich_task
from asyncio_operator.spark.driver.columns import key_types, spark_schema
from asyncio_operator.spark.worker.links import EnrichTask
from asyncio_operator.spark.worker.task_journal import JournalTask
from asyncio_operator.testing.time import require_no_loop
from asyncio_operator_proof.history.event_format import Event, History
from asyncio_operator_proof.simulation.compacting import SimulatedCompaction
from asyncio_operator_proof.simulation.distant_coordinator import SimulatedCoordinator
from asyncio_operator_proof.simulation.given import MakeEnricher, enricher_of
from asyncio_operator_proof.simulation.lookup_settings import chunk, setting
from asyncio_operator_proof.simulation.recorded import RecordedEnricher, RecordedTable
from asyncio_operator_proof.simulation.scenario import Coordinator, Kill, Lookup, Scenario
from asyncio_operator_proof.simulation.simulated_enricher import SimulatedColumns, SimulatedEnricher, SimulatedTable
from asyncio_operator_proof.simulation.simulated_service import KEY, PART, ROW, SimulatedService
from asyncio_operator_proof.simulation.simulated_workers import Worker
from asyncio_operator_proof.simulation.tasks import Attempt
from asyncio_operator_proof.simulation.world import ROUNDING, World
from asyncio_operator_proof.simulation.writing import Notes

LONGEST = 3600.0
"""Seconds of the simulated world after which it hangs."""

HANDOVER = 0.2
"""Seconds in which rows leave that are ready, as law X9 has it."""

MOST_ATTEMPTS = 4
"""Of one task, as in Spark."""


@dataclass(frozen=True)
class Outcome:
    """What has happened.

    Attributes:
        attempts: the last attempt of each task, by its place.
        services: of the lookups: they know the truth.
        columns: the columns that each lookup adds, without its status column.
        heaviest: what a call under the budget weighed at most when it was about to start, by unit.
        problems: what went wrong beside the rows: tasks that hang, errors that were lost.
    """

    history: History
    attempts: tuple[Attempt, ...]
    services: tuple[SimulatedService, ...]
    columns: tuple[pa.Schema, ...]
    heaviest: Mapping[str, float]
    problems: tuple[str, ...]


def outcome_of(scenario: Scenario, make: MakeEnricher | None = None) -> Outcome:
    """Run a scenario. The same scenario has the same outcome.

    Args:
        make: makes the enricher of a lookup for a worker; None: a `SimulatedEnricher`.

    Raises:
        ConfigurationError: a loop runs in this thread.
    """
    require_no_loop("Simulation", "simulation.check")
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="simulation-") as directory, _alone(scenario.seed):
        return _Run(scenario, Path(directory), make).outcome()


_one_at_a_time = threading.RLock()
"""Held by the run that owns the state of the process."""


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """What else depends on the process: its source of randomness, its log, and when memory is freed."""
    state, collects, disabled = random.getstate(), gc.isenabled(), logging.root.manager.disable
    random.seed(f"process {seed}")
    gc.disable()
    logging.disable()
    try:
        yield
    finally:
        random.setstate(state)
        logging.disable(disabled)
        if collects:
            gc.enable()


class _Run:
    def __init__(self, scenario: Scenario, directory: Path, make: MakeEnricher | None) -> None:
        self._scenario = scenario
        self._directory = directory
        self._make = make
        self._world = World()
        self._notes = Notes(lambda: self._world.now)
        now = lambda: self._world.now  # noqa: E731
        self._services = tuple(
            SimulatedService(one, scenario.seed, number, scenario.kind, scenario.rows, now)
            for number, one in enumerate(scenario.lookups)
        )
        self._budget = self._shared_budget()
        self._rates = [self._rate(number, one) for number, one in enumerate(scenario.lookups)]
        self._problems: list[str] = []
        self._every: list[Worker] = []
        self._workers: dict[int, Worker | None] = {}
        self._running: dict[int, Attempt] = {}
        self._ended: dict[int, Attempt] = {}
        self._waiting: list[tuple[int, int]] = []
        self._tasks: dict[str, list[EnrichTask]] = {}
        self._inputs = [_rows(scenario, place) for place in range(len(scenario.tasks))]

    def outcome(self) -> Outcome:
        try:
            settings = self._begin_world()
            self._run_world()
        finally:
            self._notes.open = False
            for worker in self._every:
                worker.end()
        for number, event in enumerate(settings):
            event["chunk"] = chunk(event["buffer"], self._notes.largest.get(number, 0))
        attempts = tuple(self._ended.get(place) or self._running[place] for place in range(len(self._scenario.tasks)))
        columns = tuple(made.layout.found for made in next(iter(self._tasks.values())))
        notes, problems = self._notes, tuple(self._problems)
        return Outcome(notes.history(), attempts, self._services, columns, notes.heaviest, problems)

    def _begin_world(self) -> list[Event]:
        """Begin the workers and the history, and let all that was drawn happen at its time. Returns the settings."""
        scenario, world = self._scenario, self._world
        for number in sorted({task.worker for task in scenario.tasks}):
            self._begin_worker(number, 0)
        fast = max((abs(fast) for _, fast in scenario.clocks), default=0.0)
        ahead = [0.0, *(ahead for ahead, _ in scenario.clocks)]
        clocks = max(ahead) - min(ahead)
        # A lookup that is followed by another leaves its rows to that one.
        ready = len(scenario.lookups) == 1 and not any(task.slow for task in scenario.tasks)
        about: dict[str, Any] = {"consumer": "ready", "handover": HANDOVER} if ready else {}
        if fast:
            # The timers of such a clock are rounded.
            about |= {"drift": fast, "slack": ROUNDING}
        self._notes.begin(source=f"Simulation({scenario.seed})", clocks=clocks or None, **about)
        settings = [
            self._notes.setting(
                **setting(number, lookup, made, self._services[number].is_single, self._make is not None)
            )
            for number, (lookup, made) in enumerate(
                zip(scenario.lookups, next(iter(self._tasks.values())), strict=True)
            )
        ]
        for place, task in enumerate(scenario.tasks):
            world.at(task.starts, lambda place=place: self._begin(place, 0))  # type: ignore[misc]
        self._compact()
        for kill in scenario.kills:
            world.at(kill.at, lambda kill=kill: self._kill(kill))  # type: ignore[misc]
        if scenario.budget is not None:
            for begin, end in scenario.coordinator.down:
                world.at(begin, lambda: self._fault("coordinator_down"))
                world.at(end, lambda: self._fault("coordinator_up"))
        return settings

    def _run_world(self) -> None:
        """Let time pass until all tasks have ended."""
        world, notes, count = self._world, self._notes, len(self._scenario.tasks)
        ended = world.run(LONGEST, lambda: notes.interrupted is not None or len(self._ended) == count)
        if notes.interrupted is not None:
            raise notes.interrupted
        if not ended:
            missing = [task for task in range(count) if task not in self._ended]
            self._problems.append(f"after {world.now:.6g} s these tasks have not ended: {missing}")
        for worker in self._every:
            if not worker.process.dead:
                self._problems += [_shown(context) for context in worker.process.errors]

    def _fault(self, what: str) -> None:
        assert self._scenario.budget is not None
        self._notes.add("fault", what=what, budget=self._scenario.budget.name)

    def _compact(self) -> None:
        """Let compactions begin at their times."""
        source = random.Random(f"compactions of {self._scenario.seed}")
        for one in self._scenario.compactions:
            journal = next(iter(self._tasks.values()))[one.lookup].journal
            if journal is None:
                continue
            compaction = SimulatedCompaction(
                one,
                open_place(journal.journal.location),
                journal.description,
                self._world,
                lambda: f"{source.getrandbits(128):032x}",
                lambda what: self._notes.add("fault", what=what),
            )
            self._world.at(one.at, compaction.begin)

    def _shared_budget(self) -> Budget | None:
        scenario = self._scenario
        if scenario.budget is None:
            return None
        return self._kept(scenario.budget, scenario.coordinator)

    def _rate(self, number: int, lookup: Lookup) -> Budget | None:
        """What the driver makes of the `rate_limit` of a lookup. The driver answers while the application runs."""
        limit = meant("rate_limit", lookup.options.get("rate_limit"))
        if limit is None:
            return None
        behaviour = replace(self._scenario.coordinator, lost=0.0, down=())
        return self._kept(Budget(f"rate limit of lookup {number}", limit), behaviour)

    def _kept(self, budget: Budget, behaviour: Coordinator) -> Budget:
        """The budget, kept by a coordinator."""
        kept = copy(budget)
        coordinator = SimulatedCoordinator(behaviour, self._scenario.seed, self._world, self._notes)
        object.__setattr__(kept, "reach", coordinator)
        return kept

    # -- workers

    def _begin_worker(self, number: int, life: int) -> Worker:
        scenario = self._scenario
        clock = scenario.clocks[number] if number < len(scenario.clocks) else (0.0, 0.0)
        worker = Worker(self._world, number, life, self._directory, scenario.seed, clock)
        self._workers[number] = worker
        self._every.append(worker)
        if life:
            worker.take_over(next(one for one in self._every if one.number == number and one.life == life - 1))
        self._tasks[worker.name] = self._lookups(worker)
        return worker

    def _lookups(self, worker: Worker) -> list[EnrichTask]:
        """What the driver makes of the lookups, for a worker."""
        scenario = self._scenario
        schema = spark_schema(self._inputs[0].schema)
        tasks = []
        for number, lookup in enumerate(scenario.lookups):
            task, schema = self._lookup(worker, number, lookup, schema)
            tasks.append(task)
        return tasks

    def _lookup(self, worker: Worker, number: int, lookup: Lookup, schema: Any) -> tuple[EnrichTask, Any]:
        given = dict(lookup.options)
        if given.get("budget") is True:
            given["budget"] = self._budget
        if isinstance(given.get("budget"), bool):
            del given["budget"]
        given["rate_limit"], rate = None, self._rates[number]
        if rate is not None and given.get("budget") is None:
            given["budget"] = rate
        elif rate is not None:
            given["budget"] = both = copy(given["budget"])
            object.__setattr__(both, "beside", rate)
        cache = given.get("cache")
        if cache is not None and cache is not True and cache.store == "rocksdb":
            given["cache"] = replace(cache, directory=str(worker.directory / f"cache{number}"))
        if lookup.journal is not None:
            given["journal"] = Journal(self._directory / f"journal{number}", identity=f"no {number}", **lookup.journal)
        service = self._services[number]
        kind = SimulatedTable if lookup.table else SimulatedColumns if lookup.columns else SimulatedEnricher
        inner = kind(service, lookup.batches, lookup.pair) if self._make is None else enricher_of(self._make, service)
        name = f"{inner!r} {number}"
        recorded = RecordedEnricher if row_finder(inner) is None else RecordedTable
        enricher = recorded(inner, number, self._notes, name, given.get("hedge") is not None, service.reasons)
        first = f"k{number - 1}" if lookup.from_before else KEY
        on = [first, PART] if lookup.pair else first
        options = EnrichOptions.among({"on": on, **given})
        task, added = enrich_task(schema, enricher, options)
        if options.journal is not None:
            task = replace(task, journal=self._journal(options.journal, schema, task))
        return task, added

    def _journal(self, journal: Journal, schema: Any, task: EnrichTask) -> JournalTask:
        keys = key_types(schema, task.enricher, task.layout.keys)
        (self._directory / journal.path).mkdir(exist_ok=True)
        wanted = wanted_description(str(journal.identity), keys, task.answers)
        description = open_journal(open_place(journal.location), wanted)
        return JournalTask(journal, description, Seen(), False, "simulation")

    # -- tasks

    def _begin(self, place: int, attempt: int) -> None:
        task = self._scenario.tasks[place]
        worker = self._workers[task.worker]
        if worker is None:
            self._waiting.append((place, attempt))
            return
        name = f"{place}.{attempt}"
        run = Attempt(name, task, worker, self._tasks[worker.name], self._inputs[place], self._notes)
        self._running[place] = run
        self._notes.add("task_started", task=name, worker=worker.name, partition=place, attempt=attempt)

        def start() -> None:
            running = worker.loop.create_task(run.run())
            running.add_done_callback(lambda _: self._end(place, run))

        worker.loop.call_soon(start)

    def _end(self, place: int, attempt: Attempt) -> None:
        if self._notes.open and not attempt.worker.process.dead:
            self._ended[place] = attempt
            del self._running[place]

    def _kill(self, kill: Kill) -> None:
        """Kill a worker, if it runs."""
        worker = self._workers.get(kill.worker)
        if worker is None:
            return
        worker.process.dead = True
        self._workers[kill.worker] = None
        self._problems += [_shown(context) for context in worker.process.errors]
        self._notes.add("fault", what="kill", task=None)
        for place, attempt in sorted(self._running.items()):
            if attempt.worker is not worker:
                continue
            self._notes.killed.add(attempt.name)
            self._notes.add("task_ended", task=attempt.name, outcome="killed")
            number = int(attempt.name.partition(".")[2]) + 1
            if number < MOST_ATTEMPTS:
                self._waiting.append((place, number))
            else:
                attempt.outcome = "killed"
                self._ended[place] = attempt
            del self._running[place]
        self._world.at(self._world.now + kill.back, lambda: self._replace(worker))

    def _replace(self, worker: Worker) -> None:
        self._begin_worker(worker.number, worker.life + 1)
        waiting, self._waiting = self._waiting, []
        for place, attempt in waiting:
            self._begin(place, attempt)


def _rows(scenario: Scenario, place: int) -> pa.Table:
    task = scenario.tasks[place]
    kind = pa.int64() if scenario.kind == "long" else pa.string()
    columns = {ROW: pa.array(range(len(task.keys)), pa.int64()), KEY: pa.array(task.keys, kind)}
    if scenario.pairs:
        columns[PART] = pa.array([task.part(row) for row in range(len(task.keys))], pa.string())
    return pa.table(columns)


def _shown(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"an error was lost: {context.get('message')}" + (f" ({type(error).__name__}: {error})" if error else "")
