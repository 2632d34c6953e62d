"""docs/udf.md promises that its programs run, and that its tables are right: so they do, and are."""

from __future__ import annotations

import inspect
import re

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark import async_udf
from tests.pages import DOCS, run_programs

TEXT = (DOCS / "udf.md").read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_programs_of_the_page_run(spark: SparkSession) -> None:
    run_programs("udf.md")


def test_the_table_has_every_option_in_its_order() -> None:
    table = TEXT.partition("| option | default | |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    parameters = [*inspect.signature(async_udf).parameters][1:-1]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == parameters
