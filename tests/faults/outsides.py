"""What the tests of faults ask, over a proxy: a table of PostgreSQL or an HTTP service that multiply a key by seven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from asyncio_operator import Enricher
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import HttpEnricher, PostgresEnricher
from tests.faults.proxy import Proxy
from tests.services import PostgresServer

FILLER = "x" * 100
"""Makes answers long enough to be broken off in their middle."""


class Outside:
    """Something that answers, and the way to it.

    Attributes:
        proxy: the way.
        at: makes an enricher that asks over the proxy, which has the given name; keys are whole numbers.
        enricher: one that it has made.
    """

    def __init__(self, name: str, proxy: Proxy, make: Callable[[str], Enricher]) -> None:
        self.name = name
        self.proxy = proxy
        self.at = make
        self.enricher = make(proxy.host)


def row(key: int) -> dict[str, Any]:
    """The right answer."""
    return {"v": 7 * key, "filler": FILLER}


def http_outside(proxy: Proxy, **options: Any) -> Outside:
    def make(host: str) -> Enricher:
        return HttpEnricher(f"http://{host}:{proxy.port}/v/{{key}}", schema="v long, filler string", **options)

    return Outside("http", proxy, make)


def postgres_outside(proxy: Proxy, server: PostgresServer, **options: Any) -> Outside:
    sql = f"SELECT k AS id, 7 * k AS v, '{FILLER}' AS filler FROM unnest($1::int8[]) AS k"

    def make(host: str) -> Enricher:
        dsn = server.tcp_dsn().replace(f"127.0.0.1:{server.port}", f"{host}:{proxy.port}")
        arguments: dict[str, Any] = {"query": sql, "key": "id", "max_batch": 20} | options
        return PostgresEnricher(dsn, **arguments)

    return Outside("postgres", proxy, make)


@contextmanager
def http_service(latency: float = 0.0) -> Iterator[FakeService]:
    def answer(request: FakeRequest) -> dict[str, Any]:
        return row(int(request.path.removeprefix("/v/")))

    with FakeService(handler=answer, latency=latency) as service:
        yield service


@contextmanager
def over_http(latency: float = 0.0) -> Iterator[Outside]:
    with http_service(latency) as service:
        port = urlsplit(service.url).port
        assert port is not None
        with Proxy(("127.0.0.1", port)) as proxy:
            yield http_outside(proxy)


@contextmanager
def over_postgres(server: PostgresServer) -> Iterator[Outside]:
    with Proxy(("127.0.0.1", server.port)) as proxy:
        yield postgres_outside(proxy, server)
