"""The example with a model: each text is asked once, within the limits of the service and within the money."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.examples.programs import start_example, temporary_directory

pytestmark = pytest.mark.spark

ROWS = "600"


def test_each_text_is_asked_once_and_the_service_refuses_nothing(play: Callable[..., str]) -> None:
    printed = play("model_calls", "--rows", ROWS)
    [texts] = re.findall(r"^600 reviews with (\d+) different texts\.$", printed, re.MULTILINE)
    counts = re.findall(
        r"^\|\s*(found|failed)\|\s*(the answer does not fit|NULL).*\|\s*(\d+)\|$", printed, re.MULTILINE
    )
    assert {(status, reason) for status, reason, _ in counts} == {
        ("found", "NULL"),
        ("failed", "the answer does not fit"),
    }
    assert sum(int(count) for *_, count in counts) == 600
    [requests] = re.findall(r"^([\d,]+) requests with ", printed, re.MULTILINE)
    # One for the sentiment of each text, and one for up to 50 vectors; the texts are in up to 20 tasks.
    assert int(texts) < int(requests.replace(",", "")) <= int(texts) + 20
    assert "Refused with 429: none. Windows with too much: none." in printed
    [(spent, earned)] = re.findall(
        r"^Spent: ([\d.]+) of 1.0000 dollars; the service has earned ([\d.]+)\.$", printed, re.MULTILINE
    )
    assert spent == earned > "0.0"


@pytest.mark.faults
def test_G6_the_job_ends_before_it_spends_more_than_it_may() -> None:
    with temporary_directory() as directory:
        done = start_example("model_calls", "--rows", ROWS, "--spend", "0.005", directory=directory)
    assert done.returncode == 1
    assert "BudgetExceeded: the budget 'model-calls': spend limit 0.005 usd" in done.stderr
    [earned] = re.findall(r"the service has earned ([\d.]+)\.$", done.stdout, re.MULTILINE)
    assert 0.004 < float(earned) <= 0.005
