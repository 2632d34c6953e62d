"""Laws J2, J4 and J7 against models of a disk and of an object store, with kills between any two of their steps."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.compaction import Compactor
from asyncio_operator.journal.files import Seen, list_journal
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place
from asyncio_operator.journal.writer import JournalWriter
from asyncio_operator.testing import ManualClock
from tests.journal.helpers import append, compact
from tests.journal.stores import Fuse, ModelDisk, ModelStore

KEYS = range(4)

WANTED = wanted_description("model", pa.schema([("id", pa.int64())]), pa.schema([("v", pa.string())]))


class Said(NamedTuple):
    """An answer that a writer was given. `rows` is empty for a miss."""

    key: int
    order: tuple[float, str, int]
    rows: tuple[str, ...]
    expires: float


class Run:
    """A writer, and what it was given since its last acknowledgement."""

    def __init__(self, writer: JournalWriter, expire_after: float | None) -> None:
        self.writer = writer
        self.expire_after = expire_after
        self.pending: list[Said] = []
        self.calls = 0


class Step(NamedTuple):
    """A compaction by hand, between its reading and its record."""

    compactor: Compactor
    inputs: list[str]
    tables: list[pa.Table]


class JournalModel(RuleBasedStateMachine):
    """Everything that a writer acknowledged is there, whole and once; nothing else but what it was given."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.fuse = Fuse()
        self.clock = ManualClock(1_000_000.0)
        self.acknowledged: list[Said] = []
        self.given: list[Said] = []
        self.runs: list[Run] = []
        self.step: Step | None = None
        self.plan: tuple[Seen, set[int]] | None = None
        self.number = 0

    @initialize()
    def make(self) -> None:
        self.description = open_journal(self.place, WANTED)

    def teardown(self) -> None:
        self.fuse.left = None
        self.settle()
        self.check()

    def settle(self) -> None:
        """Listings show the existing files."""

    def repair(self) -> None:
        """The place answers: compactions repeat nothing, because they may be run again."""

    @property
    def lags(self) -> bool:
        return False

    # -- writers

    def run_of(self, number: int, expire_after: float | None) -> Run:
        """One of at most three writers that are open; a new one if there are fewer."""
        if number >= len(self.runs):
            writer = JournalWriter(
                self.place,
                self.description,
                flush_every=0.0,
                drive=lambda _: None,
                expire_after=expire_after,
                first_pause=0.0001,
                clock=self.clock,
            )
            self.runs.append(Run(writer, expire_after))
        return self.runs[min(number, len(self.runs) - 1)]

    @rule(
        number=st.integers(0, 2),
        expire_after=st.sampled_from([None, 5.0, 20.0]),
        answers=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3)), min_size=1, max_size=3),
        ago=st.sampled_from([0, 0, 0, 1, 4]),
        flushed=st.booleans(),
    )
    def append(
        self, number: int, expire_after: float | None, answers: list[tuple[int, int]], ago: int, flushed: bool
    ) -> None:
        run = self.run_of(number, expire_after)
        time = self.clock() - ago
        values: list[str] = []
        for key, count in answers:
            self.number += 1
            rows = tuple(f"{self.number}/{row}" for row in range(count))
            values += rows
            expires = np.inf if run.expire_after is None else time + run.expire_after
            said = Said(key, (time, run.writer.run, run.calls), rows, expires)
            run.calls += 1
            run.pending.append(said)
            self.given.append(said)
        keys = pa.array([key for key, _ in answers], pa.int32())
        rows_table = pa.table({"v": pa.array(values, pa.string())})
        counts = np.array([count for _, count in answers])
        append(run.writer, AnswerBatch(keys, in_order(rows_table, counts), time))
        if flushed:
            self.write(run)

    def write(self, run: Run) -> None:
        try:
            run.writer.write_due()
            run.writer.check()
        except JournalError:
            self.runs.remove(run)
        else:
            self.acknowledged += run.pending
            run.pending = []

    @precondition(lambda self: any(run.pending for run in self.runs))
    @rule(data=st.data(), killed=st.sampled_from([None, *range(7)]))
    def flush(self, data: st.DataObject, killed: int | None) -> None:
        run = data.draw(st.sampled_from([run for run in self.runs if run.pending]))
        self.fuse.left = killed
        self.write(run)
        self.fuse.left = None

    # -- time, compactions

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        grace=st.sampled_from([0.0, 5.0]),
        buckets=st.sampled_from([1, 3]),
        killed=st.sampled_from([None, None, *range(10)]),
    )
    def compact(self, grace: float, buckets: int, killed: int | None) -> None:
        self.repair()
        self.fuse.left = killed
        try:
            compact(self.place, self.description, grace=grace, buckets=buckets, clock=self.clock)
        except JournalError:
            pass
        except FileNotFoundError:
            assert self.lags
        self.fuse.left = None

    @precondition(lambda self: self.step is None)
    @rule()
    def begin_another_compaction(self) -> None:
        compactor = Compactor(self.place, self.description, clock=self.clock)
        try:
            inputs = list(compactor.inputs())
            tables = [table for name in inputs for table in compactor.read(name)]
        except FileNotFoundError:
            assert self.lags
            return
        self.step = Step(compactor, inputs, tables)

    @precondition(lambda self: self.step is not None)
    @rule(records=st.booleans())
    def end_another_compaction(self, records: bool) -> None:
        assert self.step is not None
        compactor, inputs, tables = self.step
        self.step = None
        self.repair()
        if tables:
            name, _ = compactor.write(pa.concat_tables(tables))
            if records:
                compactor.commit([name] if name else [], inputs)

    # -- readers

    @rule()
    def plan_a_job(self) -> None:
        """What Spark's join finds, and what its tasks get of it."""
        listing = list_journal(self.place)
        known = JournalReader(self.place, self.description, clock=self.clock).read(pa.array(KEYS))
        self.plan = Seen.of(entry.name for entry in listing.files), {key for key in KEYS if known.counts[key] >= 0}

    @precondition(lambda self: self.plan is not None and not self.lags)
    @rule()
    def read_what_came_since_the_plan(self) -> None:
        assert self.plan is not None
        seen, known = self.plan
        later = JournalReader(self.place, self.description, since=seen, clock=self.clock).read(pa.array(KEYS))
        for key in KEYS:
            if any(one.key == key and one.expires > self.clock() for one in self.acknowledged):
                assert key in known or later.counts[key] >= 0, key

    @rule(expire_after=st.sampled_from([None, 4.0]))
    def check(self, expire_after: float | None = None) -> None:
        reader = JournalReader(self.place, self.description, expire_after=expire_after, clock=self.clock)
        found = reader.read(pa.array([*reversed(KEYS)], pa.int32()))
        for place, key in enumerate(reversed(KEYS)):
            start, count = int(found.starts[place]), int(found.counts[place])
            rows = tuple(found.table["v"].slice(start, count).to_pylist()) if count > 0 else ()
            self.check_answer(key, None if count < 0 else rows, expire_after)

    def check_answer(self, key: int, rows: tuple[str, ...] | None, expire_after: float | None) -> None:
        def alive(said: Said) -> bool:
            shortened = np.inf if expire_after is None else said.order[0] + expire_after
            return said.key == key and min(said.expires, shortened) > self.clock()

        due = max((said.order for said in self.acknowledged if alive(said)), default=None)
        if rows is None:
            assert due is None or self.lags, f"the answer for {key} is lost"
            return
        candidates = [said for said in self.given if alive(said) and said.rows == rows]
        assert candidates, f"{rows} for {key} is half, doubled, expired, or of another key"
        if not self.lags and due is not None:
            # An answer that was not acknowledged may be there all the same.
            assert max(said.order for said in candidates) >= due, f"{rows} for {key} is not the latest"


