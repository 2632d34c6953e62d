"""For tools that run event loops of their own, which cannot be done inside a running one."""

from __future__ import annotations

import asyncio

from asyncio_operator.errors import ConfigurationError


def require_no_loop(tool: str, call: str) -> None:
    """Check that no loop runs in this thread.

    Args:
        tool: what was called.
        call: what to give to `asyncio.to_thread` instead of the call.

    Raises:
        ConfigurationError: one runs.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"{tool} was called in a running loop, but runs loops of its own: call it from an ordinary function, or in a "
        f"thread, as in `await asyncio.to_thread({call})`"
    )
