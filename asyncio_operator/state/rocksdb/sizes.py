"""The memory and disk space of an open database, from RocksDB's own properties and the sizes of its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rocksdict import Rdict

from asyncio_operator.state.statistics import StateStatistics

BUFFERS = "rocksdb.cur-size-all-mem-tables"
READERS = "rocksdb.estimate-table-readers-mem"
PENDING = "rocksdb.estimate-pending-compaction-bytes"


def statistics_of(directory: Path, families: Iterable[Rdict], shared_cache: int) -> StateStatistics:
    """The statistics of a database with these column families; raises what rocksdict raises."""
    totals = dict.fromkeys((BUFFERS, READERS, PENDING), 0)
    for family in families:
        for name in totals:
            totals[name] += family.property_int_value(name) or 0
    disk = log = 0
    for path in directory.iterdir():
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue  # RocksDB deletes files in the background.
        disk += size
        if path.suffix == ".log":
            log += size
    return StateStatistics(
        memory=totals[BUFFERS] + totals[READERS],
        disk=disk,
        log=log,
        pending_compaction=totals[PENDING],
        shared_cache=shared_cache,
    )
