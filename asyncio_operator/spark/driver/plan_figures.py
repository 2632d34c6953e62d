"""What `plan` returns: figures of an enrichment before it runs, as a table, a line, or a table in a notebook.

This module knows neither Spark nor how the figures are made.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncio_operator.budget.spec import Budget
from asyncio_operator.spark.driver.forecast import SIZE
from asyncio_operator.view.tables import WIDTH, Row, amount, html_table, text_table

COLUMNS = ("without a cache", "with a cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrichmentPlan:
    """What `enrich` would do with a DataFrame.

    Attributes:
        rows: number of input rows. It is always counted exactly.
        null_keys: input rows whose key has a null, which are not looked up. Exact if all rows were read.
        distinct_keys: number of different keys. Exact up to 4,095 if all rows were read.
        lookups: the maximum number of keys looked up without a cache: the distinct keys of each batch of rows, added
            up. Exact if all rows were read.
        calls: the number of calls for them.
        cached_lookups, cached_calls: the same with the given cache, or with a `Cache()`. If the cache is too small for
            the keys of a task, each task counts as if its cache were empty at the start.
        tasks: partitions of the input.
        tasks_at_once: how many tasks run at the same time.
        sampled_rows: input rows that were read. It equals `rows` if nothing was extrapolated.
        max_attempts: how often a key that fails is looked up. The other figures count one attempt.
        latency: seconds of a call, as given; None if not given.
        seconds, cached_seconds: duration of the calls, without and with the cache; None without a latency. It is longer
            if other jobs use the budget at the same time. None too if some call can never start.
        weights, cached_weights: with a budget, what the calls weigh by unit: calls, keys, and the units of the
            enricher, estimated from some keys.
        budget: as given.
        never: why the budget lets a call for some key never start; None if no key that was weighed is so heavy.
        journal_rows: input rows whose answer the journal has. They count in `rows` and in no figure of keys and calls.
        journal_calls: the number of calls that the journal saves, without a cache.
        max_calls: how many calls the enricher runs at the same time in a task; None if it sets no limit.
        calls_at_once: how many calls run at the same time in a task: `max_calls` or `capacity`, the lower one.
        table_rows: about how many rows the enricher's table has, if half of them or more will be looked up; else None.
        join_program: the program that joins the whole table instead, if the enricher has one.
        distinct: whether each key is looked up once in the whole job, as with strategy="distinct".
    """

    rows: int
    null_keys: int
    distinct_keys: int
    lookups: int
    calls: int
    cached_lookups: int
    cached_calls: int
    tasks: int
    tasks_at_once: int
    sampled_rows: int
    max_attempts: int = 1
    latency: float | None = None
    seconds: float | None = None
    cached_seconds: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    cached_weights: Mapping[str, float] = field(default_factory=dict)
    budget: Budget | None = None
    never: str | None = None
    journal_rows: int = 0
    journal_calls: int = 0
    max_calls: int | None = None
    calls_at_once: int = 0
    distinct: bool = False
    table_rows: int | None = None
    join_program: str | None = None

    def show(self) -> None:
        """Print the figures as a table of at most 100 columns."""
        print(textwrap.fill(self._input(), WIDTH))
        print(text_table(COLUMNS, _rows_of_plan(self)))
        for line in self._remarks():
            print(textwrap.fill(line, WIDTH))
        if self.join_program is not None:
            print(self.join_program)

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(line)}</p>" for line in self._remarks())
        program = "" if self.join_program is None else f"<pre>{html.escape(self.join_program)}</pre>"
        return html_table(COLUMNS, _rows_of_plan(self), self._input()) + remarks + program

    def _remarks(self) -> list[str]:
        remarks = [] if self.latency is None else [f"A call takes {self.latency * 1000:.2f} ms."]
        if self.distinct:
            remarks.append('With strategy="distinct" each key is looked up once in the job.')
        if self.max_attempts > 1:
            remarks.append(f"A key that fails is looked up again (up to {self.max_attempts} attempts per key).")
        return remarks + [f"{fact[:1].upper()}{fact[1:]}." for fact in self._facts()]

    def __str__(self) -> str:
        pace = "" if self.latency is None else f", at {self.latency * 1000:.2f} ms a call"
        retried = f" (up to {self.max_attempts} attempts per key)" if self.max_attempts > 1 else ""
        weights = "".join(
            f", {plain} {unit} without a cache and {cached} with one" for unit, (plain, cached) in self._units()
        )
        return (
            f"{self._input()}; without a cache "
            f"{_count(self.lookups, 'key')} in {_count(self.calls, 'call')}{_duration(self.seconds)}, with a cache "
            f"{_count(self.cached_lookups, 'key')} in {_count(self.cached_calls, 'call')}"
            f"{_duration(self.cached_seconds)}{pace}{retried}{weights}{''.join(f'; {fact}' for fact in self._facts())}"
        )

    def _facts(self) -> list[str]:
        """What else a user should know, in words."""
        facts = []
        if self.max_calls is not None:
            why = f" (the enricher's max_calls is {self.max_calls:,})" if self.calls_at_once == self.max_calls else ""
            facts.append(f"at most {_count(self.calls_at_once, 'call')} at once in a task{why}")
        for unit, limit in ({} if self.budget is None else self.budget.spend or {}).items():
            estimated = self.weights.get(unit, 0.0)
            if estimated > limit:
                cents = unit == "usd" and round(estimated, 2) > limit
                shown = amount(round(estimated, 2) if cents else estimated)
                facts.append(f"estimated {shown} {unit} exceeds the limit of {amount(limit)} {unit}")
        if self.never is not None:
            facts.append(self.never)
        if self.table_rows is not None:
            distinct, rows = _count(self.distinct_keys, "distinct key"), _count(self.table_rows, "row")
            facts.append(f"A join costs less: {distinct} will be looked up in a table of about {rows}")
        return facts

    def _units(self) -> list[Row]:
        """What the calls weigh in the units of the enricher, without and with the cache."""
        both = self.weights, self.cached_weights
        units = [unit for unit in self.weights if unit not in ("calls", "keys")]
        return [(unit, [amount(weights[unit]) for weights in both]) for unit in units]

    def _input(self) -> str:
        part = "" if self.sampled_rows == self.rows else f" (looked at {self.sampled_rows:,})"
        saved = _count(self.journal_calls, "call")
        known = (
            f", {self.journal_rows:,} with an answer in the journal, which saves {saved}" if self.journal_rows else ""
        )
        distinct = _count(self.distinct_keys, "distinct key")
        about = "" if self.sampled_rows == self.rows and self.distinct_keys < SIZE else "about "
        return (
            f"{_count(self.rows, 'row')}{part} in {_count(self.tasks, 'task')}, {self.tasks_at_once:,} at once: "
            f"{self.null_keys:,} without a key{known}, {about}{distinct}"
        )


def _rows_of_plan(plan: EnrichmentPlan) -> list[Row]:
    """The figures without and with a cache."""
    rows: list[Row] = [
        ("keys", [f"{plan.lookups:,}", f"{plan.cached_lookups:,}"]),
        ("calls", [f"{plan.calls:,}", f"{plan.cached_calls:,}"]),
    ]
    if plan.seconds is not None and plan.cached_seconds is not None:
        rows.append(("seconds", [f"{plan.seconds:,.2f}", f"{plan.cached_seconds:,.2f}"]))
    return rows + plan._units()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _duration(taken: float | None) -> str:
    return "" if taken is None else f", {taken:,.2f} s"
