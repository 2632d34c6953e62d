"""Asynchronous I/O for PySpark: enrich rows with data that lives outside Spark, with many calls in flight.

The names below are the public surface without Spark; `asyncio_operator.spark` has the DataFrame side. Importing this
package imports no third-party library.
"""

from asyncio_operator.elements import Record, Watermark
from asyncio_operator.enricher import Enricher
from asyncio_operator.errors import (
    AsyncOperatorError,
    CircuitOpenError,
    ConfigurationError,
    ElementTimeoutError,
    EnricherError,
    FunctionError,
    ResultError,
    StateError,
    StateMigrationError,
)
from asyncio_operator.function import AsyncFunction, BlockingFunction
from asyncio_operator.metrics import Latency, OperatorStatistics
from asyncio_operator.operator import AsyncWaitOperator

__version__ = "0.1.0"

__all__ = [
    "AsyncFunction",
    "AsyncOperatorError",
    "AsyncWaitOperator",
    "BlockingFunction",
    "CircuitOpenError",
    "ConfigurationError",
    "ElementTimeoutError",
    "Enricher",
    "EnricherError",
    "FunctionError",
    "Latency",
    "OperatorStatistics",
    "Record",
    "ResultError",
    "StateError",
    "StateMigrationError",
    "Watermark",
]
