"""Public names that are loaded on first use (PEP 562): importing a package costs only what its user then asks for.

A package with such names lists them for `lazy`, by the module that defines them, and under ``if TYPE_CHECKING``, for
type checkers: ``from place import Name as Name``. A test compares the two. ``__all__`` is made when it is asked for,
unless the module defines it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(
    module: str, table: Mapping[str, str], needs: Mapping[str, tuple[str, str]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a module. Its submodules are loaded on first use too.

    Assign them under ``if not TYPE_CHECKING``: a type checker that sees ``__getattr__`` accepts every name.

    Args:
        module: its ``__name__``.
        table: names separated by spaces, by the full name of the module that defines them.
        needs: the library that such a module needs, and the extra that installs it. Without it, ``dir`` and ``__all__``
            do not list the names of that module.
    """
    places = {name: place for place, names in table.items() for name in names.split()}
    libraries = needs or {}

    def attribute(name: str) -> Any:
        value: Any
        if name == "__all__":
            value = installed()
        elif name in places:
            value = member(places[name], name, *libraries.get(places[name], ()))
        else:
            full = f"{module}.{name}"
            absent = AttributeError(f"module {module!r} has no attribute {name!r}")
            if name.startswith("_"):
                raise absent
            try:
                value = import_module(full)
            except ModuleNotFoundError as error:
                if error.name != full:
                    raise
                raise absent from None
        setattr(sys.modules[module], name, value)
        return value

    def installed() -> list[str]:
        from importlib.util import find_spec  # Seldom needed, and not loaded by the import system itself.

        absent = {place for place, (library, _) in libraries.items() if find_spec(library) is None}
        return sorted(name for name, place in places.items() if place not in absent)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *installed()})

    return attribute, names


def member(place: str, name: str, library: str = "", extra: str = "") -> Any:
    """An attribute of the module `place`, which is imported.

    Raises:
        ConfigurationError: `library`, which the module needs, is not installed; `extra` installs it.
    """
    try:
        return getattr(import_module(place), name)
    except ModuleNotFoundError:
        from asyncio_operator.hints import needs  # Here: it costs more than this module, and Y2 does without it.

        with needs(name, library or place, extra):
            raise
