"""Where a call goes, in the words of OpenTelemetry's semantic conventions for databases and for HTTP.

Only the parts of an address that are named here are read, so no user, password or option can get into a span.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote, urlsplit

SYSTEMS = {"mssql": "microsoft.sql_server", "oracle": "oracle.db"}
"""Databases that the conventions name in another way than SQLAlchemy."""


_PORTS = {"http": 80, "https": 443}
"""The conventions require the port of an HTTP service, also where its URL does not name it."""


def server(url: str) -> dict[str, str | int]:
    """Host and port of a URL; nothing if it names several servers, or none."""
    found: dict[str, str | int] = {}
    with suppress(ValueError):
        parts = urlsplit(url)
        port, host = parts.port or _PORTS.get(parts.scheme), parts.hostname
        if host and "," not in host:
            found["server.address"] = host
            if port:
                found["server.port"] = port
    return found


def database(system: str, url: str, operation: str, collection: str = "") -> dict[str, str | int]:
    """The attributes of all calls of an enricher.

    Args:
        system: the name of the database's kind, as SQLAlchemy has it.
        url: its checked address.
        operation: what a call does, such as SELECT.
        collection: the table; "" if there is none.
    """
    found = {"db.system.name": SYSTEMS.get(system, system), "db.operation.name": operation} | server(url)
    namespace = unquote(urlsplit(url).path).removeprefix("/")
    if namespace:
        found["db.namespace"] = namespace
    if collection:
        found |= {"db.collection.name": collection, "db.query.summary": f"{operation} {collection}"}
    return found
