"""Law Y5, twenty seeds with `make faults`: ``make disks`` runs more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.disks import processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.faults
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["state", "cache", "journal"])
def test_Y5_what_a_killed_process_or_damage_leaves_is_right_or_an_error(kind: str) -> None:
    command = [sys.executable, "-m", "tests.disks", "--seeds", "20", "--first", "100", "--kind", kind]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_Y5_a_child_that_fails_has_said_what_was_done_before() -> None:
    def work(say: processes.Say) -> None:
        for _ in range(5):
            say("done")
        raise ValueError("at the end")

    ended = processes.forked(work)
    assert ended.lines == ["done"] * 5
    assert "ValueError: at the end" in ended.wrong
