"""docs/udf.md promises that its programs run, and that its tables are right: so they do, and are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark import async_udf

PAGE = Path(__file__).resolve().parents[2] / "docs" / "udf.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_programs_of_the_page_run(spark: SparkSession) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)


def test_the_table_has_every_option_in_its_order() -> None:
    table = TEXT.partition("| option | default | |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    parameters = [*inspect.signature(async_udf).parameters][1:-1]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == parameters
