"""The keys of files that came after a listing, in memory: which rows of which row groups have the keys of a batch.

A task asks for every batch of its rows. Without this it would read the keys of all later files each time. The memory is
bounded; files beyond it are searched each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.key_arrays import Ints, key_array
from asyncio_operator.arrow.key_index import KeyIndex
from asyncio_operator.journal.files import open_file, read_columns
from asyncio_operator.journal.format import MEGABYTE, Description
from asyncio_operator.journal.storage import Place

MOST_BYTES = 64 * MEGABYTE
"""Of keys and of their index: about three million numbers."""

PER_ROW = 12
"""Bytes of the index for a row."""


class Hits(NamedTuple):
    """Rows of one row group, and for each the position of its key among those that were asked for."""

    name: str
    group: int
    rows: Ints
    codes: Ints


class LaterKeys:
    """The keys of some files."""

    def __init__(self, place: Place, description: Description) -> None:
        self._place = place
        self._description = description
        self._files: dict[str, list[pa.Array]] = {}
        self._bytes = 0
        self._index: KeyIndex | None = None
        self._groups: list[tuple[str, int]] = []
        self._starts: Ints = np.zeros(0, np.int64)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def set_files(self, names: Sequence[str]) -> None:
        """Read the keys of new files, as far as there is room, and drop those of others.

        Raises:
            FileNotFoundError: a file is gone.
        """
        kept = set(names)
        self._files = {name: groups for name, groups in self._files.items() if name in kept}
        self._bytes = sum(map(_size, self._files.values()))
        for name in names:
            if name not in self._files and self._bytes < MOST_BYTES:
                self._add(name)
        self._groups = [(name, group) for name, groups in self._files.items() for group in range(len(groups))]
        arrays = [array for groups in self._files.values() for array in groups]
        self._starts = np.cumsum([0, *map(len, arrays)])
        self._index = KeyIndex(pa.concat_arrays(arrays)) if arrays else None

    def _add(self, name: str) -> None:
        file = open_file(self._place, name, self._description)
        if file is None:
            return  # It may be complete later, and is searched until then.
        with file:
            if self._bytes + PER_ROW * file.metadata.num_rows > MOST_BYTES:
                return
            groups = []
            for group in range(file.num_row_groups):
                table = read_columns(file, group, self._description.keys.names, self._description)
                groups.append(key_array([column.combine_chunks() for column in table.columns]))
        self._files[name] = groups
        self._bytes += _size(groups)

    def find(self, asked: pa.Array) -> Iterator[Hits]:
        """The rows of keys, by row group."""
        if self._index is None:
            return
        rows, codes = self._index.find(asked)
        group_of = np.searchsorted(self._starts, rows, side="right") - 1
        # Rows of a group in their order, because they are taken from it.
        order = np.lexsort((rows, group_of))
        rows, codes, group_of = rows[order], codes[order], group_of[order]
        cuts = np.flatnonzero(np.diff(group_of)) + 1
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            if start < end:
                number = int(group_of[start])
                name, group = self._groups[number]
                yield Hits(name, group, rows[start:end] - self._starts[number], codes[start:end])


def _size(groups: list[pa.Array]) -> int:
    return sum(array.nbytes + PER_ROW * len(array) for array in groups)
