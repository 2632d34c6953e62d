"""`PostgresEnricher` before it connects: arguments, equality, pickling, its dsn, and what it never shows."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pickle
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from asyncio_operator import ConfigurationError, Enricher, EnricherError
from asyncio_operator.fingerprint import fingerprint
from asyncio_operator.services.postgres_dsn import check_dsn, location, secrets_of
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import everything_of
from tests.servers import PostgresServer

DSN = "postgresql://bob:s3cret@db.example:5433/shop"


def make(dsn: Any = DSN, **options: Any) -> PostgresEnricher:
    return PostgresEnricher(dsn, **({"table": "planes", "key": "tailnum"} | options))


def dsn_from_a_vault() -> str:
    return DSN


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"table": None}, ["table is None", "query is None", "exactly one"]),
        ({"query": "SELECT 1"}, ["table is 'planes'", "query is 'SELECT 1'", "exactly one"]),
        ({"table": None, "query": " "}, ["query is ' '"]),
        ({"table": None, "query": 5}, ["query is 5"]),
        ({"table": "a."}, ["table is ('a', '')"]),
        ({"key": None}, ["key is required: a column name or a list of names"]),
        ({"dsn": None}, ["dsn is of type NoneType", "is an environment variable not set"]),
    ],
)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(
    options: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(**options)
    assert [name for name in names if name not in str(caught.value)] == []


def test_names_are_split_at_the_first_dot_or_taken_as_they_are() -> None:
    assert make(table="a.b.c").table == ("a", "b.c")
    assert make(table=["a.b"]).table == ("a.b",)
    assert make(table=("x", "x")).table == ("x", "x")
    assert make(key="a").key == ("a",)
    assert make(key=["a", "b"], columns=["c"]).columns == ("c",)
    assert make(connect_timeout=timedelta(seconds=2)).connect_timeout == 2.0


def test_it_is_a_frozen_specification_and_equal_by_its_fields() -> None:
    assert make() == make(table=["planes"], key=["tailnum"])
    assert hash(make()) == hash(make(table=["planes"]))
    for different in (make(table="p"), make(dsn=DSN + "x"), make(pool_size=5), make(columns=["a"]), make(max_batch=2)):
        assert different != make()
    with pytest.raises(AttributeError):
        make().table = ("other",)  # type: ignore[misc]
    assert isinstance(make(), Enricher)
    assert make(max_batch=17).max_batch == 17


SECRET = "s3cret-P@ss/w:rd?#%"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://bob:{quote(SECRET, safe='')}@db.example:5433/shop",
        f"postgresql://db.example:5433/shop?user=bob&password={quote(SECRET, safe='')}",
        f"postgresql:///shop?host=db.example&port=5433&sslpassword={quote(SECRET, safe='')}",
        f"postgresql://db.example:5433/shop?user=bob&pasword={quote(SECRET, safe='')}",
    ],
)
def test_X5_repr_shows_where_it_leads_and_no_secret(dsn: str) -> None:
    shown = repr(make(dsn))
    assert "db.example:5433/shop" in shown
    for secret in (SECRET, quote(SECRET, safe=""), "bob:"):
        assert secret not in shown
    assert secrets_of(dsn).hide(f"x {SECRET} y {quote(SECRET, safe='')} z {dsn}") == "x *** y *** z ***"


WRONG = {
    "postgresql://bob:hun@ter2@host/db": "",
    "postgresql://bob:hun/ter2@host/db": "",
    "postgresql://bob:12/hunter2@host/db": "",
    "postgresql://bob:hun?ter2@host/db": "",
    "postgresql://bob:12?x=hunter2@host/db": "",
    "postgresql://bob:hun#ter2@host/db": "",
    "postgresql://bob:hunter2": "",
    "postgresql://bob@host:hunter2/db": "",
    "postgresql://host/db?password": "",
    "postgresql://host/db?port=hunter2": "",
    "postgresql://[hunter2/db": "",
    "bob:hunter2@host/db": "",
    "hunter2": "",
    "": "",
    "mysql://bob:hunter2@host/db": "it does not begin with postgresql://",
    "postgresql+hunter2://u:hunter2@host/db": "it does not begin with postgresql://",
    "jdbc:postgresql://host/db?user=u&password=hunter2": "leave out `jdbc:`, and write user and password before",
    "host=localhost password=hunter2": "a list of name=value, as libpq takes it: write it as a URL, postgresql://",
    "postgresql+asyncpg://u:hunter2@host/db": "it is a URL for SQLAlchemy: leave out +asyncpg",
    "postgres+psycopg2://u:hunter2@host/db": "leave out +psycopg2",
}
"""What is no dsn or can be misread, and how to write it."""


@pytest.mark.parametrize(("dsn", "hint"), WRONG.items())
def test_X5_a_dsn_that_is_none_or_can_be_misread_is_refused_without_being_shown(dsn: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make(dsn)
    shown = "".join(traceback.format_exception(caught.value))
    assert "dsn (not shown" in str(caught.value)
    assert hint in str(caught.value)
    for piece in ("hunter2", "ter2", "hun@", "hun/", "hun?", "hun#"):
        assert piece not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@given(st.text(max_size=30), st.text(max_size=30))
def test_X5_whatever_is_escaped_is_taken_and_hidden(user: str, password: str) -> None:
    dsn = f"postgresql://{quote(user, safe='', errors='replace')}:{quote(password, safe='', errors='replace')}@host/db"
    assert check_dsn(dsn) == dsn
    password = password.encode(errors="replace").decode()
    public = (user.encode(errors="replace").decode(), "host", "db", "")
    assert password in public or password not in secrets_of(dsn).hide(f"<{password}>").replace("***", "")


def test_X5_hiding_a_password_does_not_tell_it() -> None:
    same = "postgresql://postgres:postgres@localhost/postgres"
    text = 'localhost:5432/postgres: password authentication failed for user "postgres"'
    assert secrets_of(same).hide(text) == text
    short = "postgresql://bob:p@localhost/shop"
    assert secrets_of(short).hide("permission denied for p, postgres") == "permission denied for ***, postgres"


@given(st.text(max_size=20), st.text(max_size=20))
def test_X5_no_text_breaks_the_check_or_is_shown(before: str, after: str) -> None:
    text = f"{before}hunter2{after}"
    for dsn in (text, f"postgresql://{text}", f"postgresql://host/{text}", f"postgresql://host/db?{text}"):
        try:
            location(check_dsn(dsn))
        except ConfigurationError as error:
            assert "hunter2" not in str(error)  # noqa: PT017


def test_a_function_for_the_dsn_is_shown_by_its_name_and_pickled_without_the_secret() -> None:
    enricher = make(dsn_from_a_vault)
    assert "dsn_from_a_vault" in repr(enricher)
    assert b"s3cret" not in cloudpickle.dumps(enricher)
    assert pickle.loads(pickle.dumps(enricher)) == enricher


async def test_L8_equal_specifications_have_one_fingerprint_wherever_they_are(database: Database) -> None:
    await database.execute("CREATE TABLE t AS SELECT 1 AS id, 'x' AS v, 2 AS w")
    enricher = PostgresEnricher(database.dsn, table="t", key="id")
    twin = PostgresEnricher(database.dsn, table="t", key="id")
    other = PostgresEnricher(database.dsn, table="t", key="id", columns=["w"])
    for specification in (enricher, twin, other):
        specification.schema()
    travelled = cloudpickle.loads(cloudpickle.dumps(enricher))
    assert fingerprint(enricher) == fingerprint(twin) == fingerprint(travelled)
    assert fingerprint(enricher) != fingerprint(other)
    await database.execute("ALTER TABLE t ADD COLUMN y int")
    after = PostgresEnricher(database.dsn, table="t", key="id")
    after.schema()
    assert fingerprint(enricher) != fingerprint(after), "a changed table must not be answered by the old statement"


# -- functions and the environment


PASSWORD = "s3cret-Passw0rd"
QUERY = "SELECT k AS id, pg_sleep(CASE WHEN k < 0 THEN 600 ELSE 0 END)::text AS v FROM unnest($1::int[]) AS k"


def make_query(dsn: Any, **options: Any) -> PostgresEnricher:
    return PostgresEnricher(dsn, **({"query": QUERY, "key": "id"} | options))


async def test_X4_a_dsn_function_that_gives_no_dsn_is_told_by_name_without_its_secret() -> None:
    def vault() -> str:
        return f"host=db password={PASSWORD}"

    told = r"dsn: the function .*vault returned no usable connection string: dsn \(not shown, it may hold a password\)"
    enricher = make_query(vault)
    for ask in (enricher.schema, enricher.key_schema, lambda: asyncio.run(enricher.open())):
        with pytest.raises(ConfigurationError, match=told) as caught:
            await asyncio.to_thread(ask)
        assert PASSWORD not in everything_of(caught.value)


def test_a_password_from_the_environment_needs_no_function(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of every PostgreSQL client."""
    monkeypatch.setenv("PGPASSWORD", postgres.password)
    enricher = make_query(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres")
    assert enricher.schema().names == ["v"]
    assert postgres.password.encode() not in cloudpickle.dumps(enricher)
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with pytest.raises(ConfigurationError, match="refuses the credentials") as caught:
        make_query(f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres").schema()
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
    dead = f"postgresql://bob:{quote(PASSWORD)}@127.0.0.1:1/db"
    dsns: list[tuple[str, str]] = [
        (right, ""),
        (right.replace(PASSWORD, wrong), "credentials"),
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
                    make_query(source).schema()
                except ConfigurationError as error:
                    assert expected in str(error), error  # noqa: PT017
                    spoken += [everything_of(error), repr(pickle.loads(pickle.dumps(error)))]
                enricher = make_query(source, pool_size=1)
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
            assert PASSWORD.encode() not in cloudpickle.dumps(make_query(_giving_from_environment))
    for text in (*spoken, caplog.text):
        for secret in (PASSWORD, wrong, "wr0ng/P@ss"):
            assert secret not in text


def _giving(dsn: str) -> Callable[[], str]:
    return lambda: dsn


def _giving_from_environment() -> str:
    return os.environ["SHOP_DSN"]


@functools.cache
def _statement(dsn: str) -> Any:
    enricher = make_query(dsn)
    enricher.schema()
    return enricher._description


async def test_X5_open_in_a_worker_shows_no_dsn_in_the_frames_of_its_error(postgres: PostgresServer) -> None:
    enricher = PostgresEnricher(postgres.tcp_dsn(), table="there_is_no_such_table", key="id")
    with pytest.raises(ConfigurationError) as caught:
        await enricher.open()
    assert postgres.password not in everything_of(caught.value)
