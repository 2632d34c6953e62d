"""The jobs: what is drawn for a seed, the DataFrame, and its rows without faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from asyncio_operator import Budget, Journal, Limit
from asyncio_operator.spark import enrich
from enrichers import HttpEnricher
from tests.chaos.service import answer, task_header

ROWS, PARTITIONS = 2000, 4

KEYS = ROWS * 4 // 5
"""Four keys for five rows. A key is in one partition only."""

SHUFFLED = 6
"""Partitions after a shuffle."""

CAPACITY = 10

FLUSH_EVERY = 0.3

BUDGET = Budget("chaos", Limit(250, 1.0, "calls"), in_flight=16)

Row = tuple[int, int, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Job:
    """What a job is.

    Attributes:
        chain: whether a second lookup follows the first one in its stage.
        shuffle: whether a second lookup follows the first one after a shuffle.
    """

    journal: bool = False
    chain: bool = False
    shuffle: bool = False
    budget: bool = False
    ordered: bool = True

    @classmethod
    def drawn(cls, drawn: random.Random, *, shuffle: bool = False) -> Job:
        """A job; each seed has another one."""
        journal, chain = drawn.random() < 0.5, drawn.random() < 0.4
        budget, ordered = drawn.random() < 0.25, drawn.random() < 0.75
        return cls(journal, chain and not shuffle, shuffle, budget, ordered and not shuffle)

    @property
    def calls(self) -> int:
        """Calls without a fault."""
        return sum(map(self.calls_of, range(self.lookups)))

    def calls_of(self, lookup: int) -> int:
        """Calls of one lookup without a fault: the key of the first is `key`, that of the second `v`."""
        return len({row[1 + lookup] for row in self.rows()} - {None})

    @property
    def lookups(self) -> int:
        """The number of lookups."""
        return 1 + (self.chain or self.shuffle)

    def rows(self) -> list[Row]:
        """The rows without faults, in order."""
        return [self._row(number) for number in range(ROWS)]

    def _row(self, number: int) -> Row:
        key = number * 4 // 5
        first = answer(0, key)
        v = None if first is None else first["v"]
        second = answer(1, v) if self.lookups == 2 and v is not None else None
        return number, key, v, None if second is None else second["w"]

    def are_right(self, rows: Sequence[Row]) -> bool:
        """Whether the rows are those of a job without faults."""
        return list(rows) == self.rows() if self.ordered else sorted(rows, key=lambda row: row[0]) == self.rows()

    def frame(self, spark: SparkSession, url: str, directory: Path) -> DataFrame:
        """The DataFrame. Its journals are in `directory`."""
        rows = spark.range(0, ROWS, 1, PARTITIONS).withColumn("key", F.expr("id * 4 div 5"))
        return self.enriched(rows, url, directory)

    def enriched(self, rows: DataFrame, url: str, directory: Path) -> DataFrame:
        """Rows with columns `id` and `key`, enriched."""
        found = enrich(rows, _source(url, 0, "v long"), on="key", **self._options(directory, 0))
        if self.shuffle:
            found = found.repartition(SHUFFLED, "key")
        if self.lookups == 2:
            return enrich(found, _source(url, 1, "w long"), on="v", **self._options(directory, 1))
        return found.withColumn("w", F.expr("cast(null as long)"))

    def _options(self, directory: Path, lookup: int) -> dict[str, Any]:
        return {
            "mode": "ordered" if self.ordered else "unordered",
            "capacity": CAPACITY,
            "timeout": 60,
            # Every call that a fault costs is then a new attempt of its task.
            "retry": None,
            "budget": BUDGET if self.budget else None,
            "journal": self._journal(directory, lookup) if self.journal else None,
        }

    def _journal(self, directory: Path, lookup: int) -> Journal:
        return Journal(directory / f"journal-{lookup}", flush_every=FLUSH_EVERY, identity=f"chaos-{lookup}")

    def settings(self, write: float) -> list[dict[str, Any]]:
        """The settings of a history. A write takes at most `write` seconds."""
        common: dict[str, Any] = {"capacity": CAPACITY, "timeout": 60, "remember": 60, "single": True}
        common["mode"] = "ordered" if self.ordered else "unordered"
        if self.budget:
            [limit] = BUDGET.limits
            common |= {"budget": BUDGET.name, "in_flight": BUDGET.in_flight}
            common["limits"] = [{"unit": "calls", "rate": limit.rate, "per": 1.0}]
        found = [{"lookup": lookup, **common} for lookup in range(self.lookups)]
        for setting in found if self.journal else ():
            name = f"journal-{setting['lookup']}"
            setting["journal"] = {"name": name, "flush_every": FLUSH_EVERY, "write": write}
        return found

    def __str__(self) -> str:
        chosen = ("journal", "chain", "shuffle", "budget")
        return " ".join([name for name in chosen if getattr(self, name)] or ["plain"])


def _source(url: str, lookup: int, schema: str) -> HttpEnricher:
    # Asked before each request, because a Python worker runs one task after another.
    return HttpEnricher(f"{url}/v/{lookup}/{{key}}", schema=schema, headers=task_header, headers_max_age=0)
