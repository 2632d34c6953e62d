"""How a client of an outside service is closed: within a time, and without an error.

It is used inside of `close`, for which the core waits (`engine.timing.close_within`). The core's wait outlasts a
cancellation and reports what was slow; this one ends with the cancellation, which the core sends when its own time is
over. This module knows no services.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from asyncio_operator.policies.shutdown import CLOSE_TIMEOUT


async def closed_in_time(closing: Coroutine[Any, Any, object]) -> None:
    """Await it for `CLOSE_TIMEOUT` seconds; then it is cancelled. Its errors are dropped: what is closed is given up
    in any case."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing
