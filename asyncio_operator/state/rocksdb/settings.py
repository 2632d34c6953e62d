"""RocksDB's own options, made from `RocksDBOptions`, what the databases of one process share, and what one uses.

All databases of a process with equal options share one block cache and one budget of write buffers. When a database is
opened it takes half of the rest of the budget, at least `LEAST`, and returns it when it is closed. RocksDB has a write
buffer manager for several databases, but with it an idle database keeps its memory, and then the others write a file
for each entry. Within a database RocksDB divides the part among its states, and writes the oldest buffer first.

No object of RocksDB is made before the first database is opened, and those of a process are not used in its children.
"""

from __future__ import annotations

import os
import threading
from typing import Final
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DataBlockIndexType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
)

from asyncio_operator.state.rocksdb_options import MIB, RocksDBOptions

ARENA: Final = 8 << 10
"""Bytes that a write buffer grows by. RocksDB's 1 MB would be taken by every state that was written once."""

FILTER: Final = 1 / 1024
"""The part of a write buffer that is a Bloom filter of its keys, which every state has from the beginning, 32 KiB by
default: reading a key that is new takes half of the time."""

LEAST: Final = 2 * MIB
"""Bytes of write buffers of a database. With 1 MB a write takes twice as long, because RocksDB merges small files."""

JOURNAL: Final = MIB
"""Bytes at which RocksDB begins a new journal of its work, and a new list of table files. Without a limit both grow as
long as the directory is used."""


class Settings:
    """The settings of one open database: its part of the shared budget, and the native options.

    A read-only database has no part.
    """

    def __init__(self, options: RocksDBOptions, read_only: bool) -> None:
        owner = os.getpid(), options
        self._options = options
        self.shared = shared = _shared.get(owner) or _shared.setdefault(owner, Shared(options))
        least = min(LEAST, options.write_buffer_bytes)
        with shared.lock:
            taken = sum(each.write_buffer for each in shared.open)
            self.write_buffer: int = max((options.write_buffer_bytes - taken) // 2, least)
            if not read_only:
                shared.open.add(self)

    def native(self) -> Options:
        """Options for a database and each of its column families: raw bytes in and out.

        A backend belongs to one thread, so RocksDB need not prepare for several writers: a tenth of a put.
        """
        given = self._options
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_allow_concurrent_memtable_write(False)
        options.set_db_write_buffer_size(self.write_buffer)
        options.set_write_buffer_size(self.write_buffer)
        options.set_arena_block_size(ARENA)
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(FILTER)
        # A log can be deleted once every family that wrote into it was written out; the limit makes RocksDB do so.
        options.set_max_total_wal_size(given.max_log_bytes)
        # Point-in-time recovery, the default of RocksDB, opens with the records before a damaged one and loses the
        # rest.
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(JOURNAL)
        options.set_max_manifest_file_size(JOURNAL)
        options.set_max_background_jobs(given.background_jobs)
        options.set_compression_type(getattr(DBCompressionType, given.compression)())
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(10, False)  # For reads of what is absent.
        blocks.set_block_cache(self.shared.cache)
        # Otherwise indexes and filters are outside of the cache, and grow with every file. Finding them in the cache
        # makes a read 4 % slower, which the hash index within blocks and the cache without locks make up for.
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
        blocks.set_data_block_hash_ratio(0.75)
        options.set_block_based_table_factory(blocks)
        return options

    def release(self) -> None:
        """Returns the part of the write buffers; called again it does nothing."""
        with self.shared.lock:
            self.shared.open.discard(self)


class Shared:
    """What the databases of a process with equal options share.

    Attributes:
        cache: the block cache.
        open: those that have a part of the write buffers; one that is dropped without being closed has none.
    """

    def __init__(self, options: RocksDBOptions) -> None:
        self.cache = Cache.new_hyper_clock_cache(options.block_cache_bytes, 0)  # 0: entries of any size.
        self.open: WeakSet[Settings] = WeakSet()
        self.lock = threading.Lock()


_shared: dict[tuple[int, RocksDBOptions], Shared] = {}
"""By process: a child does not touch the objects of its parent, not even to free them."""


def rewriting() -> CompactOptions:
    """Options to rewrite all files. RocksDB would only move one that overlaps no other, and keep its deleted
    entries."""
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
    return options
