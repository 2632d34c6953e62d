"""Where the connection string comes from, and that what is secret in it is never pickled, printed or logged."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from pyspark import cloudpickle

from asyncio_operator import ConfigurationError, EnricherError
from enrichers import PostgresEnricher
from tests.servers import PostgresServer

SECRET = "s3cret-Passw0rd"
QUERY = "SELECT k AS id, pg_sleep(CASE WHEN k < 0 THEN 600 ELSE 0 END)::text AS v FROM unnest($1::int[]) AS k"


def make(dsn: Any, **options: Any) -> PostgresEnricher:
    return PostgresEnricher(dsn, **({"query": QUERY, "key": "id"} | options))


def everything_of(error: BaseException) -> str:
    """What the most talkative of tools would log: tracebacks with the variables of every frame but the tests' own."""
    texts, told = [], traceback.TracebackException.from_exception(error, capture_locals=True)
    inner: traceback.TracebackException | None = told
    while inner is not None:
        inner.stack[:] = [frame for frame in inner.stack if frame.filename != __file__]
        texts += [*inner.format(chain=False), repr(error)]
        inner = inner.__cause__ or inner.__context__
    return "".join(texts)


class Vault:
    """An object that is called."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def __call__(self) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_X4_a_dsn_function_of_the_wrong_shape_is_refused_when_the_enricher_is_made() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^dsn is .*, which takes arguments; it must be an ordinary"
    ) as caught:
        make(functools.partial(lambda secret, name: secret + name, SECRET))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (5, "returned no usable connection string: dsn is of type int"),
        (None, "returned None; if it reads an environment variable, that is not set in this process"),
        (f"host=db password={SECRET}", "returned no usable connection string: dsn (not shown, it may hold a password)"),
        (RuntimeError(SECRET), "raised RuntimeError"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_X4_a_dsn_function_that_gives_no_dsn_is_told_by_name_without_its_secret(answer: Any, told: str) -> None:
    for ask in (make(Vault(answer)).schema, make(Vault(answer)).key_schema):
        with pytest.raises(ConfigurationError) as caught:
            ask()
        assert f"dsn: the function Vault {told}" in str(caught.value)
        assert SECRET not in everything_of(caught.value)
    enricher = make(Vault(answer))
    with pytest.raises(ConfigurationError, match="dsn: the function Vault"):
        await enricher.open()
    await enricher.close()


def test_a_dsn_from_the_environment_is_read_where_it_is_used(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DSN", postgres.tcp_dsn())
    enricher = make(lambda: os.environ["SHOP_DSN"])
    assert enricher.schema().names == ["v"]
    for pickled in (cloudpickle.dumps(enricher), cloudpickle.dumps(make(lambda: os.environ["SHOP_DSN"]))):
        assert postgres.password.encode() not in pickled
        assert str(postgres.port).encode() not in pickled
    assert postgres.password not in repr(enricher)


def test_a_password_from_the_environment_needs_no_function(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of every PostgreSQL client."""
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    enricher = make(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres")
    assert enricher.schema().names == ["v"]
    assert postgres.password.encode() not in cloudpickle.dumps(enricher)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with pytest.raises(ConfigurationError, match="refuses the credentials") as caught:
        make(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres").schema()
    assert "hunter2" not in everything_of(caught.value)


async def test_X5_a_secret_reaches_no_pickle_no_repr_and_no_log_on_any_way_a_lookup_can_end(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """With asyncio and asyncpg as talkative as they can be, and with the variables of every frame."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
    right = postgres.tcp_dsn()
    wrong = quote("wr0ng/P@ss", safe="")
    dead = f"postgresql://bob:{quote(SECRET)}@127.0.0.1:1/db"
    dsns: list[tuple[str, str]] = [
        (right, ""),
        (right.replace(SECRET, wrong), "credentials"),
        (f"{right}?pasword={wrong}", "'pasword'"),
        (f"{right}?sslmode=requires", "not understood"),
        (f"{right}?sslmode=require", "no SSL"),
        (f"{right}?sslrootcert=/nowhere&sslmode=verify-full", "cannot read"),
        (dead, "not reachable"),
    ]
    spoken: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for dsn, expected in dsns:
            for source in (dsn, _giving(dsn)):
                try:
                    make(source).schema()
                except ConfigurationError as error:
                    assert expected in str(error), error  # noqa: PT017
                    spoken += [everything_of(error), repr(pickle.loads(pickle.dumps(error)))]
                enricher = make(source, pool_size=1)
                object.__setattr__(enricher, "_description", _statement(right))
                await enricher.open()
                spoken += [repr(enricher), str(enricher)]
                for keys in ([1], ["no number"]):
                    try:
                        await enricher.lookup_many(keys)
                    except EnricherError as error:
                        spoken += [everything_of(error), repr(pickle.loads(pickle.dumps(error)))]
                if not expected:
                    lookup = asyncio.ensure_future(enricher.lookup(-1))
                    await asyncio.sleep(0)
                    lookup.cancel()
                    spoken.append(repr(lookup))
                    await asyncio.gather(lookup, return_exceptions=True)
                await enricher.close()
            assert SECRET.encode() not in cloudpickle.dumps(make(_giving_from_environment))
    for text in (*spoken, caplog.text):
        for secret in (SECRET, wrong, "wr0ng/P@ss"):
            assert secret not in text


def _giving(dsn: str) -> Callable[[], str]:
    return lambda: dsn


def _giving_from_environment() -> str:
    return os.environ["SHOP_DSN"]


@functools.cache
def _statement(dsn: str) -> Any:
    enricher = make(dsn)
    enricher.schema()
    return enricher._description


async def test_X5_open_in_a_worker_shows_no_dsn_in_the_frames_of_its_error(postgres: PostgresServer) -> None:
    enricher = PostgresEnricher(postgres.tcp_dsn(), table="there_is_no_such_table", key="id")
    with pytest.raises(ConfigurationError) as caught:
        await enricher.open()
    assert postgres.password not in everything_of(caught.value)
