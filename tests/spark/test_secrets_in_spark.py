"""Law X5 in a whole Spark: a password is searched for in everything that Spark keeps, logs and says.

A Spark of its own, classic or Connect, runs jobs that succeed and jobs that fail, on real servers, with the event log
on; workers write to the same standard error. The password is looked for as it is, and percent-encoded, in base64, in
hexadecimal and as JSON. A word that Spark is given to log, and the pickles of enrichers that were given their password
as text, must be found in the same way, so that the search is known to find.

At INFO it does not matter how an enricher was given its password. At DEBUG, Spark and PySpark log pickles, and what is
set as ``spark.executorEnv``: there, only what comes from a function is safe. The log at DEBUG holds that at INFO, so
an enricher runs once: at INFO if it was given its password as text, else at DEBUG.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import asyncpg
import pytest

from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from tests.redis_service import BINARY as REDIS
from tests.redis_service import RedisServer
from tests.servers import PostgresServer
from tests.spark.helpers import DAEMON

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]

PASSWORD = "hunter2/Pass+w0rd&%é"
WRONG = "wr0ng/Pass+w0rd&%é"
TOKEN = "t0ken/Pass+w0rd&%"
WRONG_TOKEN = "wr0ng-t0ken/Pass+w0rd&%"
SECRETS = (PASSWORD, WRONG, TOKEN, WRONG_TOKEN)
LOGGED = "decoy/Word+w0rd&%"

SAID = ("schema", "explain", "row", "error", "repr")
"""What the program prints about; each must be there, or nothing was searched."""


def forms(secret: str) -> set[bytes]:
    """How a text may be written, in small letters but for base64."""
    raw = secret.encode()
    plain = {secret, quote(secret, safe=""), quote_plus(secret), quote(quote(secret, safe=""), safe="")}
    plain |= {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], raw.hex()}
    # It can lie in groups of three bytes in three ways, and the letters at its ends depend on what is beside it.
    inner = [base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4].decode() for shift in range(3)]
    return {text.lower().encode() for text in (*plain, *inner)}


def holds(data: bytes, secret: str) -> bool:
    """Whether a text is in data, however it is written."""
    folded = data.lower()
    return any(form in folded for form in forms(secret))


def files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "write",
    [str, lambda text: quote(text, safe=""), quote_plus, json.dumps, repr, lambda text: f"x{text}y"]
    + [lambda text, n=n: base64.b64encode(("u" * n + text + "@h").encode()).decode() for n in range(4)],
    ids=["text", "quoted", "plus", "json", "repr", "inside", "base64-0", "base64-1", "base64-2", "base64-3"],
)
def test_the_search_finds_a_secret_in_every_form(write: Callable[[str], str]) -> None:
    for secret in (*SECRETS, LOGGED):
        assert holds(f"before {write(secret)} after".encode(), secret)
        assert not holds(f"before {write('Another/Pass+w0rd&%')} after".encode(), secret)


class Servers:
    """Where the program's jobs lead."""

    def __init__(self, directory: Path) -> None:
        self.postgres = PostgresServer(password=PASSWORD)
        self.redis = RedisServer(password=PASSWORD) if REDIS else None
        self.http = FakeService(handler=self._answer)
        self.directory = directory

    def _answer(self, request: FakeRequest) -> Any:
        """The row, to who knows the token; else all that was sent, as talkative services do."""
        if TOKEN in (request.headers.get("x-token"), *request.query.get("token", [])):
            return {"v": "found"}
        return FakeAnswer({"you sent": [request.target, dict(request.headers)]}, 403)

    def __enter__(self) -> Servers:
        self.postgres.__enter__()
        self.http.__enter__()
        if self.redis:
            self.redis.__enter__()
            for number in range(3):
                self.redis.command("SET", str(number), "found")
        return self

    def __exit__(self, *error: Any) -> None:
        for server in (self.postgres, self.http, self.redis):
            if server is not None:
                server.__exit__(*error)

    def environment(self, level: str) -> dict[str, str]:
        """What the program gets."""
        told = {
            "DIRECTORY": str(self.directory),
            "ADMIN": self.postgres.dsn,
            "HTTP": self.http.url,
            "PG_PASSWORD_DSN": self.postgres.tcp_dsn(password=PASSWORD),
            "TOKEN": TOKEN,
            "WRONG_TOKEN": WRONG_TOKEN,
            "LOGGED": LOGGED,
            "PYTHONASYNCIODEBUG": "1",
            "JDK_JAVA_OPTIONS": f"-Dlog4j2.configurationFile=file:{settings_of_logs(self.directory, level)}",
        }
        if self.redis:
            told |= {"REDIS_PASSWORD_URL": self.redis.url, "WRONG_URL": self.redis.url_with(WRONG)}
        return told


