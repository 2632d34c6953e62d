"""The conda recipes ask for what the files pyproject.toml ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.release.conftest import ROOT, project

NAMES = {"matplotlib": "matplotlib-base", "redis": "redis-py"}
"""Packages that conda names in another way."""


def recipe_of(name: str) -> Any:
    return yaml.safe_load((ROOT / "tools" / "conda" / name).read_text(encoding="utf-8"))


def bounds_of(*extras: str) -> list[str]:
    """The bounds of what these extras of the library bring, as conda writes them."""
    texts = project(ROOT)["optional-dependencies"]
    wanted = [Requirement(text) for extra in extras for text in texts[extra]]
    return sorted({f"{NAMES.get(one.name, one.name)} {_in_order(one)}" for one in wanted})


def _in_order(requirement: Requirement) -> str:
    return ",".join(sorted(map(str, requirement.specifier), reverse=True))


@pytest.mark.parametrize(("recipe", "folder"), [("recipe.yaml", ROOT), ("proof.yaml", ROOT / "proof")])
def test_a_recipe_has_the_name_the_version_the_python_and_the_build_of_its_project(recipe: str, folder: Path) -> None:
    given, about = recipe_of(recipe), project(folder)
    assert (given["package"]["name"], given["context"]["version"]) == (about["name"], about["version"])
    assert (given["about"]["summary"], given["about"]["license"]) == (about["description"], about["license"])
    assert (ROOT / "tools" / "conda" / given["source"]["path"]).resolve() == folder
    python = f"python {about['requires-python']}"
    assert (given["requirements"]["run"][0], given["requirements"]["host"][0]) == (python, python)


def test_the_recipe_of_the_library_has_the_bounds_of_all_extras_as_constraints() -> None:
    requirements = recipe_of("recipe.yaml")["requirements"]
    extras = [name for name in project(ROOT)["optional-dependencies"] if name not in ("all", "dev", "proof")]
    assert requirements["run_constraints"] == bounds_of(*extras)
    assert len(requirements["run"]) == 1


def test_the_recipe_of_the_proof_needs_its_version_of_the_library_and_what_the_extra_spark_brings() -> None:
    _, library, *others = recipe_of("proof.yaml")["requirements"]["run"]
    assert library == "asyncio-operator ==${{ version }}"
    assert project(ROOT / "proof")["dependencies"] == [f"asyncio-operator[spark]=={project(ROOT)['version']}"]
    assert others == bounds_of("spark")
