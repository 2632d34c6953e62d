"""Law J5 with whole jobs: no process holds the journal."""

from __future__ import annotations

import pytest

from benchmarks.journal_memory import journal_memory

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(600)]


def test_J5_the_memory_of_driver_and_workers_does_not_grow_with_the_journal() -> None:
    """Asserted: with 1,000,000 known answers each process has at most 1.1 times the memory that it has with 100,000.
    A driver that reads the journal has more: the method sees it."""
    *ratios, control = [float(row[4]) for row in journal_memory()]
    assert len(ratios) == 3
    assert max(ratios) <= 1.1
    assert control > 1.2
