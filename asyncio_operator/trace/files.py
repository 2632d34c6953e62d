"""Files that appear whole or not at all: each is written beside its final place, then moved there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from asyncio_operator.errors import ConfigurationError


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file and replace an older one; a symbolic link is followed.

    Raises:
        ConfigurationError: the folder does not exist, or `path` is a folder.
        OSError: the system refuses to write.
    """
    target = checked(path)
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}-{threading.get_ident()}.part")
    # The thread is part of the name: two threads may write the same file, and each must move its own part.
    try:
        part.write_bytes(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def checked(path: str | os.PathLike[str]) -> Path:
    """The real path of `path`, if a file can be written there."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is a folder; give the path of a file")
    if not target.parent.is_dir():
        raise ConfigurationError(f"path {os.fspath(path)!r} is in a folder that does not exist; make {target.parent}")
    return target
