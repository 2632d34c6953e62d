"""The example of versions: its tiers are those of Spark's join, and its last line says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.spark


def test_X16_it_finds_the_tiers_that_sparks_join_finds(play: Callable[..., str]) -> None:
    printed = play("orders_as_of", "--orders", "2000")
    assert "The join found the same tiers. The service got 4 requests." in printed
    assert "no tier yet: " in printed
    assert "silver, 2 %: " in printed
