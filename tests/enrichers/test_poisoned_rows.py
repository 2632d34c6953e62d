"""One bad row in a batch of 200 costs one row: every enricher with batches, over what its source stumbles."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import Enricher
from asyncio_operator.enricher import as_schema
from asyncio_operator.testing import FakeAnswer, FakeService, check_enricher
from enrichers import BlockingEnricher, PostgresEnricher, SqlEnricher
from enrichers.http import HttpEnricher
from enrichers.redis import RedisEnricher
from tests.enrichers.helpers import in_sqlite
from tests.mariadb_service import MariadbServer, mariadb, run
from tests.redis_service import RedisServer, redis_server
from tests.servers import PostgresServer

__all__ = ["mariadb", "redis_server"]


@pytest.mark.parametrize(
    "value", ["100 / (n - 7)", "(SELECT i FROM generate_series(1, CASE WHEN n = 7 THEN 2 ELSE 1 END) i)", "j::int"]
)
def test_X14_postgres(postgres: PostgresServer, value: str) -> None:
    rows = "SELECT i || 'x' AS id, i AS n, CASE WHEN i = 7 THEN '{' ELSE '1' END AS j FROM generate_series(1, 9) i"
    asyncio.run(postgres.run(f"CREATE TABLE poisoned AS {rows} UNION ALL SELECT '9x', 9, '1'"))
    query = f"SELECT id, 3 AS w, n, {value} AS v FROM poisoned WHERE id = ANY($1)"
    try:
        check_enricher(
            lambda: PostgresEnricher(postgres.tcp_dsn(), query=query, key="id", columns=["n", "w"], max_batch=3),
            known={"1x": {"n": 1, "w": 3}, "9x": [{"n": 9, "w": 3}] * 2},
            missing=["x1", "o'Hare", '"; DROP TABLE poisoned', "ü" * 10_000],
            secrets=[postgres.password],
        )
        check_enricher(
            lambda: PostgresEnricher(postgres.tcp_dsn(), query=query, key="id"),
            known=["1x", "9x"],
            missing=["10x"],
            poison=["7x"],
        )
    finally:
        asyncio.run(postgres.run("DROP TABLE poisoned"))


@pytest.mark.parametrize(
    "value", ["json_extract(j, '$.a')", "abs(n)", "CASE WHEN id = 7 THEN 'x' ELSE 1 END", "CAST(b AS TEXT)"]
)
def test_X14_sqlite(tmp_path: Path, value: str) -> None:
    create = "CREATE TABLE t (id INTEGER, j TEXT, n INTEGER, b BLOB)"
    rows = [*((i, '{"a": 1}', 1, b"1") for i in range(1, 7)), (7, "{", -(2**63), b"\xff")]
    url = in_sqlite(tmp_path / "t.db", create, "INSERT INTO t VALUES (?, ?, ?, ?)", rows=rows)
    query = f"SELECT id, {value} AS v FROM t WHERE id IN :keys"
    schema = f"id bigint, v {'string' if 'TEXT' in value else 'bigint'}"
    check_enricher(
        lambda: SqlEnricher(url, query=query, key="id", schema=schema),
        known=[1, 6],
        missing=[8],
        poison=[7],
    )


@pytest.mark.parametrize("value", ["n - 5", "(SELECT w.n FROM poisoned_w w WHERE w.id = poisoned.id)"])
def test_X14_mariadb(mariadb: MariadbServer, value: str) -> None:
    run(
        mariadb.execute(
            "CREATE OR REPLACE TABLE poisoned (id int, n bigint unsigned)",
            "INSERT INTO poisoned VALUES (1, 9), (7, 3), (9, 9)",
            "CREATE OR REPLACE TABLE poisoned_w AS SELECT * FROM poisoned UNION ALL SELECT 7, 4",
        )
    )
    query = f"SELECT id, {value} AS v FROM poisoned WHERE id IN :keys"
    check_enricher(
        lambda: SqlEnricher(mariadb.url, query=query, key="id", schema="id int, v bigint"),
        known=[1, 9],
        missing=[10],
        poison=[7],
    )


@pytest.mark.parametrize("kind", ["json", "string", "hash"])
def test_X14_redis(redis_server: RedisServer, kind: Any) -> None:
    name = f"poisoned:{kind}:"
    if kind == "hash":
        redis_server.command("HSET", f"{name}a", "v", "1")
        redis_server.command("HSET", f"{name}b", "v", "x")
        redis_server.command("SET", f"{name}c", "1")
    else:
        redis_server.command("SET", f"{name}a", '{"v": 1}' if kind == "json" else "1")
        redis_server.command("SET", f"{name}b", "{")
    check_enricher(
        lambda: RedisEnricher(redis_server.url, schema="v int", kind=kind, key_template=name + "{key}"),
        known={"a": {"v": 1}},
        missing=["z"],
        poison=["b", "c"] if kind == "hash" else ["b"],
    )


def by_code(answer: Any) -> Any:
    return {row["code"]: row for row in answer}


def by_number(answer: Any) -> Any:
    return {row["code"]: int(row["v"]) and row for row in answer}


@pytest.mark.parametrize("extract", [by_code, by_number])
@pytest.mark.parametrize(
    "bad",
    [
        *(FakeAnswer({"error": "no"}, 400), FakeAnswer("<p>")),
        *(FakeAnswer([row]) for row in (None, {}, {"code": ["bad"], "v": 1}, {"code": "bad", "v": "x"})),
    ],
)
def test_X14_http(bad: FakeAnswer, extract: Any) -> None:
    """With functions that cannot take such a row, for one cause or another."""

    def answer(request: Any) -> Any:
        if request.path == "/many":
            keys = request.query["keys"][0].split(",")
            return bad if "bad" in keys else FakeAnswer([{"code": key, "v": 1} for key in keys if key == "a"])
        return {"v": "x"} if request.path == "/one/bad" else {"v": 1} if request.path == "/one/a" else None

    with FakeService(handler=answer) as service:
        check_enricher(
            lambda: HttpEnricher(
                service.url + "/one/{key}",
                schema="v int",
                batch_url=service.url + "/many?keys={keys}",
                batch_extract=extract,
            ),
            known={"a": {"v": 1}},
            missing=["z"],
            poison=["bad"],
        )


class Many(Enricher):
    """An enricher of a user, whose lookup_many raises what it likes."""

    max_batch = 200

    def schema(self) -> Any:
        return as_schema("v int")

    async def lookup_many(self, keys: Sequence[Any]) -> Any:
        return many(keys)


def many(keys: Sequence[Any]) -> Any:
    return [{"v": 1 // len(key)} if key != "missing" else None for key in keys]


def one(key: Any) -> Any:
    return many([key])[0]


@pytest.mark.parametrize("make", [Many, lambda: BlockingEnricher(one, "v int", function_many=many)])
def test_X14_code_of_users(make: Any) -> None:
    check_enricher(make, known={"a": {"v": 1}}, missing=["missing"], poison=[""])
