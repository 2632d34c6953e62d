"""Models of a disk and of an object store, which do what real ones may do at the worst moment.

`ModelDisk` stands below a `Place`: a process may die between any two of its calls, and in the middle of a write; a
power cut loses or keeps every name that was not synced, each by itself, and tears what was not synced. `ModelStore` is
an object store: a write is whole or absent, but its reply may be lost, it may be carried out again much later, and
listings may leave out new objects and show deleted ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pyarrow as pa

from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.storage import Disk, Entry

Choice = Callable[[], bool]


class KilledError(JournalError):
    """The process is dead: nothing after this runs."""


class Fuse:
    """Kills at a step."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError("killed")


class Inode:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.is_synced = False


class ModelDisk(Disk):
    renames = True

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.names: dict[str, Inode] = {}
        self.synced: dict[str, Inode] = {}

    def write(self, path: str, data: bytes) -> None:
        self.fuse.step()
        inode = self.names[path] = Inode(data[: len(data) // 2])
        self.fuse.step()
        inode.data = data
        self.fuse.step()
        inode.is_synced = True

    def rename(self, path: str, to: str) -> None:
        self.fuse.step()
        self.names[to] = self.names.pop(path)
        self.fuse.step()
        for name in self.all_names():
            if os.path.dirname(name) == os.path.dirname(to):
                if name in self.names:
                    self.synced[name] = self.names[name]
                else:
                    del self.synced[name]

    def make_directory(self, path: str) -> None:
        self.fuse.step()

    def list(self, path: str) -> list[Entry]:
        return [Entry(os.path.basename(n), len(i.data)) for n, i in self.names.items() if os.path.dirname(n) == path]

    def open(self, path: str) -> pa.NativeFile:
        if path not in self.names:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.names[path].data)

    def delete(self, path: str) -> None:
        self.fuse.step()
        if self.names.pop(path, None) is None:
            raise FileNotFoundError(path)

    def all_names(self) -> Sequence[str]:
        """By age: names are random."""
        return [*dict.fromkeys([*self.synced, *self.names])]

    def cut_power(self, kept: Choice) -> None:
        """Of everything that was not synced, what `kept` chooses stays."""
        after = {}
        for name in self.all_names():
            new, old = self.names.get(name), self.synced.get(name)
            inode = new if new is old or kept() else old
            if inode is not None:
                if not inode.is_synced and not kept():
                    inode.data = inode.data[: len(inode.data) // 3]
                after[name] = inode
        self.names, self.synced = after, dict(after)


class ModelStore(Disk):
    """An object store."""

    renames = False

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        """Puts that may be carried out once more."""
        self.lost_replies = 0
        self.refusals = 0
        self.hidden: set[str] = set()
        self.ghosts: dict[str, int] = {}
        self.lags = False

    def list(self, path: str) -> list[Entry]:
        sizes = {name: len(data) for name, data in self.objects.items() if name not in self.hidden} | self.ghosts
        return [Entry(os.path.basename(n), size) for n, size in sizes.items() if os.path.dirname(n) == path]

    def write(self, path: str, data: bytes) -> None:
        self.fuse.step()
        if self.refusals:
            self.refusals -= 1
            raise OSError("503 SLOW_DOWN")
        self.objects[path] = data
        if self.lags:
            self.hidden.add(path)
        if self.lost_replies:
            self.lost_replies -= 1
            self.late.append((path, data))
            raise OSError("the connection was lost")
        self.fuse.step()

    def open(self, path: str) -> pa.NativeFile:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.objects[path])

    def delete(self, path: str) -> None:
        self.fuse.step()
        data = self.objects.pop(path, None)
        self.hidden.discard(path)
        if self.lags and data is not None:
            self.ghosts[path] = len(data)

    def settle(self) -> None:
        self.hidden.clear()
        self.ghosts.clear()
        self.lags = False
