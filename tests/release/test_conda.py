"""The conda recipe asks for what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from typing import Any

import yaml
from packaging.requirements import Requirement

from tests.release.conftest import ROOT

NAMES = {"matplotlib": "matplotlib-base", "redis": "redis-py"}
"""Packages that conda names in another way."""


def test_the_recipe_has_the_version_the_python_and_the_bounds_of_the_extras() -> None:
    recipe: Any = yaml.safe_load((ROOT / "tools/conda/recipe.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert recipe["context"]["version"] == project["version"]
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (project["description"], project["license"])
    assert recipe["requirements"]["run"] == [f"python {project['requires-python']}"]
    extras = {
        name: texts for name, texts in project["optional-dependencies"].items() if name not in ("all", "dev", "proof")
    }
    wanted = [Requirement(text) for texts in extras.values() for text in texts]
    bounds = {f"{NAMES.get(one.name, one.name)} {_in_order(one)}" for one in wanted}
    assert sorted(bounds) == recipe["requirements"]["run_constraints"]


def _in_order(requirement: Requirement) -> str:
    return ",".join(sorted(map(str, requirement.specifier), reverse=True))
