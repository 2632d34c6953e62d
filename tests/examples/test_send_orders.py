"""The example of writing: after a kill every order is taken once, and refused ones are in the report."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.send_orders import Shop, orders_of, sent

pytestmark = pytest.mark.spark


def test_W2_every_order_is_taken_once_although_a_worker_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    orders = orders_of(spark, 400)
    shop = Shop(200)
    with shop.service:
        with pytest.raises(Exception, match=r"(?i)python worker"):
            sent(orders, shop.service.url, tmp_path)
        report = sent(orders, shop.service.url, tmp_path)
        while report.failed:
            report = sent(orders, shop.service.url, tmp_path)
    assert shop.killed
    wanted = Counter((row["product"], row["pieces"]) for row in orders.collect())
    assert {order: count for order, count in shop.taken.items() if count} == {
        order: count for order, count in wanted.items() if order[1] != 7
    }


def test_it_shows_what_was_sent_and_leaves_nothing(play: Callable[..., str]) -> None:
    printed = play("send_orders", "--orders", "300")
    assert "The job failed: a worker was killed after " in printed
    [numbers] = re.findall(r"SendReport\(sent=(\d+), refused=(\d+), failed=(\d+), skipped=(\d+)\)", printed)
    assert sum(map(int, numbers)) == 300
    assert int(numbers[3]) > 0
    assert re.search(r"^The service got \d+ requests and took \d+ orders\.$", printed, re.MULTILINE)
