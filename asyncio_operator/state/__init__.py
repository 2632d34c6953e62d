"""Keyed state, priority queues and time to live, on the heap and on RocksDB.

Importing this package is cheap: each name is loaded when it is first used. Those of RocksDB need the extra ``rocksdb``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.state.backend import StateBackend, StateStatistics
    from asyncio_operator.state.checkpoints import (
        CheckpointedService,
        InFlightElements,
        SnapshotReader,
        StateEntry,
        StateInfo,
        checkpoint,
        restore_checkpoint,
    )
    from asyncio_operator.state.descriptors import (
        AggregateFunction,
        AggregatingStateDescriptor,
        CleanupFullSnapshot,
        CleanupInCompaction,
        CleanupIncrementally,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateMeta,
        StateTtlConfig,
        StateVisibility,
        UpdateType,
        ValueStateDescriptor,
    )
    from asyncio_operator.state.heap_backend import HeapStateBackend
    from asyncio_operator.state.heap_queue import HeapPriorityQueue
    from asyncio_operator.state.heap_set import (
        BatchPriorityQueueSet,
        HeapPriorityQueueSet,
        KeyGroupPartitionedPriorityQueue,
    )
    from asyncio_operator.state.key_groups import (
        KeyGroupRange,
        default_max_parallelism,
        key_group,
        key_group_range,
        operator_index,
    )
    from asyncio_operator.state.keys import KeySerializer
    from asyncio_operator.state.migration import MigratingMapState
    from asyncio_operator.state.priority_queue import PriorityQueue, PriorityQueueSet
    from asyncio_operator.state.rocksdb import RocksDBCachingPriorityQueueSet, RocksDBSnapshot, RocksDBStateBackend
    from asyncio_operator.state.rocksdb_options import RocksDBOptions
    from asyncio_operator.state.serializers import BuiltinSerializer, Serializer
    from asyncio_operator.state.snapshot import HeapSnapshot, StateSnapshot
    from asyncio_operator.state.states import AggregatingState, ListState, MapState, ReducingState, ValueState

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BatchPriorityQueueSet",
    "BuiltinSerializer",
    "CheckpointedService",
    "CleanupFullSnapshot",
    "CleanupInCompaction",
    "CleanupIncrementally",
    "HeapPriorityQueue",
    "HeapPriorityQueueSet",
    "HeapSnapshot",
    "HeapStateBackend",
    "InFlightElements",
    "KeyGroupPartitionedPriorityQueue",
    "KeyGroupRange",
    "KeySerializer",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MigratingMapState",
    "PriorityQueue",
    "PriorityQueueSet",
    "ReducingState",
    "ReducingStateDescriptor",
    "RocksDBOptions",
    "Serializer",
    "SnapshotReader",
    "StateBackend",
    "StateEntry",
    "StateInfo",
    "StateMeta",
    "StateSnapshot",
    "StateStatistics",
    "StateTtlConfig",
    "StateVisibility",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
    "checkpoint",
    "default_max_parallelism",
    "key_group",
    "key_group_range",
    "operator_index",
    "restore_checkpoint",
]
if TYPE_CHECKING or find_spec("rocksdict"):  # so that a star import works without it
    __all__ += ["RocksDBCachingPriorityQueueSet", "RocksDBSnapshot", "RocksDBStateBackend"]

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
