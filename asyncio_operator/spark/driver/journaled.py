"""What the driver makes of `journal=`: the journal is opened or made, and the task learns what it holds.

On a stream there is no join: it would read the whole journal in every micro-batch, and files that a compaction deletes
would end the stream. There the tasks read all files themselves, in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame

from asyncio_operator.checks import seconds
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.format import Description
from asyncio_operator.journal.identity import identity_of, wanted_description
from asyncio_operator.journal.options import Journal
from asyncio_operator.spark.driver.build_task import key_types
from asyncio_operator.spark.driver.journal_files import contents_of
from asyncio_operator.spark.driver.known_answers import with_known
from asyncio_operator.spark.worker.enrich_task import EnrichTask
from asyncio_operator.spark.worker.task_journal import JournalTask

_generations: Counter[str] = Counter()
"""How often journals were found empty, by place. Workers note which answers of their caches a journal has. One that was
deleted and made again has none of them."""


class Join(Protocol):
    """Adds the column of known answers to rows: see `with_known`."""

    def __call__(self, df: DataFrame, positions: tuple[int, ...], *, keeps_order: bool) -> DataFrame: ...


def with_journal(
    df: DataFrame, task: EnrichTask, journal: Journal, where: str | None = None
) -> tuple[EnrichTask, Join | None]:
    """The task with its journal, and what joins its input with the known answers; None if there is nothing to join.

    Args:
        df: the input of the task. Its plan may be another when it is joined.
        where: see `with_known`. Answers that come later are all known.

    Raises:
        ConfigurationError: the journal holds answers of something else.
        StateError: the journal is damaged, or of another format.
        JournalError: its place does not answer.
    """
    spark = df.sparkSession
    contents = contents_of(spark, journal.location, _wanted(df, task, journal))
    joins = bool(contents.live) and not df.isStreaming
    place = str(journal.location)
    _generations[place] += not contents.seen
    expire_after = None if journal.expire_after is None else seconds(journal.expire_after)
    of_task = JournalTask(
        journal.location,
        contents.description,
        Seen.of(contents.seen if joins else ()),
        joins,
        spark.conf.get("spark.app.id", None) or "spark",
        seconds(journal.flush_every),
        expire_after,
        journal.keep_missing,
        _generations[place],
    )
    join = partial(with_known, contents=contents, journal=journal, columns=task.layout.found.names, where=where)
    return replace(task, journal=of_task), join if joins else None


def without_known(df: DataFrame, task: EnrichTask, journal: Journal) -> DataFrame | None:
    """The rows whose answers a journal does not have, for a plan; None: it has none. No journal is made.

    Raises: as `with_journal`.
    """
    contents = contents_of(df.sparkSession, journal.location, _wanted(df, task, journal), make=False)
    if not contents.live:
        return None
    joined = with_known(df, task.layout.keys, contents=contents, journal=journal, columns=(), keeps_order=False)
    return joined.where("known IS NULL").drop("known")


def _wanted(df: DataFrame, task: EnrichTask, journal: Journal) -> Description:
    keys = key_types(df.schema, task.enricher, task.layout.keys)
    return wanted_description(journal.identity or identity_of(task.enricher), keys, task.answers)
