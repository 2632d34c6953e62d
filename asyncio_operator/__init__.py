"""Asynchronous I/O for PySpark: enrich rows with data that lives outside Spark, with many calls in flight.

The names below are the public surface without Spark; `asyncio_operator.spark` has the DataFrame side. Importing this
package imports no third-party library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.elements import OperatorSnapshot as OperatorSnapshot
    from asyncio_operator.elements import Record as Record
    from asyncio_operator.elements import Watermark as Watermark
    from asyncio_operator.enricher import Enricher as Enricher
    from asyncio_operator.errors import AsyncOperatorError as AsyncOperatorError
    from asyncio_operator.errors import BudgetExceeded as BudgetExceeded
    from asyncio_operator.errors import CircuitOpenError as CircuitOpenError
    from asyncio_operator.errors import ConfigurationError as ConfigurationError
    from asyncio_operator.errors import CoordinatorError as CoordinatorError
    from asyncio_operator.errors import ElementTimeoutError as ElementTimeoutError
    from asyncio_operator.errors import EnricherError as EnricherError
    from asyncio_operator.errors import FunctionError as FunctionError
    from asyncio_operator.errors import MissingKeyError as MissingKeyError
    from asyncio_operator.errors import ResultError as ResultError
    from asyncio_operator.errors import StateError as StateError
    from asyncio_operator.errors import StateMigrationError as StateMigrationError
    from asyncio_operator.figures import OperatorStatistics as OperatorStatistics
    from asyncio_operator.function import AsyncFunction as AsyncFunction
    from asyncio_operator.function import BatchAsyncFunction as BatchAsyncFunction
    from asyncio_operator.function import BlockingFunction as BlockingFunction
    from asyncio_operator.journal.options import Journal as Journal
    from asyncio_operator.metrics import Latency as Latency
    from asyncio_operator.operator.wait_operator import AsyncWaitOperator as AsyncWaitOperator
    from asyncio_operator.policies.adaptive_capacity import AdaptiveCapacity as AdaptiveCapacity
    from asyncio_operator.policies.batching import Batching as Batching
    from asyncio_operator.policies.cache import Cache as Cache
    from asyncio_operator.policies.circuit_breaker import CircuitBreaker as CircuitBreaker
    from asyncio_operator.policies.hedge import Hedge as Hedge
    from asyncio_operator.policies.rate_limit import RateLimit as RateLimit
    from asyncio_operator.policies.retry import ExponentialBackoff as ExponentialBackoff
    from asyncio_operator.policies.retry import FixedBackoff as FixedBackoff
    from asyncio_operator.policies.retry import Retry as Retry
    from asyncio_operator.quota.spec import Budget as Budget
    from asyncio_operator.quota.spec import BudgetStatistics as BudgetStatistics
    from asyncio_operator.quota.spec import Limit as Limit
    from asyncio_operator.quota.spec import UnitStatistics as UnitStatistics
    from asyncio_operator.state.rocksdb_options import RocksDBOptions as RocksDBOptions

__version__ = "0.1.0"

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "asyncio_operator.quota.spec": "Budget BudgetStatistics Limit UnitStatistics",
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
