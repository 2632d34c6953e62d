"""The examples of state and timers run, and give what they say."""

from __future__ import annotations

import re

from examples import event_time_trigger, state_migration


def test_event_time_trigger_fires_on_time_late_and_early(capsys):
    event_time_trigger.main()
    output = capsys.readouterr().out
    assert re.findall(r"(.) from (\d+) to \d+: (\d+)", output) == [
        ("a", "0", "7"),
        ("a", "0", "7"),
        ("b", "0", "10"),
        ("a", "0", "23"),
        ("a", "10000", "8"),
        ("b", "10000", "20"),
    ]
    assert "too late: 1, entries left in the state: 0" in output


def test_state_migration_prints_the_ratio_and_what_has_moved(capsys, monkeypatch):
    monkeypatch.setattr(state_migration, "CHANGES", 100)
    state_migration.main()
    output = capsys.readouterr().out
    assert re.search(r"the map state is \d+ times as fast", output)
    assert "100 baskets have moved, 100 are left" in output
