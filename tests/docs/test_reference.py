"""The reference names everything that is public, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

import pytest

from tests.pages import DOCS

MODULES = [
    "asyncio_operator",
    "asyncio_operator.enricher",
    "asyncio_operator.lookup",
    "asyncio_operator.queues",
    "asyncio_operator.spark",
    "asyncio_operator.state",
    "asyncio_operator.telemetry",
    "asyncio_operator.testing",
    "asyncio_operator.timers",
    "asyncio_operator.trace",
    "asyncio_operator.windows",
    "enrichers",
    "enrichers.typed",
]

NAMED = [
    name
    for page in sorted((DOCS / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def named_by(path: str) -> object:
    """What a path names: modules as far as they go, then attributes."""
    found: object = importlib.import_module(path.partition(".")[0])
    for end in range(1, path.count(".") + 1):
        prefix, name = ".".join(path.split(".")[:end]), path.split(".")[end]
        try:
            found = importlib.import_module(f"{prefix}.{name}")
        except ModuleNotFoundError:
            found = getattr(found, name)
    return found


def public_names(module: ModuleType) -> list[str]:
    """What a module says is public; of one that says nothing, the functions and classes that it defines."""
    defined = [
        name
        for name, value in vars(module).items()
        if name[0] != "_"
        and (inspect.isroutine(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]
    names: list[str] = getattr(module, "__all__", defined)
    return names


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    shown = {path.rpartition(".")[2] for path in NAMED}
    names = public_names(importlib.import_module(module))
    assert names
    assert [name for name in names if name not in shown] == []


@pytest.mark.parametrize("path", NAMED)
def test_every_name_of_the_reference_is_there(path: str) -> None:
    assert named_by(path) is not None


def test_no_name_is_there_twice() -> None:
    assert len(NAMED) == len(set(NAMED)) > 80
