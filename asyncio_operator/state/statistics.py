"""The memory and the disk space that a state backend uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateStatistics:
    """Figures of a state backend now, in bytes. All are 0 for a backend in memory: Python counts no bytes of objects.

    Attributes:
        memory: write buffers of this backend, and the data about its table files that are outside of the block cache.
        disk: all files of its directory, the log included.
        log: the write-ahead log, which an opening after a crash reads.
        pending_compaction: what RocksDB still has to rewrite to merge table files; an estimate.
        shared_cache: the block cache, which all databases of the process with equal options share; the same figure in
            each of them.
    """

    memory: int = 0
    disk: int = 0
    log: int = 0
    pending_compaction: int = 0
    shared_cache: int = 0
