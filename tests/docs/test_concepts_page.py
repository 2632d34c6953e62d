"""The programs of docs/concepts.md: rows overtake each other within the delay that the page says, and no further."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pages import DOCS, run_programs

pytestmark = pytest.mark.spark


def test_Q6_no_row_comes_later_than_the_delay_behind_the_newest_before_it(spark: Any) -> None:
    names = run_programs("concepts.md", spark=spark)
    order = [row.sensor for row in names["placed"].collect()]
    assert sorted(order) == [*range(100)]
    assert [sensor // 11 for sensor in order] == sorted(sensor // 11 for sensor in order), "eleven, then eleven more"


def test_Q6_with_a_delay_of_0_only_rows_of_equal_times_overtake_each_other(spark: Any) -> None:
    page = " ".join((DOCS / "concepts.md").read_text().split())
    assert "With a delay of 0, only neighbours of equal times overtake each other." in page
    names = run_programs("concepts.md", spark=spark)
    enrich, rooms, readings = names["enrich"], names["rooms"], names["readings"]
    twins = readings.selectExpr("sensor", "timestamp_seconds(sensor DIV 2) AS at")
    for rows in (readings, twins):
        for kind in ("at", "CAST(at AS timestamp_ntz) AS at", "unix_millis(at) AS at"):
            typed = rows.selectExpr("sensor", kind)
            placed = enrich(typed, rooms, on="sensor", mode="unordered", event_time="at").collect()
            assert [row.at for row in placed] == [row.at for row in typed.collect()]
