"""What an enricher says about its running call, for the span of that call. Without a span it is not even computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

Attributes = Mapping[str, str | int]
"""Attributes of a span, named as the semantic conventions of OpenTelemetry name them."""

noted: ContextVar[Callable[[Attributes], None]] = ContextVar("asyncio_operator_noted")
"""Takes the attributes of the call that runs in this context."""


def annotate(attributes: Callable[[], Attributes]) -> None:
    """Say more about the running call, for its span in OpenTelemetry.

    Args:
        attributes: a function that returns attributes by name, as the semantic conventions have them, without secrets.
            It is called only if the call has a span.
    """
    note = noted.get(None)
    if note is not None:
        note(attributes())
