"""Damage of RocksDB's logs that RocksDB does not see: it would open without a part of what was acknowledged.

The write-ahead log, and the MANIFEST, which is the log of the table files, have one format: blocks of 32 KB, and a
block of records: a masked CRC-32C of type and data (4 bytes), the length of the data (2 bytes, little-endian), the type
(1 byte), the data. A process that is killed leaves its last record cut short, and that is no damage. RocksDB takes
more than that for such an end, and drops what follows:

- a type of 5 to 8, which is for recycled logs, and zeros, which are for logs in mapped memory: neither is used here;
- near the end, a length that reaches beyond the file, though the checksum of such a record fits a shorter one;
- in the MANIFEST nearly everything, and some of it makes RocksDB wait for ever. So there every checksum is compared;
  in the write-ahead log RocksDB does that, and it would take Python too long;
- an end of a log that is not the last one, and a log that is missing between others. Each batch of writes has its
  place in the order of all writes, and their number, so the next one tells whether there is a hole between.

Source: RocksDB's ``db/log_format.h``, ``db/log_reader.cc`` and ``db/write_batch.cc``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

BLOCK = 32_768
AT_ONCE = 64 * BLOCK  # Bytes that are read at once.

_header = struct.Struct("<IHB")
_batch = struct.Struct("<QI")
_FULL, _FIRST, _LAST = 1, 2, 4
_MASK_DELTA = 0xA282EAD8

Record = tuple[int, int, bytes]
"""Where a record begins in its file, its checksum, and its type with its data."""


class LogCheck:
    """Reads the logs of a directory: all headers and checksums of the MANIFEST, all headers of the write-ahead log."""

    def __init__(self, directory: Path) -> None:
        self.damage: str | None = None  # The first record that no process writes: file and byte.
        self._holes: list[tuple[int, str]] = []
        self._last = 0  # The log that holds the batch before.
        self._next: int | None = None
        logs = sorted((int(path.stem), path) for path in directory.glob("*.log") if path.stem.isdecimal())
        for number, path in [*((0, path) for path in directory.glob("MANIFEST-*")), *logs]:
            try:
                with path.open("rb") as file:
                    if number:
                        self._follow(number, file)
                    else:
                        for place, checksum, record in _records(file):
                            if checksum_of(record) != checksum:
                                raise _DamageError(place)
            except OSError:
                continue  # RocksDB reports it when it opens the directory.
            except _DamageError as found:
                self.damage = f"{path.name}, byte {found}"
                break

    def hole(self, needed: int) -> str | None:
        """The first batch, as file and byte, with writes missing before it; None if there is none. `needed` is the
        oldest log that RocksDB needs: it deletes the older ones, in any order."""
        return next((where for log, where in self._holes if log >= needed), None)

    def _follow(self, number: int, file: BinaryIO) -> None:
        head, begun, last, expected = b"", 0, self._last, self._next
        for place, _, record in _records(file):
            kind = record[0]
            # A batch begins with its place in the order of all writes, and their number. RocksDB cuts a batch into
            # records where a block ends, also within these bytes.
            if kind in (_FULL, _FIRST):
                head, begun = record, place
            elif len(head) <= _batch.size:
                head += record[1:]
            if kind in (_FULL, _LAST) and len(head) > _batch.size:
                first, count = _batch.unpack_from(head, 1)
                if first != expected and expected is not None:
                    self._holes.append((last, f"{Path(file.name).name}, byte {begun}"))
                last, expected = number, first + count
        self._last, self._next = last, expected


class _DamageError(Exception):
    """Where in its file a damaged record begins."""


def _records(file: BinaryIO) -> Iterator[Record]:
    read, width = _header.unpack_from, _header.size
    for start, block in _blocks(file):
        place, size = 0, len(block)
        while place + width <= size:
            checksum, length, kind = read(block, place)
            end = place + width + length
            # A crash cuts a record short only in the last block, the only one that is shorter than `BLOCK`. The
            # checksum tells such a record from one whose length is damaged.
            if not _FULL <= kind <= _LAST or (
                end > size and (size == BLOCK or _fits_shorter(checksum, block[place + width - 1 :]))
            ):
                raise _DamageError(start + place)
            if end > size:
                return
            yield start + place, checksum, block[place + width - 1 : end]
            place = end


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    start, data = 0, file.read(AT_ONCE)
    while data:
        for place in range(0, len(data), BLOCK):
            yield start + place, data[place : place + BLOCK]
        start += len(data)
        # After a short read the file may have grown, and what came since does not begin at a block.
        data = file.read(AT_ONCE) if len(data) == AT_ONCE else b""


def checksum_of(data: bytes) -> int:
    """The CRC-32C of bytes, masked as RocksDB stores it, so that a CRC of bytes that hold CRCs is still a good one."""
    table, checksum = _table(), 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _fits_shorter(masked: int, data: bytes) -> bool:
    """Whether a checksum is that of the beginning of the data, the type and any number of bytes behind it."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    wanted = ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF ^ 0xFFFFFFFF
    table, checksum = _table(), 0xFFFFFFFF
    # One pass tries every length. A record that was cut short fits none, but for a chance of one in 4 billion a byte.
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
        if checksum == wanted:
            return True
    return False


@cache
def _table() -> tuple[int, ...]:
    """The table of CRC-32C: Castagnoli's polynomial, reflected."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)
