"""The limits of RocksDB for memory, disk and threads: only the options, and no code that acts on them.

The defaults are for a Python worker, of which a machine has one for each core, with a few states or caches of some
megabytes to gigabytes each. RocksDB's own defaults are for one server with one database: 64 MB of write buffer and
32 MB of block cache for every state, and a log four times as large as all write buffers together.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncio_operator.checks import must_be, one_of

MIB = 1 << 20

SMALLEST = MIB  # Bytes; with less RocksDB writes a file for a few hundred entries, and merges files all the time.
LARGEST = 1 << 40  # Bytes: more than a machine has, and less than RocksDB's counters hold.
MOST_JOBS = 64  # More threads than that never have files to merge at the same time.


@dataclass(frozen=True, slots=True)
class RocksDBOptions:
    """Limits of RocksDB for state, timers and caches on disk.

    Everything in one process with equal options shares one block cache and one budget of write buffers.

    Attributes:
        write_buffer_bytes: memory for writes that are not yet in table files, of all databases together.
        block_cache_bytes: memory for what was read from table files, of all databases together: data, their indexes
            and Bloom filters.
        max_log_bytes: size of the write-ahead log of each database at which it is written to table files. An opening
            after a crash reads the log again.
        background_jobs: threads that write and merge table files, in the whole process.
        compression: of table files, "none", "snappy", "lz4" or "zstd".

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    # A database whose buffer is full waits for the disk. 32 MiB of it, what the first one gets, are a second of writes
    # at the speed of Python; the whole is small beside the 100 MB of a Python worker with Spark and Arrow.
    write_buffer_bytes: int = 64 * MIB
    # Indexes and filters of 10 million entries, or the hot part of the data; the system caches the files once more.
    block_cache_bytes: int = 32 * MIB
    # Read again in 0.3 s. Half of it is the largest file that a database of the default buffers writes at once.
    max_log_bytes: int = 32 * MIB
    # One writes buffers to files while the other merges files.
    background_jobs: int = 2
    # As fast as none, and a third to an eighth of the space for usual rows; RocksDB recommends it before Snappy.
    compression: str = "lz4"

    def __post_init__(self) -> None:
        bounds = dict.fromkeys(("write_buffer_bytes", "block_cache_bytes", "max_log_bytes"), (SMALLEST, LARGEST))
        for name, (least, most) in {**bounds, "background_jobs": (1, MOST_JOBS)}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise must_be(name, value, f"an int from {least} to {most}")
        one_of("compression", self.compression, ("none", "snappy", "lz4", "zstd"))
