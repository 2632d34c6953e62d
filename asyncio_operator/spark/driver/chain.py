"""Chains of lookups on the driver: which DataFrames are the output of `enrich`, and of what they are made.

`enrich` of a DataFrame that `enrich` returned makes one stage of all its lookups (law C1). The DataFrame object itself
is the key: each operation of Spark returns another object, and so ends the chain, while `persist`, `cache` and
``transform`` return the same one. Neither Spark's plan is read, which Connect does not have, nor is an attribute set.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from asyncio_operator.budget.spec import Budget
from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.links import ChainTask
from asyncio_operator.trace import Trace


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
    """The rows of `df` with the columns that the task adds, in the same stage as the lookups that made `df`.

    Args:
        task: made for rows of `df`.
        trace: the trace to which the task reports.
        schema: schema of the output.
        begins: the lookup begins a stage, because `df` is not what `enrich` returned.
    """
    base, links = Chain(df, ()) if begins else _unbroken(df)
    for link in links:
        _check_budgets(link.task.options.budget, task.options.budget)
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
    output = _addressable(base).mapInArrow(ChainTask([link.task for link in chain.links]), schema)
    _chains[output] = chain
    return output


def links_of(df: DataFrame) -> tuple[Link, ...]:
    """The lookups that made the DataFrame, in one stage; none if another operation made it."""
    chain = _chains.get(df)
    return () if chain is None else chain.links


def _check_budgets(earlier: Budget | None, budget: Budget | None) -> None:
    if earlier is not None and budget is not None and earlier.name == budget.name and earlier != budget:
        raise ConfigurationError(
            f"the budget {budget.name!r} is {budget!r} here, and {earlier!r} in an earlier lookup of this DataFrame; "
            "one name must have the same limits at a time"
        )


def _unbroken(df: DataFrame) -> Chain:
    """The chain that the next lookup of `df` continues. It begins at `df` if that is persisted."""
    chain = _chains.get(df)
    if chain is None:
        return Chain(df, ())
    # `storageLevel` also sees an equal plan that was persisted through another object, as Spark's reading does. On
    # Connect it is a request, so other DataFrames are not asked.
    level = df.storageLevel
    return Chain(df, ()) if level.useMemory or level.useDisk or level.useOffHeap else chain


def _addressable(df: DataFrame) -> DataFrame:
    """The DataFrame with column names that `mapInArrow` can resolve. Positions and data stay the same."""
    names = df.columns
    if len({name.lower() for name in names}) == len(names) and all(re.fullmatch(r"\w+", name) for name in names):
        return df
    return df.toDF(*(f"_{i}" for i in range(len(names))))