class OnDisk(JournalModel):
    def __init__(self) -> None:
        super().__init__()
        self.disk = ModelDisk(self.fuse)
        self.place = Place("/journal", self.disk)

    @rule(seed=st.integers(0, 1000))
    def cut_power(self, seed: int) -> None:
        self.runs.clear()
        self.step = self.plan = None
        # Not drawn one by one: how many choices there are depends on names, which are random.
        chosen = random.Random(seed)
        self.disk.cut_power(lambda: chosen.random() < 0.5)


class OnStore(JournalModel):
    def __init__(self) -> None:
        super().__init__()
        self.store = ModelStore(self.fuse)
        self.place = Place("bucket/journal", self.store)

    @property
    def lags(self) -> bool:
        return bool(self.store.hidden or self.store.ghosts)

    @rule(refusals=st.integers(0, 2), lost=st.integers(0, 2))
    def fail(self, refusals: int, lost: int) -> None:
        self.store.refusals, self.store.lost_replies = refusals, lost

    @rule()
    def lag(self) -> None:
        self.store.lags = True

    @rule()
    def settle(self) -> None:
        self.store.settle()

    @precondition(lambda self: self.store.late)
    @rule(data=st.data())
    def carry_out_a_late_put(self, data: st.DataObject) -> None:
        name, written = data.draw(st.sampled_from(self.store.late))
        self.store.objects[name] = written

    def repair(self) -> None:
        self.store.refusals = self.store.lost_replies = 0


SETTINGS = settings(max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))

TestJ2J4J7OnDisk = OnDisk.TestCase
TestJ2J4J7OnDisk.settings = SETTINGS
TestJ2J4J7OnStore = OnStore.TestCase
TestJ2J4J7OnStore.settings = SETTINGS


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [OnDisk, OnStore])
def test_J2_J4_J7_in_a_thousand_histories(machine: type[JournalModel]) -> None:
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=1000))
