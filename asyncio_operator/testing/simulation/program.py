"""Writes a scenario as a program: the expressions that make it, and what they import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import asyncio_operator
from asyncio_operator.budget.spec import Budget
from asyncio_operator.testing.simulation import scenario as parts
from asyncio_operator.testing.simulation.scenario import DEFAULTS, Scenario, not_at_default

WIDTH = 110


def program_of(scenario: Scenario, enricher: bool = False) -> str:
    """A program that runs a scenario and fails as it does.

    Args:
        enricher: whether a function makes the enrichers; the program has a place for it.
    """
    used: set[str] = set()
    text = _shown(scenario, 0, used)
    public = sorted(name for name in used if name in asyncio_operator.__all__)
    own = sorted(name for name in used if name in vars(parts) and name not in public)
    lines = [f"from asyncio_operator import {', '.join(public)}"] if public else []
    lines += ["from asyncio_operator.testing import Simulation"]
    lines += [f"from asyncio_operator.testing.simulation.scenario import {', '.join(own)}", ""]
    lines += [f"scenario = {text}"]
    if enricher:
        lines += ["Simulation.from_scenario(scenario, enricher).check()  # the function that makes yours"]
    else:
        lines += ["Simulation.from_scenario(scenario).check()"]
    return "\n".join(lines) + "\n"


def arguments_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The arguments that make an object of a data class, without those at their defaults; without a name if they are
    given by their places."""
    if isinstance(value, Budget):
        yield "", value.name
        for limit in value.limits:
            yield "", limit
        for name, default in DEFAULTS.items():
            if getattr(value, name) != default:
                yield name, getattr(value, name)
        return
    yield from ((name, given) for name, given, _ in not_at_default(value))


def _shown(value: Any, indent: int, used: set[str]) -> str:
    """The expression of a value, in several lines if it is long."""
    if is_dataclass(value) and not isinstance(value, type):
        name = type(value).__name__
        used.add(name)
        items = [(f"{label}=" if label else "", item) for label, item in arguments_of(value)]
        return _within(f"{name}(", items, ")", indent, used)
    if isinstance(value, Mapping):
        return _within("{", [(f"{key!r}: ", item) for key, item in value.items()], "}", indent, used)
    if isinstance(value, tuple):
        comma = "," if len(value) == 1 else ""
        return _within("(", [("", item) for item in value], f"{comma})", indent, used)
    if isinstance(value, type):
        return value.__name__
    return repr(value)


def _within(begin: str, items: list[tuple[str, Any]], end: str, indent: int, used: set[str]) -> str:
    texts = [label + _shown(item, indent + 4, used) for label, item in items]
    line = begin + ", ".join(texts) + end
    atoms = all(not is_dataclass(item) and not isinstance(item, tuple | Mapping) for _, item in items)
    if ("\n" not in line and len(line) + indent <= WIDTH) or (atoms and len(texts) > 20):
        return line
    inner = " " * (indent + 4)
    return begin + "\n" + "".join(f"{inner}{text},\n" for text in texts) + " " * indent + end.lstrip(",")
