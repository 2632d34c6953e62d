"""Directories as arguments: checked where they are given, with or without RocksDB at hand.

A path has to be text that UTF-8 can hold, which is what RocksDB takes and what a message can show.
"""

from __future__ import annotations

from pathlib import Path

from asyncio_operator.errors import ConfigurationError, describe


def check_directory(directory: str | Path) -> Path:
    """The directory as a path, absolute and without links; it need not exist.

    Raises:
        ConfigurationError: it is no path, or cannot be one.
    """
    if isinstance(directory, str | Path) and str(directory) and "\0" not in str(directory):
        try:
            str(directory).encode()
        except UnicodeEncodeError:
            pass
        else:
            return Path(directory).resolve()
    raise ConfigurationError(f"directory={describe(directory)}: a path is needed, in UTF-8 and without NUL")
