"""What a message offers in place of a name that is not there."""

from __future__ import annotations

import pytest

from asyncio_operator.enricher import did_you_mean
from asyncio_operator.hints import SHOWN


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("yaer", ["year", "seats"], "did you mean 'year'?"),
        ("YEAR", ["year", "Year", "years"], "did you mean 'year' or 'Year'?"),
        ("yearss", ["Year", "seats"], "did you mean 'Year'?"),
        ("zzz", ["year", "seats", "year"], "there are year, seats"),
        ("zzz", [], "there are none"),
    ],
)
def test_the_nearest_names_or_all(name: str, names: list[str], expected: str) -> None:
    assert did_you_mean(name, names) == expected


def test_a_long_list_is_cut() -> None:
    said = did_you_mean("zzz", (f"c{i}" for i in range(SHOWN + 10)))
    assert said.endswith(f"c{SHOWN - 1}, and 10 more")
