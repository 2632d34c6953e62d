"""Keyed state, priority queues and time to live, on the heap and on RocksDB.

Importing this package is cheap: each name is loaded when it is first used. Those of RocksDB need the extra ``rocksdb``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend as StateBackend
    from asyncio_operator.state.backend import StateStatistics as StateStatistics
    from asyncio_operator.state.checkpoints import CheckpointedService as CheckpointedService
    from asyncio_operator.state.checkpoints import InFlightElements as InFlightElements
    from asyncio_operator.state.checkpoints import SnapshotReader as SnapshotReader
    from asyncio_operator.state.checkpoints import StateEntry as StateEntry
    from asyncio_operator.state.checkpoints import StateInfo as StateInfo
    from asyncio_operator.state.checkpoints import checkpoint as checkpoint
    from asyncio_operator.state.checkpoints import restore_checkpoint as restore_checkpoint
    from asyncio_operator.state.descriptors import AggregateFunction as AggregateFunction
    from asyncio_operator.state.descriptors import AggregatingStateDescriptor as AggregatingStateDescriptor
    from asyncio_operator.state.descriptors import CleanupFullSnapshot as CleanupFullSnapshot
    from asyncio_operator.state.descriptors import CleanupInCompaction as CleanupInCompaction
    from asyncio_operator.state.descriptors import CleanupIncrementally as CleanupIncrementally
    from asyncio_operator.state.descriptors import ListStateDescriptor as ListStateDescriptor
    from asyncio_operator.state.descriptors import MapStateDescriptor as MapStateDescriptor
    from asyncio_operator.state.descriptors import ReducingStateDescriptor as ReducingStateDescriptor
    from asyncio_operator.state.descriptors import StateMeta as StateMeta
    from asyncio_operator.state.descriptors import StateTtlConfig as StateTtlConfig
    from asyncio_operator.state.descriptors import StateVisibility as StateVisibility
    from asyncio_operator.state.descriptors import UpdateType as UpdateType
    from asyncio_operator.state.descriptors import ValueStateDescriptor as ValueStateDescriptor
    from asyncio_operator.state.heap_backend import HeapStateBackend as HeapStateBackend
    from asyncio_operator.state.heap_queue import HeapPriorityQueue as HeapPriorityQueue
    from asyncio_operator.state.heap_set import BatchPriorityQueueSet as BatchPriorityQueueSet
    from asyncio_operator.state.heap_set import HeapPriorityQueueSet as HeapPriorityQueueSet
    from asyncio_operator.state.heap_set import KeyGroupPartitionedPriorityQueue as KeyGroupPartitionedPriorityQueue
    from asyncio_operator.state.key_groups import KeyGroupRange as KeyGroupRange
    from asyncio_operator.state.key_groups import default_max_parallelism as default_max_parallelism
    from asyncio_operator.state.key_groups import key_group as key_group
    from asyncio_operator.state.key_groups import key_group_range as key_group_range
    from asyncio_operator.state.key_groups import operator_index as operator_index
    from asyncio_operator.state.keys import KeySerializer as KeySerializer
    from asyncio_operator.state.migration import MigratingMapState as MigratingMapState
    from asyncio_operator.state.priority_queue import PriorityQueue as PriorityQueue
    from asyncio_operator.state.priority_queue import PriorityQueueSet as PriorityQueueSet
    from asyncio_operator.state.rocksdb import RocksDBCachingPriorityQueueSet as RocksDBCachingPriorityQueueSet
    from asyncio_operator.state.rocksdb import RocksDBSnapshot as RocksDBSnapshot
    from asyncio_operator.state.rocksdb import RocksDBStateBackend as RocksDBStateBackend
    from asyncio_operator.state.rocksdb_options import RocksDBOptions as RocksDBOptions
    from asyncio_operator.state.serializers import BuiltinSerializer as BuiltinSerializer
    from asyncio_operator.state.serializers import Serializer as Serializer
    from asyncio_operator.state.snapshot import HeapSnapshot as HeapSnapshot
    from asyncio_operator.state.snapshot import StateSnapshot as StateSnapshot
    from asyncio_operator.state.states import AggregatingState as AggregatingState
    from asyncio_operator.state.states import ListState as ListState
    from asyncio_operator.state.states import MapState as MapState
    from asyncio_operator.state.states import ReducingState as ReducingState
    from asyncio_operator.state.states import ValueState as ValueState

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.state.backend": "StateBackend StateStatistics",
            "asyncio_operator.state.checkpoints": (
                "CheckpointedService InFlightElements SnapshotReader StateEntry StateInfo checkpoint restore_checkpoint"
            ),
            "asyncio_operator.state.descriptors": (
                "AggregateFunction AggregatingStateDescriptor ListStateDescriptor MapStateDescriptor "
                "ReducingStateDescriptor StateMeta ValueStateDescriptor CleanupFullSnapshot CleanupInCompaction "
                "CleanupIncrementally StateTtlConfig StateVisibility UpdateType"
            ),
            "asyncio_operator.state.heap_backend": "HeapStateBackend",
            "asyncio_operator.state.heap_queue": "HeapPriorityQueue",
            "asyncio_operator.state.heap_set": (
                "BatchPriorityQueueSet HeapPriorityQueueSet KeyGroupPartitionedPriorityQueue"
            ),
            "asyncio_operator.state.key_groups": (
                "KeyGroupRange default_max_parallelism key_group key_group_range operator_index"
            ),
            "asyncio_operator.state.keys": "KeySerializer",
            "asyncio_operator.state.migration": "MigratingMapState",
            "asyncio_operator.state.priority_queue": "PriorityQueue PriorityQueueSet",
            "asyncio_operator.state.rocksdb": "RocksDBCachingPriorityQueueSet RocksDBSnapshot RocksDBStateBackend",
            "asyncio_operator.state.rocksdb_options": "RocksDBOptions",
            "asyncio_operator.state.serializers": "BuiltinSerializer Serializer",
            "asyncio_operator.state.snapshot": "HeapSnapshot StateSnapshot",
            "asyncio_operator.state.states": "AggregatingState ListState MapState ReducingState ValueState",
        },
        needs={"asyncio_operator.state.rocksdb": ("rocksdict", "rocksdb")},
    )
