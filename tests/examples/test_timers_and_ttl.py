"""The example of orders that wait for their delivery: timers fire, are deleted, and state expires."""

from __future__ import annotations

from tests.examples.programs import run_example


def test_T9_E1_reminders_leave_before_their_watermarks_and_old_orders_are_forgotten() -> None:
    lines = [line.strip() for line in run_example("timers_and_ttl").splitlines()]
    texts = [line.partition("  ")[2] for line in lines[:-1]]
    assert texts[texts.index("order 2: where is the ink?") + 1] == "--"
    assert [text for text in texts if "where" in text] == ["order 2: where is the ink?", "order 3: where is the tea?"]
    assert "order 1: delivered" in texts
    assert "order 3: delivered, and forgotten before" in texts
    assert texts[-2:] == ["order 5: delivered", "--"]
    assert lines[-1] == "10 events, 2 requests: tea, ink"
