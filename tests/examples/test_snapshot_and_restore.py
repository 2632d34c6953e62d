"""The example of a run that goes on in another process: whatever is killed, all outputs come once."""

from __future__ import annotations

import re

from tests.examples.programs import run_example


def test_O10_T9_runs_of_killed_processes_give_what_one_run_gives() -> None:
    printed = run_example("snapshot_and_restore")
    found = re.search(r"^147 outputs of (\d+) processes, (\d+) of them killed$", printed, re.MULTILINE)
    assert found is not None, printed
    assert int(found[2]) > 0
    assert "the same outputs, each once: True" in printed
    assert printed.count("hall: 2 readings, lab: 2 readings, roof: 2 readings") == 9
