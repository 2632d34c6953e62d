"""The page of licences is complete, and nothing on it is unknown; on another machine it would be the same."""

from __future__ import annotations

import re

import pytest

from tools.licences import PAGE, PERMISSIVE, TO_DEVELOP, LicenceError, licence_of, needs, page, pinned, table

LINE = re.compile(r"^- \*\*(.+)\*\*: (.+)$", re.MULTILINE)


def packages(text: str) -> list[tuple[str, str]]:
    """The packages of the page, or of a part of it, with their licences."""
    return [
        (name, licence)
        for licence, names in LINE.findall(text)
        for name in re.sub(r" \([^)]*\)", "", names).split(", ")
    ]


def test_the_page_is_what_the_tool_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(table()), "run tools/licences.py"


def test_every_package_of_the_constraints_is_on_it_once_with_a_known_licence() -> None:
    found = packages(PAGE.read_text(encoding="utf-8"))
    assert sorted(name for name, _ in found) == sorted(pinned())
    for name, licence in found:
        assert set(re.split(" OR | AND ", licence)) <= TO_DEVELOP, name


def test_what_a_user_installs_is_permissive() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = packages(text[: text.index("## To develop it")])
    assert {"pyspark", "pyarrow", "asyncpg", "aiohttp", "redis", "rocksdict", "uvloop"} <= {name for name, _ in found}
    for name, licence in found:
        assert set(re.split(" OR | AND ", licence)) <= PERMISSIVE, name


def test_a_package_that_is_missing_or_of_another_version_or_of_another_licence_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(LicenceError, match=r"no-such-package is in constraints\.txt and not installed"):
        licence_of("no-such-package", "1.0")
    with pytest.raises(LicenceError, match=r"aiohttp is .* here and 0\.1 in constraints"):
        licence_of("aiohttp", "0.1")
    monkeypatch.setattr("tools.licences.TO_DEVELOP", {"MIT"})
    with pytest.raises(LicenceError, match=r"aiohttp .* states the licence 'Apache-2\.0 AND MIT', which"):
        licence_of("aiohttp", pinned()["aiohttp"])


def test_needs_are_followed_through_packages_and_their_extras() -> None:
    assert {"aiohttp", "yarl", "idna"} <= needs(["aiohttp"])
    assert {"pyspark", "py4j", "pandas"} <= needs(["pyspark[sql]"])
    assert "pandas" not in needs(["pyspark"])
    assert needs(["aiohttp; python_version < '3'"]) == set()
