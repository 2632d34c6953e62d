"""docs/sql.md promises that its programs run: they do. It names the options that SQL cannot write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark.sql import DEFAULTS, NOT_IN_SQL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_programs_of_the_page_run(spark: SparkSession) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)


def test_the_page_names_every_option_that_sql_cannot_write() -> None:
    sentence = TEXT.partition("\n`retry`, ")[1] + TEXT.partition("\n`retry`, ")[2].partition(" are objects")[0]
    assert tuple(re.findall(r"`([a-z_]+)`", sentence)) == NOT_IN_SQL
    assert set(NOT_IN_SQL) < set(DEFAULTS)


def test_every_option_in_the_table_of_values_is_one() -> None:
    table = TEXT.partition("| value in Python |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(?:\w+=.*?)?(\w+) =>", table)) <= set(DEFAULTS)
