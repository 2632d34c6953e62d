"""Packages whose names are loaded on first use: both lists of names agree, and nothing else changes for users."""

from __future__ import annotations

import ast
import pydoc
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_import import printed
from tests.test_layers import ROOT, module_of


def imports(nodes: list[ast.stmt]) -> dict[str, set[str]]:
    """Names of this library that these statements import, by module."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asyncio_operator"):
            found.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    return found


class Names(NamedTuple):
    """The names of a module that calls `lazy`: later ones by their module, as listed twice, and those there at once."""

    table: dict[str, set[str]]
    typed: dict[str, set[str]]
    at_once: set[str]


def names_of(source: str) -> Names | None:
    """None for a module that does not call `lazy`."""
    if "lazy(" not in source:
        return None
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy"]
    if not calls:
        return None
    [call] = calls
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    at_once = set().union(*imports(tree.body).values())
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                at_once.add(name)
    return Names(
        table={place: set(names.split()) for place, names in ast.literal_eval(call.args[1]).items()},
        typed=imports([node for block in blocks for node in block.body]),
        at_once=at_once,
    )


LAZY = {
    module_of(path.relative_to(ROOT).as_posix()): names
    for path in sorted((ROOT / "asyncio_operator").rglob("*.py"))
    if (names := names_of(path.read_text(encoding="utf-8"))) is not None
}


def test_they_are_found() -> None:
    assert {"asyncio_operator", "asyncio_operator.state", "asyncio_operator.enricher"} <= {*LAZY}


@pytest.mark.parametrize("module", LAZY)
def test_the_names_of_a_module_are_the_same_for_type_checkers_and_in_the_table(module: str) -> None:
    lists = LAZY[module]
    assert lists.table == lists.typed
    later = set().union(*lists.table.values())
    assert later <= set(import_module(module).__all__) <= later | lists.at_once


@pytest.mark.parametrize("module", LAZY)
def test_every_name_is_loaded_and_listed_and_hides_no_submodule(module: str) -> None:
    package = import_module(module)
    defined = {name: place for place, names in LAZY[module].table.items() for name in names}
    for name in package.__all__:
        assert getattr(package, name) is getattr(import_module(defined.get(name, module)), name)
        assert name in dir(package)
        # A name that is there at once replaces the submodule that its import has loaded, as `spark.enrich` does.
        later = name in defined and hasattr(package, "__path__")
        assert not later or find_spec(f"{module}.{name}") is None
    assert package.__all__[0] in pydoc.render_doc(package)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        _ = package.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {module} import nothing")


def test_submodules_are_there_without_an_import_of_their_own() -> None:
    assert (
        printed("import asyncio_operator as a; print(a.state.ValueState.__name__, a.trace.trace.Trace.__name__)")
        == "ValueState Trace"
    )


@pytest.mark.parametrize(
    ("library", "module", "name"),
    [
        ("rocksdict", "asyncio_operator.state", "RocksDBStateBackend"),
        ("aiohttp", "asyncio_operator.testing", "FakeService"),
        ("asyncio_operator_proof", "asyncio_operator.testing", "Simulation"),
        ("pyarrow", "asyncio_operator.enricher", "as_schema"),
    ],
)
def test_names_of_a_missing_library_are_not_listed_and_help_works(library: str, module: str, name: str) -> None:
    program = f"import {module} as m, pydoc\npydoc.render_doc(m)\nprint({name!r} in dir(m), '__doc__' in dir(m))"
    assert printed(f"import sys; sys.modules[{library!r}] = None\n{program}").split() == ["False", "True"]


@pytest.mark.parametrize("broken", ["raise ImportError('no libssl.so')", "import libssl_of_the_library"])
@pytest.mark.parametrize(
    ("library", "module"),
    [
        ("aiohttp", "enrichers.http"),
        ("asyncpg", "enrichers.postgres"),
        ("redis", "enrichers.redis"),
        ("sqlalchemy", "enrichers.sql"),
        ("asyncpg", "asyncio_operator.quota.coordinators.postgres"),
        ("redis", "asyncio_operator.quota.coordinators.redis"),
        ("redis", "asyncio_operator.services.redis_values"),
    ],
)
def test_a_library_that_is_installed_and_broken_is_not_called_absent(
    tmp_path: Path, library: str, module: str, broken: str
) -> None:
    (tmp_path / f"{library}.py").write_text(broken)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\ntry:\n    import {module}\n"
    text = printed(f"{program}except ImportError as error:\n    print(error)")
    assert "libssl" in text
    assert "pip install" not in text


@pytest.mark.parametrize("module", ["enrichers.redis", "asyncio_operator.services.redis_values"])
def test_a_library_that_is_too_old_to_have_a_part_is_not_called_absent(tmp_path: Path, module: str) -> None:
    (tmp_path / "redis.py").write_text("")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\ntry:\n    import {module}\n"
    text = printed(f"{program}except Exception as error:\n    print(error)")
    assert f"needs redis, of which a part is missing in {sys.executable}: pip install 'asyncio-operator[redis]'" in text


def test_a_star_import_of_the_state_works_without_rocksdict() -> None:
    program = (
        "import sys; sys.modules['rocksdict'] = None\nfrom asyncio_operator.state import *\nprint(ValueState.__name__)"
    )
    assert printed(program) == "ValueState"


NOT_NEEDED = ("decimal", "json", "tempfile", "uuid", "asyncio_operator.state.backend", "asyncio_operator.trace.page")


def test_the_public_names_load_neither_the_state_nor_what_draws_pictures() -> None:
    loaded = f"import sys\nfrom asyncio_operator import *\nprint(*{{*{NOT_NEEDED!r}}} & {{*sys.modules}})"
    assert printed(loaded) == ""
    assert printed("import asyncio_operator, sys; print('asyncio' in sys.modules)") == "False"
