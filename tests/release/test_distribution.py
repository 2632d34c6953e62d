"""What is released: wheels with their packages and nothing else, and sdists from which the same wheels are built."""

from __future__ import annotations

import email
import re
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from asyncio_operator import __version__
from tests.release.conftest import ROOT, Built, build, project

pytestmark = pytest.mark.faults

PACKAGES = ("asyncio_operator", "enrichers")


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    [about] = [data for name, data in members(wheel).items() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(about)


def files_in(folder: Path, package: str) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in (folder / package).rglob("*")
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in path.parts)
    }


def test_the_wheel_holds_the_packages_their_types_and_the_licence_and_nothing_else(built: Built) -> None:
    names = set(members(built.wheel))
    info = f"asyncio_operator-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, info}
    of_info = {name.removeprefix(info + "/") for name in names if name.startswith(info)}
    assert of_info == {"METADATA", "RECORD", "WHEEL", "licenses/LICENSE"}
    in_tree = set().union(*(files_in(ROOT, package) for package in PACKAGES))
    assert names - {f"{info}/{name}" for name in of_info} == in_tree
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_wheel_of_the_proof_has_the_same_version_and_needs_that_of_the_library(built: Built) -> None:
    names, about = set(members(built.proof)), metadata(built.proof)
    info = f"asyncio_operator_proof-{__version__}.dist-info"
    of_info = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")}
    assert names == files_in(ROOT / "proof", "asyncio_operator_proof") | of_info
    assert "asyncio_operator_proof/py.typed" in names
    assert members(built.proof)[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert about.get_all("Requires-Dist") == [f"asyncio-operator[spark]=={__version__}"]
    assert project()["optional-dependencies"]["proof"] == [f"asyncio-operator-proof=={__version__}"]
    assert (about["Version"], about["Requires-Python"]) == (__version__, project()["requires-python"])
    assert about.get_payload() == (ROOT / "proof" / "README.md").read_text("utf-8")


def test_the_wheel_is_for_any_machine_and_requires_nothing_that_is_not_an_extra(built: Built) -> None:
    assert built.wheel.name == f"asyncio_operator-{__version__}-py3-none-any.whl"
    about = metadata(built.wheel)
    assert about["Version"] == __version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert set(about.get_all("Provides-Extra", [])) == set(project()["optional-dependencies"])
    assert all("extra ==" in text for text in about.get_all("Requires-Dist", []))
    assert about.get_payload() == (ROOT / "README.md").read_text("utf-8")


def test_with_an_address_there_are_urls_and_no_link_of_the_readme_is_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDRESS", "https://example.org/owner/asyncio-operator/")
    [wheel] = build(ROOT, tmp_path / "library", "wheel")
    [proof] = build(ROOT / "proof", tmp_path / "proof", "wheel")
    about = metadata(wheel)
    assert metadata(proof).get_all("Project-URL") == about.get_all("Project-URL")
    urls = dict(url.split(", ") for url in about.get_all("Project-URL", []))
    assert urls["Source"] == "https://example.org/owner/asyncio-operator"
    assert urls["Changelog"] == "https://example.org/owner/asyncio-operator/blob/main/CHANGELOG.md"
    text = str(about.get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert "(https://example.org/owner/asyncio-operator/raw/main/docs/pictures/gather.svg)" in text
    assert "[`PostgresEnricher`](https://example.org/owner/asyncio-operator/blob/main/docs/postgres.md)" in text


def test_the_changelog_has_the_version_and_its_date() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "folder", "same"), [("sdist", ".", "wheel"), ("sdist", "proof", "proof"), ("proof_sdist", ".", "proof")]
)
def test_an_sdist_builds_the_same_wheel(built: Built, tmp_path: Path, kind: str, folder: str, same: str) -> None:
    """That of the library holds the proof too."""
    with tarfile.open(getattr(built, kind)) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    [wheel] = build(source / folder, tmp_path / "dist", "wheel")
    expected: Path = getattr(built, same)
    assert wheel.name == expected.name
    assert members(wheel) == members(expected)


def test_the_sdist_holds_what_the_makefile_needs(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "tools/setup"}
    assert needed <= names
    for folder in ("asyncio_operator", "enrichers", "proof", "tests", "examples", "benchmarks", "docs", "tools"):
        assert any(name.startswith(folder + "/") for name in names), folder
    assert not [name for name in names if "__pycache__" in name or name.startswith((".venv", "build", "dist"))]


def test_every_lower_bound_is_what_make_compat_installs() -> None:
    """Packages of the extras, at the oldest version that these allow."""
    pins = (ROOT / "tools" / "compat-oldest.txt").read_text("utf-8")
    found = re.findall(r"^([\w.-]+)==(\S+)$", pins, re.MULTILINE)
    tested = {canonicalize_name(name): Version(version) for name, version in found}
    extras = project()["optional-dependencies"]
    allowed = {
        canonicalize_name(wanted.name): Version(bound.version)
        for extra in extras
        if extra not in ("all", "dev", "proof")
        for wanted in map(Requirement, extras[extra])
        for bound in wanted.specifier
        if bound.operator == ">="
    }
    assert {name: tested.get(name) for name in allowed} == allowed
