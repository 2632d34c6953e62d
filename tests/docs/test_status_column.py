"""What a lookup may give, and what docs/howto/keep-failures.md says about the status column."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from asyncio_operator.spark import enrich
from enrichers import FunctionEnricher
from tests.pages import DOCS

ANSWERS = {
    "one": ("found", [1]),
    "several": ("found", [1, None]),
    "empty": ("missing", [None]),
    "none": ("missing", [None]),
    "text": ("failed", [None]),
    "misfit": ("failed", [None]),
    "error": ("failed", [None]),
    "slow": ("timed_out", [None]),
    None: ("missing", [None]),
}


@pytest.mark.spark
def test_what_a_lookup_may_give_and_what_the_status_column_says_are_as_the_page_has_it(spark: SparkSession) -> None:
    async def answer(key: str) -> Any:
        match key:
            case "slow":
                await asyncio.sleep(3600)
            case "error":
                raise OSError("no route")
        answers: dict[str, Any] = {"one": {"x": 1, "y": 2}, "several": [{"x": 1}, {}], "empty": [], "none": None}
        return (answers | {"text": "text", "misfit": {"x": "one"}})[key]

    keys = spark.createDataFrame([(key,) for key in ANSWERS], "key string").coalesce(1)
    service = FunctionEnricher(answer, "x int")
    out = enrich(keys, service, on="key", on_error="null", status_column="status", timeout=1.0)
    rows = out.collect()
    for key, (status, values) in ANSWERS.items():
        found = [row for row in rows if row.key == key]
        assert [row.x for row in found] == values
        assert {row.status.status for row in found} == {status}
    page = (DOCS / "howto" / "keep-failures.md").read_text(encoding="utf-8")
    table = page[page.index("| field of the status column") :].partition("\n\n")[0]
    documented = dict(re.findall(r"^\| (`.*?`) \| (.*) \|$", table, re.MULTILINE))
    assert re.findall(r"`(\w+)`", " ".join(documented)) == out.schema["status"].dataType.names  # type: ignore[attr-defined]
    words = {field: set(re.findall(r'`"(\w+)"`', documented[f"`{field}`"])) for field in ("status", "source")}
    assert words["status"] == {row.status.status for row in rows} | {"over_budget"}
    assert words["source"] == {row.status.source for row in rows} | {"shared", "cache", "stale", "journal"}
    for row in rows:
        asked = row.key is not None
        assert (row.status.source, row.status.attempts) == (("call", 1) if asked else ("none", 0))
        assert (row.status.latency_ms is not None) == asked
        assert (row.status.error_type is None) == (row.status.error_message is None)
        assert (row.status.error_type is None) == (row.status.status in ("found", "missing"))
