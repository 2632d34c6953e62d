"""Damage of write-ahead logs that RocksDB mistakes for the end of the log.

A log consists of blocks of 32 KB, and a block of records: a masked CRC-32C of type and data (4 bytes), the length of
the data (2 bytes, little-endian), the type (1 byte), the data. RocksDB compares the checksums. A record at the end that
was only partly written is dropped, and has to be. Two kinds of damage look like such an end to RocksDB. It would open
the directory without the acknowledged writes behind them:

- a type of 5 to 8, which is for recycled logs: RocksDB takes the rest for the rest of an older log;
- near the end, a length that reaches beyond the file: RocksDB takes the record for one that was partly written.

This module reads the headers of all records and finds both: we do not recycle logs, and the checksum of a record
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
    """The first damage in the logs of a directory that RocksDB does not see: file and byte; None if there is none."""
    for path in sorted(directory.glob("*.log")):
        try:
            with path.open("rb") as file:
                for start, block in _blocks(file):
                    if (found := _damage_in(block)) is not None:
                        return f"{path.name}, byte {start + found}"
        except OSError:
            continue  # RocksDB reports it when it opens the directory.
    return None


def _blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    start, data = 0, file.read(AT_ONCE)
    while data:
        for place in range(0, len(data), BLOCK):
            yield start + place, data[place : place + BLOCK]
        start += len(data)
        # After a short read the file may have grown, and what came since does not begin at a block.
        data = file.read(AT_ONCE) if len(data) == AT_ONCE else b""


def _damage_in(block: bytes) -> int | None:
    """The place of a damaged record that looks like the end. Only the last block of a file is shorter than `BLOCK`."""
    place, size, read, width = 0, len(block), _header.unpack_from, _header.size
    while place + width <= size:
        checksum, length, kind = read(block, place)
        # No log of ours has these types: only damage can.
        if kind in _RECYCLED:
            return place
        end = place + width + length
        if end > size:
            # In a whole block RocksDB itself reports such a length. In the last one it does not. There the checksum
            # tells a record that a crash cut short from one whose length is damaged. It begins at the type, before the
            # data.
            fits = size < BLOCK and _fits_shorter(checksum, block[place + width - 1 :])
            return place if fits else None
        place = end
    return None


def _fits_shorter(masked: int, data: bytes) -> bool:
    """Whether a checksum is that of the beginning of the data, the type and any number of bytes behind it."""
    # RocksDB stores a CRC rotated and shifted, so that a CRC of bytes that hold CRCs is still a good one.
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
