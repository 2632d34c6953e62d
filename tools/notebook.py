"""Runs examples/quickstart.ipynb, and stores in it what its cells print and show.

    .venv/bin/python tools/notebook.py

A notebook needs Jupyter to be read, and only this to be run: cells are executed one after the other in one namespace,
as in a kernel, and the value of a last expression shows itself by its ``_repr_html_``, unless a semicolon ends the
cell. Lines that begin with ``%`` are for Jupyter alone. The test of the notebook runs it in the same way.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def read(path: Path = NOTEBOOK) -> dict[str, Any]:
    """The notebook, in the format of nbformat 4.5."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(notebook: dict[str, Any], path: Path = NOTEBOOK) -> None:
    """Write it as Jupyter does."""
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook with the outputs of this run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count, cells = 0, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": outputs_of("".join(cell["source"]), names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs_of(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """What a cell prints, and what its last expression shows."""
    tree = ast.parse("\n".join("" if line.startswith("%") else line for line in source.splitlines()))
    end = tree.body[-1] if tree.body else None
    last = end if isinstance(end, ast.Expr) else None
    if last is not None:
        tree.body.pop()
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None and not source.rstrip().endswith(";"):
        data = {"text/plain": lines(repr(value))}
        page = value._repr_html_() if hasattr(value, "_repr_html_") else None
        if page:
            data = {"text/html": lines(page)} | data
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def lines(text: str) -> list[str]:
    """As nbformat has texts: a list of lines with their ends."""
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    write(run(read()))
    print(f"{NOTEBOOK.relative_to(ROOT)} has the outputs of this run")
