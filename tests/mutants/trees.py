"""Copies of the repository to run tests in: one without a bug, and one for each bug that shares all files but one.

The copy without a bug is complete, so that nothing which runs there can change the repository, and an edit made
meanwhile changes no run. A tree with a bug consists of hard links to that copy. Compiled modules are linked too: Python
takes them, because sources keep their times.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.mutants.bugs import ROOT, Bug

LEFT_OUT = shutil.ignore_patterns(".*", "artifacts", "build", "dist", "site", "spark-warehouse", "metastore_db")


def make_copy(target: Path) -> Path:
    """Copy the repository, compiled modules included, without what was built."""
    shutil.copytree(ROOT, target, ignore=LEFT_OUT)
    return target


@contextmanager
def planted(bug: Bug, copy: Path, room: Path) -> Iterator[Path]:
    """A tree of hard links to the copy, with the bug. It is removed at the end."""
    tree = Path(tempfile.mkdtemp(prefix="t", dir=room))
    try:
        shutil.copytree(copy, tree, copy_function=os.link, dirs_exist_ok=True)
        plant(bug, tree)
        yield tree
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def plant(bug: Bug, tree: Path) -> None:
    """Put the bug into the tree, as a new file: the old one belongs to other trees too."""
    path = tree / bug.path
    text = bug.planted(path.read_text())
    path.unlink()
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