def settings_of_logs(directory: Path, level: str) -> Path:
    """Of log4j: everything goes to standard error."""
    path = directory / "log4j2.properties"
    lines = {
        "rootLogger.level": "info",
        "rootLogger.appenderRef.stderr.ref": "stderr",
        "appender.stderr.type": "Console",
        "appender.stderr.name": "stderr",
        "appender.stderr.target": "SYSTEM_ERR",
        "appender.stderr.layout.type": "PatternLayout",
        "appender.stderr.layout.pattern": "%d %p %c: %m%n%ex",
        "logger.spark.name": "org.apache.spark",
        "logger.spark.level": level,
    }
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    return path


# Each takes 15 seconds. `make faults` runs the others.
@pytest.mark.parametrize(
    ("face", "level"),
    [
        ("classic", "info"),
        pytest.param("classic", "debug", marks=pytest.mark.faults),
        pytest.param("connect", "info", marks=pytest.mark.faults),
        pytest.param("connect", "debug", marks=pytest.mark.faults),
    ],
)
def test_X5_a_password_is_in_nothing_that_spark_keeps_logs_or_says(face: str, level: str, tmp_path: Path) -> None:
    if face == "connect":
        pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    run_program(face, level, tmp_path)
    events = b"".join(path.read_bytes() for path in files(tmp_path / "events"))
    assert b"SparkListenerSQLExecutionStart" in events
    assert b"SparkListenerTaskEnd" in events
    assert holds(events, LOGGED)

    pickles = {path.stem: path.read_bytes() for path in files(tmp_path / "pickles")}
    given_as_text = {name for name, data in pickles.items() if any(holds(data, secret) for secret in SECRETS)}
    assert given_as_text == {name for name in pickles if name.endswith("text")}
    assert {name.partition("-")[0] for name in pickles} >= {"postgres", "http"}
    assert bool(given_as_text) == (level == "info")

    kept = [path for path in files(tmp_path) if path.parent.name != "pickles"]
    found = {(path.relative_to(tmp_path), one) for path in kept for one in SECRETS if holds(path.read_bytes(), one)}
    assert not found, found


