"""What workers ask the driver's service: budgets, and figures of running tasks."""

from __future__ import annotations

from pyspark.sql import SparkSession

from asyncio_operator.budget.addresses import states
from asyncio_operator.spark.driver.driver_service import Topics, driver_service
from asyncio_operator.spark.driver.ledger import ledgers
from asyncio_operator.spark.worker.driver_client import BUDGETS
from asyncio_operator.spark.worker.driver_wire import DriverAddress
from asyncio_operator.spark.worker.live_figures import FIGURES


def driver_address(spark: SparkSession) -> DriverAddress | None:
    """Where workers reach this process; None on Spark Connect.

    Raises:
        ConfigurationError: the driver cannot listen there.
    """
    service = driver_service(spark, _topics)
    return None if service is None else service.address


def _topics() -> Topics:
    # The spend of an earlier application is not that of the one that begins.
    states.forget_all()
    return {
        BUDGETS: lambda question: states.ask(question["name"], question["message"]),
        FIGURES: ledgers.take,
    }
