"""`lookups_of`: which lookups made a DataFrame, as a table. Spark's plan shows no more than their names."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.spark.driver.chain import links_of
from asyncio_operator.spark.worker.links import stage_name
from asyncio_operator.spark.worker.versions import is_dataframe
from asyncio_operator.view.tables import html_table, text_table

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

    def _cells(self) -> list[str]:
        columns = ", ".join(self.key), ", ".join(self.adds)
        return [*columns, self.how, self.mode, self.capacity, str(self.keys_in_a_call)]


@dataclass(frozen=True, slots=True)
class StageLookups:
    """The lookups of the Python stage that makes a DataFrame, in their order. A table in a notebook and for `print`."""

    lookups: tuple[StageLookup, ...]

    def __str__(self) -> str:
        return text_table(HEAD, self._rows()) if self.lookups else "no lookups"

    def _repr_html_(self) -> str:
        return html_table(HEAD, self._rows()) if self.lookups else "<p>no lookups</p>"

    def _rows(self) -> list[tuple[str, list[str]]]:
        return [(f"{n}. {one.enricher}", one._cells()) for n, one in enumerate(self.lookups, 1)]


def lookups_of(df: DataFrame) -> StageLookups:
    """The lookups that made a DataFrame: those of `enrich`, with no other operation after them.

    After another operation, and with ``strategy="distinct"``, there are none. Nothing runs.

    Raises:
        ConfigurationError: it is not a DataFrame.
    """
    if not is_dataframe(df):
        raise ConfigurationError(f"df is of type {type(df).__name__}; it must be a Spark DataFrame")
    found = []
    for link in links_of(df):
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
