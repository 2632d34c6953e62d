"""Propagates the trace context (W3C) of the driver to its workers, and the function that sets up OpenTelemetry there.

A worker is a process of its own, so it needs providers of its own. Law: whatever goes wrong here is logged once, and
fails no task.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from asyncio_operator.checks import plain_function
from asyncio_operator.errors import describe_error
from asyncio_operator.telemetry.calls import log_once, providers

logger = logging.getLogger("asyncio_operator.telemetry")

FLUSH = 1.0
"""Seconds that a task waits, at its end, until the spans of its process are exported. A worker may be killed at any
moment after its last task."""


SetUp = tuple[Callable[[], object], str]
"""A function that sets the providers of a process. The name tells apart two of them, also in another process."""


@dataclass(frozen=True, slots=True)
class Propagated:
    """What a task has of the driver. It is sent to the workers."""

    # The trace context of the driver, as W3C's headers: ``traceparent`` and perhaps ``tracestate``.
    headers: Mapping[str, str]
    set_up: SetUp | None  # None if workers are set up in another way, or not at all.


_chosen: SetUp | None = None
_done: set[str] = set()
_flushing: threading.Thread | None = None


def set_up(function: Callable[[], object]) -> None:
    """Set up OpenTelemetry here and in the Python workers of all enrichments that are made from now on.

    Args:
        function: without arguments. It sets the global providers of the process that calls it. It is called now, and
            once in each worker, before the first call there. It is sent to the workers inside of the job, so it should
            take secrets from the environment. The latest function counts.

    Raises:
        ConfigurationError: it is not an ordinary function.
    """
    global _chosen
    plain_function("function", function, "a function that sets the providers of OpenTelemetry")
    function()
    name = os.urandom(16).hex()
    _chosen = function, name
    _done.add(name)


def inject() -> Propagated | None:
    """The trace context here and the function for `set_up`, for tasks; None if there is neither."""
    headers: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return Propagated(headers, _chosen) if headers or _chosen else None


@contextmanager
def in_task(propagated: Propagated | None) -> Iterator[None]:
    """The frame of a task, on its main thread: sets up its process before, and exports its spans afterwards."""
    global _flushing
    function, name = (None, "") if propagated is None or propagated.set_up is None else propagated.set_up
    if function is not None and name not in _done:
        _done.add(name)
        try:
            function()
        except Exception as error:
            logger.warning(
                "OpenTelemetry is not set up in this worker (%s), so its calls have no spans: %s",
                sys.executable,
                describe_error(error),
            )
    try:
        yield
    finally:
        set_here = providers()
        if set_here and (_flushing is None or not _flushing.is_alive()):

            def flush() -> None:
                for provider in set_here:
                    if hasattr(provider, "force_flush"):
                        try:
                            provider.force_flush()
                        except Exception as error:
                            log_once("a provider of OpenTelemetry has not exported what it holds", error)

            # In a thread: a collector that does not answer must not hold a task.
            _flushing = threading.Thread(target=flush, name="asyncio-operator-telemetry", daemon=True)
            _flushing.start()
            _flushing.join(FLUSH)


@contextmanager
def extracted(propagated: Propagated | None) -> Iterator[None]:
    """Makes the trace context of the driver that of the runs which start here, on the loop."""
    if propagated is None or not propagated.headers or not providers():
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(propagated.headers))
    try:
        yield
    finally:
        context.detach(token)
