"""The checker knows nothing of the library: what it imports is its own folder, and the standard library."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import asyncio_operator_proof.history

FOLDER = "asyncio_operator_proof.history"
HERE = Path(asyncio_operator_proof.history.__file__).parent


def test_Y2_the_checker_imports_only_its_folder_and_the_standard_library() -> None:
    modules = sorted(HERE.glob("*.py"))
    assert len(modules) > 10
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path.name
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("__import__", "import_module", "importlib.import_module")
            for name in names:
                own = name == FOLDER or name.startswith(FOLDER + ".")
                assert own or name.partition(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_a_module_of_laws_imports_no_module_of_laws() -> None:
    modules = sorted(HERE.glob("*_laws.py"))
    assert len(modules) > 10
    for path in modules:
        text = path.read_text(encoding="utf-8")
        assert "\ndef law_" in text
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").endswith("_laws"), f"{path.name} imports {node.module}"


PROGRAM = """
import sys

ALLOWED = {"asyncio_operator", "asyncio_operator.lazy", "asyncio_operator.testing"}


class Blocked:
    def find_spec(self, name, path=None, target=None):
        own = name in ALLOWED or name.startswith("asyncio_operator_proof.history")
        if name.partition(".")[0] in ("asyncio_operator", "pyarrow", "pyspark", "enrichers") and not own:
            raise ImportError(f"{name} is blocked")
        return None


sys.meta_path.insert(0, Blocked())
from asyncio_operator.testing import History, check_history

history = History([{"event": "setting", "capacity": 1}, {"event": "task_started", "at": 0, "task": "t"}])
for number in range(2):
    history.add("row_in", at=0, task="t", row=number, key=number)
    history.add("call_started", at=0, task="t", call=number, keys=[number])
for number in range(2):
    history.add("call_ended", at=1, task="t", call=number, outcome="result", answers=[[1]])
print([violation.law for violation in check_history(history)])
"""


def test_Y2_the_checker_runs_where_the_library_cannot_be_imported() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.strip() == "['O1']", ran.stderr
