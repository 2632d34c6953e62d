"""A journal on a local disk: random answers and compactions, and what has to be there.

Laws J2, J4 and J7: what was acknowledged is there, a file is whole or absent, compaction changes no answer. Damage is
an error that names the file.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401, because Arrow imports it at its first conversion: better once, before the forks.
import pyarrow as pa
import pyarrow.parquet as pq

from asyncio_operator.arrow.column_answers import in_order
from asyncio_operator.errors import StateError
from asyncio_operator.journal.answers import AnswerBatch
from asyncio_operator.journal.format import Description, JournalError
from asyncio_operator.journal.identity import open_journal, wanted_description
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.storage import Place
from asyncio_operator.journal.writer import JournalWriter
from tests.disks.processes import Say
from tests.disks.wrong import Begun, Outcome, WrongError, difference
from tests.journal.helpers import append, compact

KEYS = 40
BEGUN = 1_800_000_000.0

View = dict[Any, list[str]]


class JournalWork:
    """One run of random operations on a journal. See `runs.Work`."""

    name = "journal"

    def __init__(self, seed: int) -> None:
        drawn = random.Random(f"journal {seed}")
        self._size = drawn.choice([3, 300, 20_000])
        self._buckets = drawn.choice([1, 4])
        self.operations = [self._draw(drawn) for _ in range(drawn.choice([5, 15, 40]))]

    def _draw(self, drawn: random.Random) -> tuple[Any, ...]:
        kind = drawn.choice(["write"] * 6 + ["compact", "new writer"])
        if kind == "compact":
            return kind, drawn.choice([0.0, 0.0, 3.0])
        if kind == "new writer":
            return kind, drawn.choice([None, None, 15.0])
        keys = drawn.sample(range(KEYS), drawn.randint(1, 10))
        # Without a row: a miss.
        return kind, {key: self._rows(drawn) for key in keys}

    def _rows(self, drawn: random.Random) -> list[str]:
        return [drawn.randbytes(drawn.randrange(self._size)).hex() for _ in range(drawn.choice([0, 1, 1, 1, 2]))]

    def _view(self, done: int, now: float) -> View:
        """What is known after some operations: of each key the latest answer that lives."""
        found: View = {}
        expire: float | None = None
        for number, (kind, given) in enumerate(self.operations[:done]):
            if kind == "new writer":
                expire = given
            elif kind == "write" and (expire is None or BEGUN + number + expire > now):
                found |= given
        return found

    def work(self, directory: Path, begun: Begun, say: Say) -> None:
        place = Place(str(directory / "journal"))
        description = _described(place)
        expires = [given for kind, given in self.operations[: begun.at] if kind == "new writer"]
        writer = _writer(place, description, expires[-1] if expires else None)
        for number, (kind, given) in enumerate(self.operations[begun.at :], begun.at):
            if kind == "compact":
                now = BEGUN + number
                compact(place, description, grace=given, buckets=self._buckets, clock=partial(float, now))
            elif kind == "new writer":
                writer.close()
                writer = _writer(place, description, given)
            else:
                for batch in _batches(given, BEGUN + number):
                    append(writer, batch)
                writer.write_due()
                writer.check()
            say("done")
        writer.close()

    def check(self, directory: Path, begun: Begun, done: int) -> Begun:
        now = BEGUN + done
        found = self._read(directory, now)
        before = self._view(done, now)
        for file in (directory / "journal").glob("*.parquet"):
            pq.ParquetFile(file).read()  # Law J3.
        if found == before:
            return Begun(done)
        if found == self._view(done + 1, now):
            return Begun(done + 1)
        raise WrongError(difference(found, before))

    def read_damaged(self, directory: Path, file: str, how: str, begun: Begun) -> Outcome:
        now = BEGUN + begun.at
        wanted = self._view(begun.at, now)
        try:
            found = self._read(directory, now)
        except (JournalError, OSError, StateError) as error:
            # Of a description only its directory is named, because it is the journal's.
            named = str(directory / "journal") if "description" in file else str(directory / file)
            if named not in str(error):
                raise WrongError(f"an error that does not name {file}") from error
            return Outcome.ERROR
        if found == wanted:
            return Outcome.RIGHT
        for key, answer in found.items():
            if answer != wanted.get(key):
                # A file whose end is gone is taken for one that was never complete: what it replaced counts.
                if how != "flip" and any(answer == self._view(one, now).get(key) for one in range(begun.at)):
                    return Outcome.OLDER
                raise WrongError(f"{key!r} is {answer!r:.200}, and must be {wanted.get(key)!r:.200}")
        if how == "flip":
            raise WrongError(f"a flipped bit took away {sorted(wanted.keys() - found.keys())}")
        return Outcome.MISSING

    def _read(self, directory: Path, now: float) -> View:
        place = Place(str(directory / "journal"))
        known = JournalReader(place, _described(place), clock=lambda: now).read(pa.array(range(KEYS)))
        values = known.table["v"].to_pylist()
        spans = zip(known.starts.tolist(), known.counts.tolist(), strict=True)
        return {key: values[start : start + count] for key, (start, count) in enumerate(spans) if count >= 0}


def _described(place: Place) -> Description:
    schema = pa.schema([("id", pa.int64())]), pa.schema([("v", pa.string())])
    return open_journal(place, wanted_description("test", *schema))


def _writer(place: Place, description: Description, expire: float | None) -> JournalWriter:
    return JournalWriter(place, description, flush_every=0.0, expire_after=expire, drive=lambda _: None)


def _batches(answers: dict[int, list[str]], time: float) -> list[AnswerBatch]:
    keys = list(answers)
    halves = [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
    batches = []
    for half in halves:
        rows = pa.table({"v": pa.array([row for key in half for row in answers[key]], pa.string())})
        counts = np.array([len(answers[key]) for key in half], np.int64)
        batches.append(AnswerBatch(pa.array(half, pa.int64()), in_order(rows, counts), time))
    return batches
