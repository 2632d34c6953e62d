"""What docs/production.md says is unpickled is all that is; and what is read from disk runs nothing."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from asyncio_operator import Cache
from asyncio_operator.errors import StateError
from asyncio_operator.lookup import Lookup
from asyncio_operator.state.serializers import BUILTIN
from asyncio_operator.testing import FakeEnricher
from tests.test_layers import sources_of_the_project

LOADERS = {"load", "loads", "Unpickler", "read_pickle"}
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib", "yaml"}

UNPICKLED = {
    # What Spark hands to a task of a table function.
    ("asyncio_operator/spark/worker/table_function.py", "cloudpickle.loads"),
    # The check that a copy of an enricher is equal to it.
    ("asyncio_operator/testing/enricher_contract/check_enricher.py", "pickle.loads"),
    ("asyncio_operator/testing/state_contract/laws.py", "pickle.loads"),
}

RUN = {("enrichers/postgres/statement.py", "exec")}


def calls(tree: ast.AST) -> Iterator[str]:
    return (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))


@cache
def sources() -> list[tuple[str, ast.AST]]:
    return [(path, ast.parse(source)) for path, source in sources_of_the_project().items()]


@pytest.fixture(scope="module", autouse=True)
def _sources_are_forgotten() -> Iterator[None]:
    yield
    sources.cache_clear()


def test_nothing_else_is_unpickled() -> None:
    found = {
        (path, call)
        for path, tree in sources()
        for call in calls(tree)
        if call.rpartition(".")[2] in LOADERS and not call.startswith(("json.", "self.", "History."))
    }
    assert found == UNPICKLED


def test_no_text_is_run_but_that_of_one_function() -> None:
    assert {(path, call) for path, tree in sources() for call in calls(tree) if call in ("eval", "exec")} == RUN


def test_state_and_caches_import_nothing_that_could_unpickle() -> None:
    for path, tree in sources():
        if path.startswith(("asyncio_operator/state/", "asyncio_operator/lookup/")):
            for node in ast.walk(tree):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not MODULES & {part for name in names for part in name.split(".")}, path


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_in_place_of_a_value_is_an_error_and_is_not_run(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps(Bomb(tmp_path / "was here"), protocol)
    with pytest.raises(StateError):
        BUILTIN.deserialize(data)
    assert not (tmp_path / "was here").exists()
    pickle.loads(data)
    assert (tmp_path / "was here").exists()


async def test_a_cache_whose_files_were_replaced_by_pickles_is_cleared_and_runs_nothing(tmp_path: Path) -> None:
    directory, mark = tmp_path / "cache", tmp_path / "was here"
    cache = Cache(store="rocksdb", directory=directory)
    fake = FakeEnricher({"a": {"v": 1}})
    async with Lookup(fake, cache=cache) as lookup:
        assert await lookup.get("a") == {"v": 1}
    for path in [path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock"]:
        path.write_bytes(pickle.dumps(Bomb(mark)))
    async with Lookup(fake, cache=cache) as lookup:
        assert await lookup.get("a") == {"v": 1}
    assert not mark.exists()
