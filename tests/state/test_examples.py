"""The examples of state and timers run, and give what they say."""

from __future__ import annotations

import re

from examples import event_time_trigger, state_migration


def test_event_time_trigger_fires_on_the_watermark_and_late_ones_at_once(capsys):
    event_time_trigger.main()
    output = capsys.readouterr().out
    assert re.findall(r"Fired\(sensor='(.)', start=(\d+), total=(\d+), why='(.*)'\)", output) == [
        ("a", "0", "3", "on time"),
        ("b", "0", "10", "on time"),
        ("a", "0", "11", "late"),
        ("a", "10000", "4", "on time"),
        ("b", "10000", "20", "on time"),
    ]
    assert "entries left in the state: 0" in output


def test_state_migration_prints_the_ratio_and_what_has_moved(capsys, monkeypatch):
    monkeypatch.setattr(state_migration, "CHANGES", 100)
    state_migration.main()
    output = capsys.readouterr().out
    assert re.search(r"the map state is \d+ times as fast", output)
    assert "100 baskets have moved, 100 are left" in output
