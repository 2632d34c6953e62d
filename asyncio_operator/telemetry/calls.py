"""The seam between runs and OpenTelemetry: the function that a run calls, with a span around each call. And the log of
the first call.

A run asks once, when it starts. Where no provider is set it gets its own function back. This module imports nothing of
OpenTelemetry: a provider can only be set by code that has done so.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from asyncio_operator.clock import monotonic
from asyncio_operator.errors import describe_error
from asyncio_operator.figures import Figures
from asyncio_operator.telemetry.annotations import Attributes

logger = logging.getLogger("asyncio_operator.telemetry")
calls_logger = logging.getLogger("asyncio_operator.calls")

Invoke = Callable[[Any], Awaitable[Any]]

APIS = {"opentelemetry.trace": "get_tracer_provider", "opentelemetry.metrics": "get_meter_provider"}
"""The modules of OpenTelemetry that hold a global provider, and the function that returns it."""


_logged: set[str] = set()


def log_once(problem: str, error: Exception) -> None:
    """Log a problem with OpenTelemetry, which fails no run, the first time that this process has it."""
    if problem not in _logged:
        _logged.add(problem)
        logger.warning("%s: %s", problem, describe_error(error))


def providers() -> list[Any]:
    """The global providers that this process has set: of traces, of metrics, of both, or none.

    The API has providers of its own, which do nothing.
    """
    found: list[Any] = []
    for api, get in APIS.items():
        if api in sys.modules:
            try:
                one = getattr(sys.modules[api], get)()
            except Exception as error:
                # A variable of the environment names a provider that cannot be loaded: no reason to fail a run.
                log_once(f"OpenTelemetry has no provider for {api}", error)
            else:
                found += [] if type(one).__module__.startswith(api) else [one]
    return found


def observed(invoke: Invoke, name: str, attributes: Callable[[], Attributes] = dict, *, many: bool = False) -> Invoke:
    """The same calls, each with a span, the first one with a line in the log; `invoke` itself where no provider is set
    and the log is off. `name` is that of what is called. `attributes` returns what all calls have in common; it is
    called once, if there are spans. `many`: `invoke` takes a list of keys."""
    logged = not calls_logger.isEnabledFor(logging.INFO)

    async def call(value: Any) -> Any:
        nonlocal logged
        if logged:
            return await invoke(value)
        logged = True
        calls_logger.info("the first call of %s starts", name)
        begun = monotonic()
        try:
            return await invoke(value)
        finally:
            calls_logger.info("the first call of %s has ended, after %.3f s", name, monotonic() - begun)

    shown = invoke if logged else call
    if not providers():
        return shown
    from asyncio_operator.telemetry.spans import ObservedCalls

    return ObservedCalls(shown, name, attributes(), many).call


def counted(name: str, read: Callable[[], Figures]) -> AbstractContextManager[None]:
    """While it is entered, the figures of a run are metrics, under the name of what is called. It does nothing where no
    provider is set. `read` returns the figures so far, on any thread."""
    if not providers():
        return nullcontext()
    from asyncio_operator.telemetry.spans import sums

    return sums().running(name, read)
