"""The example with a column function: every order gets its own offer, whatever the service does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from examples.async_column import PRICES, offer, orders_of, service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_every_order_gets_its_own_offer(spark: SparkSession) -> None:
    with service() as prices:
        rows = orders_of(spark, 500).withColumn("offer", offer(prices.url)("product", "country", "pieces")).collect()
        assert len(prices.requests) > 500, "of the answers 5 % are failures, from a seed"
        assert prices.most_at_once <= 40
    assert [row.id for row in rows] == list(range(500))
    for row in rows:
        price = PRICES.get((row.product, row.country))
        rebate = 0.1 if row.pieces >= 10 else 0.0
        assert row.offer == (None if price is None else (price, rebate, row.pieces * price * (1 - rebate)))


def test_it_shows_the_offers_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("async_column", "--orders", "300")
    assert re.search(r"^\|  0\|\s*ink\|\s*FR\|\s*\d+\|\s*4\.75\|\s*0\.[01]\|", printed, re.MULTILINE), printed
    assert re.search(r"^The service got \d+ requests, at most \d+ at once\.$", printed, re.MULTILINE)