def run_program(face: str, level: str, directory: Path) -> None:
    """Run it, and lay what it said beside what it left in files."""
    with Servers(directory) as servers:
        environment = servers.environment(level) | {
            "PYSPARK_PYTHON": str(Path(__file__).with_name("python")),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # Spark Connect takes a free port: a program of another checkout may have the usual one.
            "SPARK_TESTING": "1",
        }
        call = f"from tests.spark import test_secrets_in_spark as it; it.program({face!r}, {level!r})"
        done = subprocess.run(
            [sys.executable, "-c", call],
            env=os.environ | environment,
            cwd=ROOT,
            capture_output=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (directory / "stdout").write_bytes(done.stdout)
    (directory / "stderr").write_bytes(done.stderr)
    assert f" {level.upper()} org.apache.spark".encode() in done.stderr
    for text in (*(f"== {word}" for word in SAID), "403 Forbidden", "refuses the credentials"):
        assert text.encode() in done.stdout, text


# -- what follows runs in the other process


def program(face: str, level: str) -> None:
    """Jobs that end in every way, of enrichers that are given their secrets as text and by functions."""
    from pyspark import cloudpickle

    if level == "debug":
        logging.basicConfig(level=logging.DEBUG)

    directory = Path(os.environ["DIRECTORY"])
    (directory / "events").mkdir()
    (directory / "pickles").mkdir()
    spark = session(face, level, directory)
    chosen = [one for one in enrichers_here() if one[0].endswith("text") == (level == "info")]
    for name, enricher, breaks in chosen:
        (directory / "pickles" / f"{name}.pickle").write_bytes(cloudpickle.dumps(enricher))
        say("repr", enricher)
        job(spark, name, enricher, breaks)
    if (face, level) == ("classic", "info"):
        stream(spark, directory)
    sql(spark, chosen[:1])
    spark.stop()


def session(face: str, level: str, directory: Path) -> Any:
    """A session with the event log on. Of two variables the name of one says that it is secret."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(directory / "events"),
        "spark.eventLog.compress": "false",
        "spark.executorEnv.LOGGED": os.environ["LOGGED"],
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": DAEMON,
        # As in the session of the other tests: to compile a plan takes longer than to interpret it for a few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    if level == "info":
        settings["spark.executorEnv.PG_PASSWORD_DSN"] = os.environ["PG_PASSWORD_DSN"]
    builder: Any = SparkSession.builder.appName("secrets")
    builder = builder.master("local[1]") if face == "classic" else builder.remote("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def say(what: str, text: object) -> None:
    print(f"== {what}: {text}", flush=True)


def enrichers_here() -> Iterable[tuple[str, Any, Callable[[], Any]]]:
    """Names, enrichers that find, and what makes those fail that are made before: another enricher, or None where the
    server has changed its mind."""
    from enrichers import HttpEnricher, PostgresEnricher

    def dsn() -> str:
        return os.environ["PG_PASSWORD_DSN"]

    def headers() -> dict[str, str]:
        return {"X-Token": os.environ["TOKEN"]}

    def wrong_headers() -> dict[str, str]:
        return {"X-Token": os.environ["WRONG_TOKEN"]}

    def http(path: str = "/v/{key}", **options: Any) -> HttpEnricher:
        return HttpEnricher(os.environ["HTTP"] + path, schema="v string", **options)

    query = "SELECT k AS id, 'found' AS v FROM unnest($1::int8[]) AS k"
    for kind, source in (("text", dsn()), ("function", dsn)):
        yield f"postgres-{kind}", PostgresEnricher(source, query=query, key="id"), lambda: None
    yield "http-text", http(headers=headers()), lambda: http(headers=wrong_headers())
    yield (
        "http-query-text",
        http(params={"token": os.environ["TOKEN"]}),
        lambda: http(f"/v/{{key}}?token={quote(os.environ['WRONG_TOKEN'], safe='')}"),
    )
    yield "http-function", http(headers=headers), lambda: http(headers=wrong_headers)
    if "REDIS_PASSWORD_URL" in os.environ:
        from enrichers import RedisEnricher

        def url() -> str:
            return os.environ["REDIS_PASSWORD_URL"]

        def wrong_url() -> str:
            return os.environ["WRONG_URL"]

        def redis(source: Any) -> RedisEnricher:
            return RedisEnricher(source, schema="v string", kind="string")

        yield "redis-text", redis(url()), lambda: redis(wrong_url())
        yield "redis-function", redis(url), lambda: redis(wrong_url)


def job(spark: Any, name: str, enricher: Any, breaks: Callable[[], Any]) -> None:
    """One that succeeds, one that fails, and one whose rows tell the failure; the last is refused by the driver."""
    from asyncio_operator.spark import enrich

    df = spark.range(3)
    good = enrich(df, enricher, on="id")
    say("schema", good.schema)
    good.explain(True)
    say("explain", name)
    rows = good.collect()
    assert [row.v for row in rows] == ["found"] * 3, rows
    broken = breaks()
    other = broken or enricher
    failing = enrich(df, other, on="id")
    telling = enrich(df, other, on="id", on_error="null", status_column="status")
    if broken is None:
        change_password(os.environ["WRONG_TOKEN"])
        # A worker keeps the connection that it has; this specification is a new one, with a client of its own.
        other = type(enricher)(enricher.dsn, query=f"{enricher.query} -- again", key="id")
        refused("on the driver", lambda: enrich(df, other, on="id"))
        drop_connections()
    refused(name, failing.collect)
    for row in telling.collect():
        assert row.v is None
        assert row.status.error_message
        say("row", row)
    if broken is None:
        change_password(PASSWORD)


def refused(what: str, action: Callable[[], Any]) -> None:
    try:
        action()
    except Exception as error:
        say("error", f"{what}: {error!r} {error}")
        traceback.print_exc()
    else:
        raise AssertionError(f"{what} did not fail")


def change_password(password: str) -> None:
    asyncio.run(ask(f"ALTER ROLE postgres PASSWORD '{password}'"))


def drop_connections() -> None:
    others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND usename IS NOT NULL"
    asyncio.run(ask(f"SELECT pg_terminate_backend(pid) {others}"))


async def ask(statement: str) -> None:
    connection = await asyncpg.connect(os.environ["ADMIN"])
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def stream(spark: Any, directory: Path) -> None:
    """Its checkpoint is searched too."""
    from asyncio_operator.spark import enrich
    from enrichers import HttpEnricher

    enricher = HttpEnricher(
        os.environ["HTTP"] + "/v/{key}", schema="v string", headers={"X-Token": os.environ["TOKEN"]}
    )
    (directory / "input").mkdir()
    (directory / "input" / "rows.json").write_text('{"id": 1}\n{"id": 2}\n')
    rows = enrich(spark.readStream.schema("id long").json(str(directory / "input")), enricher, on="id")
    query = rows.writeStream.format("json").option("checkpointLocation", str(directory / "checkpoint"))
    query.trigger(availableNow=True).start(str(directory / "output")).awaitTermination()
    assert spark.read.json(str(directory / "output")).count() == 2


def sql(spark: Any, chosen: Iterable[tuple[str, Any, Callable[[], Any]]]) -> None:
    from asyncio_operator.spark import register_lookup
    from asyncio_operator.spark.worker.versions import ARROW_TABLE_FUNCTION

    if ARROW_TABLE_FUNCTION is None:
        return
    for name, enricher, _ in chosen:
        function = "look_up_" + name.replace("-", "_")
        register_lookup(spark, function, enricher, on="id")
        spark.range(3).createOrReplaceTempView("numbers")
        found = spark.sql(f"SELECT * FROM {function}(TABLE(numbers))")
        found.explain(True)
        assert [row.v for row in found.collect()] == ["found"] * 3
