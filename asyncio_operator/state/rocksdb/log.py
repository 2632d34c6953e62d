"""Damage of write-ahead logs that RocksDB takes for their end.

A log consists of blocks of 32 KB, and a block of records: a masked CRC-32C of type and data (4 bytes), the length of
the data (2 bytes, little-endian), the type (1 byte), the data. RocksDB compares the checksums, and drops a record that
was written in part at the end, as it has to. Two kinds of damage look to it like that end, so that it would open
without the acknowledged writes behind them:

- a type of 5 to 8, which is for logs that are used again: RocksDB takes the rest for one of an older log;
- near the end, a length that reaches beyond the file: it takes the record for torn.

This module reads the headers of all records, and finds both: we do not use logs again, and the checksum of a record
with a wrong length still fits a shorter one.

Source: RocksDB's ``db/log_format.h`` and ``db/log_reader.cc``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import BinaryIO

BLOCK = 32_768
AT_ONCE = 64 * BLOCK
"""Bytes that are read at once."""

_header = struct.Struct("<IHB")
_RECYCLED = range(5, 9)
_MASK_DELTA = 0xA282EAD8


def damage_of(directory: Path) -> str | None:
    """What is damaged in the logs of a directory, of what RocksDB does not see; None if there is nothing."""
    for path in sorted(directory.glob("*.log")):
        try:
            with path.open("rb") as file:
                for start, block in _blocks(file):
                    if (found := _damage_in(block)) is not None:
                        return f"{path.name}, byte {start + found}"
        except OSError:
            continue  # RocksDB says what it is when it opens the directory.
    return None


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    start, data = 0, file.read(AT_ONCE)
    while data:
        for place in range(0, len(data), BLOCK):
            yield start + place, data[place : place + BLOCK]
        start += len(data)
        # What is behind a short read is written just now, and does not begin with a block.
        data = file.read(AT_ONCE) if len(data) == AT_ONCE else b""


def _damage_in(block: bytes) -> int | None:
    """Where a record is that is damaged and looks like the end. Only the last block of a file is less than `BLOCK`."""
    place, size, read, width = 0, len(block), _header.unpack_from, _header.size
    while place + width <= size:
        checksum, length, kind = read(block, place)
        if kind in _RECYCLED:
            return place
        end = place + width + length
        if end > size:
            fits = size < BLOCK and _fits_shorter(checksum, block[place + width - 1 :])
            return place if fits else None
        place = end
    return None


def _fits_shorter(masked: int, data: bytes) -> bool:
    """Whether a checksum is that of the beginning of the data, the type and any number of bytes behind it."""
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    wanted = ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF ^ 0xFFFFFFFF
    table, checksum = _table(), 0xFFFFFFFF
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
        if checksum == wanted:
            return True
    return False


@cache
def _table() -> tuple[int, ...]:
    """Of CRC-32C, Castagnoli's polynomial, reflected."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)
