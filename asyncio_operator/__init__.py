"""Asynchronous I/O for PySpark: enrich rows with data that lives outside Spark, with many calls in flight.

The names below are the public surface without Spark; `asyncio_operator.spark` has the DataFrame side. Importing this
package imports no third-party library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.budget.spec import Budget, Limit
    from asyncio_operator.budget.statistics import BudgetStatistics, UnitStatistics
    from asyncio_operator.elements import OperatorSnapshot, Record, Watermark
    from asyncio_operator.enricher import Enricher
    from asyncio_operator.errors import (
        AsyncOperatorError,
        BudgetExceeded,
        CircuitOpenError,
        ConfigurationError,
        CoordinatorError,
        ElementTimeoutError,
        EnricherError,
        FunctionError,
        MissingKeyError,
        ResultError,
        StateError,
        StateMigrationError,
    )
    from asyncio_operator.figures import OperatorStatistics
    from asyncio_operator.function import AsyncFunction, BatchAsyncFunction, BlockingFunction
    from asyncio_operator.journal.options import Journal
    from asyncio_operator.metrics import Latency
    from asyncio_operator.operator.wait_operator import AsyncWaitOperator
    from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity
    from asyncio_operator.policies.batching import Batching
    from asyncio_operator.policies.cache import Cache
    from asyncio_operator.policies.circuit_breaker import CircuitBreaker
    from asyncio_operator.policies.hedge import Hedge
    from asyncio_operator.policies.rate_limit import RateLimit
    from asyncio_operator.policies.retry import ExponentialBackoff, FixedBackoff, Retry
    from asyncio_operator.state.rocksdb_options import RocksDBOptions

__version__ = "0.1.0"

__all__ = [
    "AdaptiveCapacity",
    "AsyncFunction",
    "AsyncOperatorError",
    "AsyncWaitOperator",
    "BatchAsyncFunction",
    "Batching",
    "BlockingFunction",
    "Budget",
    "BudgetExceeded",
    "BudgetStatistics",
    "Cache",
    "CircuitBreaker",
    "CircuitOpenError",
    "ConfigurationError",
    "CoordinatorError",
    "ElementTimeoutError",
    "Enricher",
    "EnricherError",
    "ExponentialBackoff",
    "FixedBackoff",
    "FunctionError",
    "Hedge",
    "Journal",
    "Latency",
    "Limit",
    "MissingKeyError",
    "OperatorSnapshot",
    "OperatorStatistics",
    "RateLimit",
    "Record",
    "ResultError",
    "Retry",
    "RocksDBOptions",
    "StateError",
    "StateMigrationError",
    "UnitStatistics",
    "Watermark",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.budget.spec": "Budget Limit",
            "asyncio_operator.budget.statistics": "BudgetStatistics UnitStatistics",
            "asyncio_operator.elements": "OperatorSnapshot Record Watermark",
            "asyncio_operator.enricher": "Enricher",
            "asyncio_operator.errors": (
                "AsyncOperatorError BudgetExceeded CircuitOpenError ConfigurationError CoordinatorError "
                "ElementTimeoutError EnricherError FunctionError MissingKeyError ResultError StateError "
                "StateMigrationError"
            ),
            "asyncio_operator.figures": "OperatorStatistics",
            "asyncio_operator.function": "AsyncFunction BatchAsyncFunction BlockingFunction",
            "asyncio_operator.journal.options": "Journal",
            "asyncio_operator.metrics": "Latency",
            "asyncio_operator.operator.wait_operator": "AsyncWaitOperator",
            "asyncio_operator.policies.adaptive_capacity": "AdaptiveCapacity",
            "asyncio_operator.policies.batching": "Batching",
            "asyncio_operator.policies.cache": "Cache",
            "asyncio_operator.policies.circuit_breaker": "CircuitBreaker",
            "asyncio_operator.policies.hedge": "Hedge",
            "asyncio_operator.policies.rate_limit": "RateLimit",
            "asyncio_operator.policies.retry": "ExponentialBackoff FixedBackoff Retry",
            "asyncio_operator.state.rocksdb_options": "RocksDBOptions",
        },
    )
