"""What a contributor reads and runs agrees with the repository: targets, hooks before a commit, the workflow."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.pages import DOCS

ROOT = DOCS.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*):", MAKEFILE, re.MULTILINE))


def parsed(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/benchmarks.md", "docs/faults.md"])
def test_the_targets_that_a_page_names_are_in_the_makefile(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    code = re.findall(r"`(make [^`]*)`", text) + re.findall(r"^(?: {4})?(make .*)$", text, re.MULTILINE)
    named = {re.sub(r"\w+=\S+ ", "", line).split()[1] for line in code}
    assert named
    assert named <= TARGETS


def test_the_hooks_before_a_commit_are_the_commands_of_make_lint() -> None:
    [repository] = parsed(".pre-commit-config.yaml")["repos"]
    [recipe] = re.findall(r"^lint: venv\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    commands = recipe.replace("$(BIN)", ".venv/bin").split("\n\t")
    assert [hook["entry"] for hook in repository["hooks"]] == [command.strip() for command in commands]
    assert repository["repo"] == "local"


def test_the_workflow_runs_what_ci_runs_with_every_python_of_the_package() -> None:
    job = parsed(".github/workflows/check.yml")["jobs"]["check"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = [text.rpartition(" ")[2] for text in project["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert job["strategy"]["matrix"]["python"] == supported
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    for step in job["steps"][:-1]:
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
