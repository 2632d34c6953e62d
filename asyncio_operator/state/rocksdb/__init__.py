"""Keyed state and priority-queue sets on RocksDB: the only folder that imports rocksdict."""

from asyncio_operator.state.rocksdb.priority_queues import RocksDBCachingPriorityQueueSet
from asyncio_operator.state.rocksdb.rocksdb_backend import RocksDBStateBackend
from asyncio_operator.state.rocksdb.state_directory import RocksDBSnapshot

__all__ = ["RocksDBCachingPriorityQueueSet", "RocksDBSnapshot", "RocksDBStateBackend"]
