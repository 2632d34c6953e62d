"""Writes a scenario as a program: the expressions that make it, and what they import."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

import asyncio_operator
from asyncio_operator.errors import describe
from asyncio_operator.quota.spec import Budget
from asyncio_operator_proof.simulation.scenario import DEFAULTS, Scenario, not_at_default

WIDTH = 110

PLACE = Scenario.__module__

OF_TIME = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta)


def program_of(scenario: Scenario, enricher: Any = None) -> str:
    """A program that runs a scenario and fails as it does.

    Args:
        enricher: the function that makes the enrichers; None: there is none.
    """
    code = Code()
    text = _shown(scenario, 0, code)
    own = next(iter(_imports({PLACE: code.imports.pop(PLACE)})))
    lines = [*_imports(code.imports), "from asyncio_operator.testing import Simulation", own]
    if enricher is None:
        run = "Simulation.from_scenario(scenario).check()"
    else:
        run = "Simulation.from_scenario(scenario, enricher).check()"
        place = place_of(enricher)
        if place is None:
            lines += [f"# enricher = the function or class that makes your enricher: {_in_a_line(enricher)}"]
        elif "." in place[1]:
            first, _, rest = place[1].partition(".")
            lines += [f"from {place[0]} import {first}", "", f"enricher = {first}.{rest}"]
        else:
            lines += [f"from {place[0]} import {place[1]} as enricher"]
    return "\n".join([*lines, "", *code.missing, f"scenario = {text}", run]) + "\n"


def _imports(imports: Mapping[str, set[str]]) -> Iterator[str]:
    for module, names in sorted(imports.items()):
        yield f"from {module} import {', '.join(sorted(names))}" if names else f"import {module}"


class Code:
    """What the expressions of a program need before them.

    Attributes:
        imports: by module, the names from it; without names the module itself.
        missing: assignments in place of what cannot be written as code, each with a comment.
    """

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = {}
        self.missing: list[str] = []

    def named(self, value: Any) -> str:
        """The name of a class, a function or another constant, which is imported."""
        place = place_of(value)
        if place is None:
            return self.absent(value)
        module, name = place
        first = name.partition(".")[0]
        if module != "builtins":
            if any(first in names for other, names in self.imports.items() if other != module):
                return self.absent(value)
            self.imports.setdefault(module, set()).add(first)
        return name

    def absent(self, value: Any) -> str:
        """A name in place of a value that cannot be written."""
        name = f"missing_{len(self.missing) + 1}"
        self.missing.append(f"{name} = None  # put in its place: {_in_a_line(value)}")
        return name


def place_of(value: Any) -> tuple[str, str] | None:
    """The module and the name by which a class or a function can be imported; None: by none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    if name in dir(asyncio_operator) and getattr(asyncio_operator, name, None) is value:
        return asyncio_operator.__name__, name
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name) if found is value else None


def _in_a_line(value: Any) -> str:
    return " ".join(describe(value).split())


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


def _shown(value: Any, indent: int, code: Code) -> str:
    """The expression of a value, in several lines if it is long."""
    match value:
        case None | bool():
            return repr(value)
        case Enum():
            name = code.named(type(value))
            return name if name.startswith("missing_") else f"{name}[{value.name!r}]"
        case float():
            return float.__repr__(value) if isfinite(value) else f'float("{float(value)}")'
        case int() | str() | bytes():
            base = next(kind for kind in (int, str, bytes) if isinstance(value, kind))
            return base.__repr__(value)
        case Mapping():
            items = [(f"{_shown(key, indent, code)}: ", item) for key, item in value.items()]
            return _within("{", items, "}", indent, code)
        case list():
            return _within("[", [("", item) for item in value], "]", indent, code)
        case tuple():
            comma = "," if len(value) == 1 else ""
            return _within("(", [("", item) for item in value], f"{comma})", indent, code)
        case type():
            return code.named(value)
    if is_dataclass(value):
        name = code.named(type(value))
        if name.startswith("missing_"):
            return name
        items = [(f"{label}=" if label else "", item) for label, item in arguments_of(value)]
        return _within(f"{name}(", items, ")", indent, code)
    return _other(value, code)


def _other(value: Any, code: Code) -> str:
    """The expression of a decimal, a date and the like, which is their `repr`; or of a function."""
    if type(value) is Decimal:
        code.named(Decimal)
        return repr(value)
    zone = getattr(value, "tzinfo", None)
    has_words = zone is None or type(zone) is datetime.timezone or getattr(zone, "key", None) is not None
    if type(value) not in OF_TIME or not has_words:
        return repr(value) if type(value) is bytearray else code.named(value)
    text = repr(value)
    for name in ("datetime", "zoneinfo"):
        if f"{name}." in text:
            code.imports.setdefault(name, set())
    return text


def _within(begin: str, items: list[tuple[str, Any]], end: str, indent: int, code: Code) -> str:
    texts = [label + _shown(item, indent + 4, code) for label, item in items]
    line = begin + ", ".join(texts) + end
    atoms = all(not is_dataclass(item) and not isinstance(item, tuple | list | Mapping) for _, item in items)
    if ("\n" not in line and len(line) + indent <= WIDTH) or (atoms and len(texts) > 20):
        return line
    inner = " " * (indent + 4)
    return begin + "\n" + "".join(f"{inner}{text},\n" for text in texts) + " " * indent + end.lstrip(",")
