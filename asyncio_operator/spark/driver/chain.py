"""Chains of lookups on the driver: which DataFrames are the output of `enrich`, and of what they are made.

`enrich` of a DataFrame that `enrich` returned makes one stage of all its lookups (law C1). The DataFrame object itself
is the key: each operation of Spark returns another object, and so ends the chain, while `persist`, `cache` and
``transform`` return the same one. Neither Spark's plan is read, which Connect does not have, nor is an attribute set.
`lookups_of` shows a chain as a table: Spark's plan shows no more than the names of its lookups.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.worker.link import EnrichTask
from asyncio_operator.spark.worker.links import ChainTask, stage_name
from asyncio_operator.spark.worker.versions import is_dataframe
from asyncio_operator.trace import Trace
from asyncio_operator.view.tables import Row, html_table, text_table


class Link(NamedTuple):
    """A lookup, the user's trace of it, the columns of its key, and those that it adds."""

    task: EnrichTask
    trace: Trace | None
    key: tuple[str, ...]
    adds: tuple[str, ...]


class Chain(NamedTuple):
    """What a DataFrame is made of: the rows of `base`, with the columns of each link."""

    base: DataFrame
    links: tuple[Link, ...]


_chains: weakref.WeakKeyDictionary[DataFrame, Chain] = weakref.WeakKeyDictionary()
"""The chain of each DataFrame that `extended` returned and that is still in use."""


def extended(
    df: DataFrame, task: EnrichTask, trace: Trace | None, schema: StructType, *, begins: bool = False
) -> DataFrame:
    """The rows of `df` with the columns that the task adds, which was made for them, in the same stage as the lookups
    that made `df`. `trace` gets its reports, `schema` is that of the output. `begins`: the lookup begins a stage,
    because `df` is not what `enrich` returned."""
    earlier = None if begins else _chains.get(df)
    if earlier is not None:
        # `storageLevel` also sees an equal plan that was persisted through another object, as Spark's reading does. On
        # Connect it is a request, so other DataFrames are not asked.
        level = df.storageLevel
        if level.useMemory or level.useDisk or level.useOffHeap:
            earlier = None
    base, links = earlier or Chain(df, ())
    budget = task.options.budget
    for link in links:
        other = link.task.options.budget
        if other is not None and budget is not None and other.name == budget.name and other != budget:
            raise ConfigurationError(
                f"the budget {budget.name!r} is {budget!r} here, and {other!r} in an earlier lookup of this "
                "DataFrame; one name must have the same limits at a time"
            )
    # A trace belongs to the last enrichment that got it, and so do the lookups before it that have the same one.
    kept = [
        link._replace(task=replace(link.task, tracing=task.tracing))
        if trace is not None and link.trace is trace
        else link
        for link in links
    ]
    names = schema.names
    own = Link(task, trace, tuple(names[i] for i in task.layout.keys), tuple(names[len(df.columns) :]))
    chain = Chain(base, (*kept, own))
    columns, given = base.columns, base
    if len({name.lower() for name in columns}) < len(columns) or not all(
        re.fullmatch(r"\w+", name) for name in columns
    ):
        # Under these names `mapInArrow` could not find the columns.
        given = base.toDF(*(f"_{i}" for i in range(len(columns))))
    output = given.mapInArrow(ChainTask([link.task for link in chain.links]), schema)
    _chains[output] = chain
    return output


HEAD = ("key", "adds", "how", "mode", "in flight", "in a call")


@dataclass(frozen=True, slots=True)
class StageLookup:
    """A lookup of a stage.

    Attributes:
        enricher: its name, without secrets.
        key: the columns that it looks up.
        adds: the columns that it adds, with that of the status.
        how: "left", "inner" or "required".
        mode: "ordered" or "unordered".
        capacity: calls in flight at most, in a task.
        keys_in_a_call: at most.
    """

    enricher: str
    key: tuple[str, ...]
    adds: tuple[str, ...]
    how: str
    mode: str
    capacity: str
    keys_in_a_call: int


@dataclass(frozen=True, slots=True)
class StageLookups:
    """The lookups of the Python stage that makes a DataFrame, in their order. A table in a notebook and for `print`."""

    lookups: tuple[StageLookup, ...]

    def __str__(self) -> str:
        return text_table(HEAD, self._rows()) if self.lookups else "no lookups"

    def _repr_html_(self) -> str:
        return html_table(HEAD, self._rows()) if self.lookups else "<p>no lookups</p>"

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for number, one in enumerate(self.lookups, 1):
            columns = ", ".join(one.key), ", ".join(one.adds)
            rows.append(
                (f"{number}. {one.enricher}", [*columns, one.how, one.mode, one.capacity, str(one.keys_in_a_call)])
            )
        return rows


def lookups_of(df: DataFrame) -> StageLookups:
    """The lookups that made a DataFrame: those of `enrich`, with no other operation after them.

    After another operation, and with ``strategy="distinct"``, there are none. Nothing runs.

    Raises:
        ConfigurationError: it is not a DataFrame.
    """
    if not is_dataframe(df):
        raise ConfigurationError(f"df is of type {type(df).__name__}; it must be a Spark DataFrame")
    found, chain = [], _chains.get(df)
    for link in () if chain is None else chain.links:
        layout, options = link.task.layout, link.task.options
        found.append(
            StageLookup(
                stage_name(link.task),
                link.key,
                link.adds,
                "required" if layout.required else "inner" if layout.inner else "left",
                "ordered" if options.ordered else "unordered",
                str(options.capacity),
                1 if options.batching is None else options.batching.max_size,
            )
        )
    return StageLookups(tuple(found))
