"""OpenTelemetry: calls as spans and metrics, under the global providers of the process that makes the calls (law V4).

Nothing here imports OpenTelemetry unless the program has done so, or a task has a function for `set_up`. Where no
provider is set, runs call their function directly: there is nothing to pay.

    annotations  what an enricher says about its running call
    calls        the one seam: puts a span around each call of a run
    spans        the span and the metrics of a call, and of runs   (imports OpenTelemetry)
    propagation  the driver's trace context for its workers, and the function that sets them up
"""

from asyncio_operator.telemetry.propagation import set_up

__all__ = ["set_up"]
