"""TLS as the connection string asks for it, against a server with real certificates; and options it does not know."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncio_operator import AsyncWaitOperator, ConfigurationError
from enrichers import PostgresEnricher
from tests.enrichers.conftest import Database
from tests.enrichers.helpers import failure, opened
from tests.servers import PostgresServer

trustme = pytest.importorskip("trustme", reason="makes the certificates of these tests")

TLS_HBA = """
local all all trust
hostssl all alice 127.0.0.1/32 cert
hostssl all all 127.0.0.1/32 scram-sha-256
"""

QUERY = """
    SELECT k AS id, (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS tls, current_user::text AS who
    FROM unnest($1::int[]) AS k
"""


def binaries() -> Path | None:
    """Of the newest PostgreSQL of a distribution: the one from the Python package was built without SSL."""
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in found), key=lambda path: float(path.parent.name), default=None)


class TlsServer(PostgresServer):
    """Has a certificate for 127.0.0.1 from an authority of its own, and knows clients by theirs."""

    def _binaries(self) -> Path:
        found = binaries()
        assert found is not None
        return found

    def _init(self) -> None:
        super()._init()
        authority = trustme.CA()
        files = {
            "authority.pem": authority.cert_pem,
            "stranger.pem": trustme.CA().cert_pem,
            **_certificate("server", authority, "127.0.0.1"),
            **_certificate("alice", authority, "alice@example.org", common_name="alice"),
            **_certificate("mallory", trustme.CA(), "alice@example.org", common_name="alice"),
        }
        for name, blob in files.items():
            path = self.path(name)
            blob.write_to_path(str(path))
            path.chmod(0o600)
            if self._owner:
                shutil.chown(path, self._owner.pw_uid, self._owner.pw_gid)
        self.path("broken.pem").write_text("no certificate")
        (self._data / "pg_hba.conf").write_text(TLS_HBA)
        self._settings |= {
            "ssl": "on",
            "ssl_cert_file": str(self.path("server.pem")),
            "ssl_key_file": str(self.path("server.key")),
            "ssl_ca_file": str(self.path("authority.pem")),
        }

    def path(self, name: str) -> Path:
        return self.directory / name

    def tls(self, mode: str, **files: str) -> str:
        """Options of a connection string; the names of files are their names here."""
        return "&".join([f"?sslmode={mode}", *(f"{option}={self.path(name)}" for option, name in files.items())])


def _certificate(name: str, authority: Any, *identities: str, **options: Any) -> dict[str, Any]:
    made = authority.issue_cert(*identities, **options)
    return {f"{name}.pem": made.cert_chain_pems[0], f"{name}.key": made.private_key_pem}


@pytest.fixture(scope="module")
def server() -> Iterator[TlsServer]:
    if binaries() is None:
        pytest.skip("a PostgreSQL with TLS is not installed (Debian's package postgresql)")
    server = TlsServer(password="hunter2")
    with server:
        yield server


def refusal(dsn: str, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        PostgresEnricher(dsn, **({"query": QUERY, "key": "id"} | options)).schema()
    assert "hunter2" not in str(caught.value)
    return caught.value


async def answer(dsn: str) -> Any:
    async with opened(PostgresEnricher(dsn, query=QUERY, key="id", pool_size=1)) as enricher:
        return await enricher.lookup(1)


async def test_every_mode_that_fits_connects(server: TlsServer) -> None:
    plain = server.tcp_dsn()
    root = {"sslrootcert": "authority.pem"}
    for options in [
        "",
        *(server.tls(mode) for mode in ("prefer", "require")),
        *(server.tls(mode, **root) for mode in ("require", "verify-ca", "verify-full")),
    ]:
        assert await answer(plain + options) == {"tls": True, "who": "postgres"}


async def test_a_client_certificate_in_place_of_a_password(server: TlsServer) -> None:
    await server.run("CREATE ROLE alice LOGIN")
    where = f"postgresql://alice@127.0.0.1:{server.port}/postgres"
    root = {"sslrootcert": "authority.pem"}
    known = server.tls("verify-full", **root, sslcert="alice.pem", sslkey="alice.key")
    assert await answer(where + known) == {"tls": True, "who": "alice"}
    assert "refuses the credentials" in str(refusal(where + server.tls("verify-full", **root)))
    stranger = refusal(where + server.tls("verify-full", **root, sslcert="mallory.pem", sslkey="mallory.key"))
    # With TLS 1.3 the server says so when the client has begun to speak, and may have gone before it is heard.
    assert "TLS failed" in str(stranger) or "the server closed the connection" in str(stranger)
    other_key = refusal(where + server.tls("verify-full", **root, sslcert="alice.pem", sslkey="mallory.key"))
    assert "TLS failed; see sslrootcert, sslcert and sslkey in the dsn" in str(other_key)


async def test_a_cancelled_lookup_is_cancelled_on_the_server_over_tls_too(server: TlsServer) -> None:
    query = "SELECT k AS id, pg_sleep(k)::text AS v FROM unnest($1::int[]) AS k"
    dsn = server.tcp_dsn() + server.tls("verify-full", sslrootcert="authority.pem")
    async with opened(PostgresEnricher(dsn, query=query, key="id", pool_size=1)) as enricher:
        await enricher.lookup(0)
        operator = AsyncWaitOperator(enricher.lookup, timeout=0.05, on_timeout=lambda key: "late")
        assert [row async for row in operator.process([600])] == ["late"]
        assert await enricher.lookup(0) == {"v": ""}


def test_X4_a_certificate_that_does_not_verify_is_told(server: TlsServer) -> None:
    stranger = refusal(server.tcp_dsn() + server.tls("verify-full", sslrootcert="stranger.pem"))
    assert "the server's certificate does not verify against sslrootcert of the dsn" in str(stranger)
    other_host = server.tcp_dsn().replace("127.0.0.1", "localhost")
    assert "or is not for its host" in str(refusal(other_host + server.tls("verify-full", sslrootcert="authority.pem")))


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert", "sslkey", "sslcrl"])
def test_X4_a_file_that_is_not_there_is_named_with_its_option_and_one_that_holds_something_else_told(
    server: TlsServer, option: str
) -> None:
    files = {"sslrootcert": "authority.pem"}
    files |= {"sslcert": "alice.pem", "sslkey": "alice.key"} if option in ("sslcert", "sslkey") else {}
    absent, broken = (
        str(refusal(server.tcp_dsn() + server.tls("verify-full", **(files | {option: name}))))
        for name in ("not-there.pem", "broken.pem")
    )
    assert f"{option} in the dsn is '{server.path('not-there.pem')}', which this process cannot read" in absent
    assert "on every machine" in absent
    assert "TLS failed" in broken


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_X4_a_server_without_tls_is_said_to_have_none(postgres: PostgresServer, server: TlsServer, mode: str) -> None:
    problem = refusal(postgres.tcp_dsn() + server.tls(mode, sslrootcert="authority.pem"))
    assert "the server speaks no SSL (TLS), which sslmode in the dsn demands" in str(problem)
    assert f"127.0.0.1:{postgres.port}/postgres" in str(problem)


@pytest.mark.parametrize("without", [False, True])
async def test_X5_what_tls_refuses_is_not_asked_again_in_a_worker(
    postgres: PostgresServer, server: TlsServer, without: bool
) -> None:
    dsn = (postgres if without else server).tcp_dsn()
    enricher = PostgresEnricher(dsn, query=QUERY, key="id")
    enricher.schema()
    wrong = "?sslmode=require" if without else server.tls("verify-full", sslrootcert="stranger.pem")
    object.__setattr__(enricher, "dsn", dsn + wrong)
    async with opened(enricher):
        error = await failure(enricher, 1)
    assert ("speaks no SSL" if without else "does not verify") in str(error)
    assert (error.retryable, error.any_key) == (False, True)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("sslmode=requires", "the dsn is not understood (`sslmode` parameter must be one of: disable"),
        ("pasword=hunter2", "the option 'pasword' of the dsn"),
        ("sslmod=require", "did you mean 'sslmode'"),
        ("connect_timeout=10", "use the argument connect_timeout"),
        ("channel_binding=require", "the option 'channel_binding' of the dsn is unknown to asyncpg"),
        ("search_path=pg_catalog&statement_timeout=hunter2", "the option 'statement_timeout' of the dsn"),
        ("max_connections=5", "the option 'max_connections' of the dsn"),
        ("database=postgres&zz=1", "the option 'zz' of the dsn"),
    ],
)
def test_X4_an_option_that_nobody_takes_is_named(postgres: PostgresServer, option: str, told: str) -> None:
    problem = refusal(f"{postgres.tcp_dsn()}?{option}")
    assert told in str(problem)
    assert "refuses the statement" not in str(problem)


async def test_an_option_of_the_server_is_taken(database: Database) -> None:
    query = "SELECT k AS id, current_setting('work_mem') AS v FROM unnest($1::int[]) AS k"
    async with database.enricher(dsn=f"{database.dsn}&work_mem=123kB", query=query, key="id") as enricher:
        assert await enricher.lookup(1) == {"v": "123kB"}


def test_an_error_of_the_statement_is_not_laid_to_an_option(database: Database) -> None:
    dsn = f"{database.dsn}&work_mem=123kB"
    problem = refusal(
        dsn, query="SELECT k AS id, set_config('work_mem', 'x', false) AS v, nope FROM unnest($1::int[]) k"
    )
    assert "the server refuses the statement" in str(problem)
