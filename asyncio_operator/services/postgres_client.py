"""A connection to PostgreSQL, for lookups and for coordinators of budgets."""

from __future__ import annotations

from typing import Any

import asyncpg

from asyncio_operator.services.postgres_dsn import names_application


async def connect(dsn: str, seconds: float | None, application: str, **options: Any) -> Any:
    """A new connection.

    Args:
        dsn: where to connect to.
        seconds: in which the server must accept the client; None: no limit.
        application: what the server calls the client, unless the DSN says that.
        options: others of ``asyncpg.connect``.
    """
    settings = {} if names_application(dsn) else {"application_name": application}
    return await asyncpg.connect(dsn, timeout=seconds, server_settings=settings, **options)
