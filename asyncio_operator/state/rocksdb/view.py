"""Directories as they lie on the disk, before RocksDB opens them.

Opening a directory writes to it, even read-only: rocksdict its configuration, RocksDB its log. So what must not change
is opened through a view, a temporary directory of symbolic links to its files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

FOREIGN = "holds another program's data"

_CONFIGURATION = "rocksdict-config.json"
_WRITTEN = ("LOCK", "LOG", _CONFIGURATION)
_BEGINNINGS = ("LOCK", "LOG", "IDENTITY", "MANIFEST-", "OPTIONS-", _CONFIGURATION)


def view_of(directory: Path) -> Path:
    """A new directory of links to the files of a database; whoever asks for it removes it."""
    view = Path(tempfile.mkdtemp(prefix="asyncio-operator-view-"))
    try:
        for entry in directory.iterdir():
            if entry.name not in _WRITTEN:
                (view / entry.name).symlink_to(entry)
    except BaseException:
        shutil.rmtree(view, ignore_errors=True)
        raise
    return view


def is_abandoned(directory: Path) -> bool:
    """Whether it holds only what a process leaves that died while making a database."""
    return directory.is_dir() and all(
        entry.name.startswith(_BEGINNINGS) or entry.name.endswith(".dbtmp") for entry in directory.iterdir()
    )


def is_foreign(directory: Path) -> bool:
    """Whether a database was made by rocksdict in another mode than ours, and so by another program."""
    try:
        return json.loads((directory / _CONFIGURATION).read_bytes()).get("raw_mode") is not True
    except (OSError, ValueError, AttributeError):
        return False
