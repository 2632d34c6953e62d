"""Damages one file: a flipped bit, an end that is cut off, a page of zeros, a page that is there twice."""

from __future__ import annotations

import random
from pathlib import Path

WAYS = ("flip", "flip", "cut", "zero", "twice")

UNREAD = frozenset({"IDENTITY", "LOG", "OPTIONS", "rocksdict-config.json"})
"""Kinds of files of RocksDB that hold no data: one damage in eight may hit them."""

PAGES = (16, 512, 4096)

END = 1024
"""Bytes: half of the damage is in the last ones, because footers, and the latest of what logs list, are there."""


def files_of(directory: Path) -> list[str]:
    """Files that have something in them, by their path in the directory."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
    return sorted(str(path.relative_to(directory)) for path in found)


def kind_of(file: str) -> str:
    """What a file is for: its name without numbers."""
    name = file.rpartition("/")[2]
    if "spill/" in file:
        return "spill"
    for begin in ("MANIFEST", "OPTIONS", "LOG", "answers", "compacted", "description", "compaction", "."):
        if name.startswith(begin):
            return begin
    return name.rpartition(".")[2] if name[0].isdigit() else name


def damage(path: Path, drawn: random.Random) -> str:
    """Damages a file, which is not a hard link to another one. Returns the way, and where."""
    data = path.read_bytes()
    while True:
        how = drawn.choice(WAYS)
        place = drawn.randrange(max(0, len(data) - END) if drawn.random() < 0.5 else 0, len(data))
        page = min(drawn.choice(PAGES), len(data))
        start = min(place // page * page, len(data) - page)
        match how:
            case "flip":
                bit = drawn.randrange(8)
                made = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
            case "cut":
                made = data[:place]
            case "zero":
                made = data[:start] + bytes(page) + data[start + page :]
            case _:
                other = drawn.randrange(len(data) - page + 1)
                over = drawn.choice([0, page])  # In place of another one, or before it.
                made = data[:other] + data[start : start + page] + data[other + over :]
        if made != data:
            path.write_bytes(made)
            return f"{how} at {place} of {len(data)}"
