"""URLs of Redis: what is refused when the enricher is made, and what a server says that refuses the credentials."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator

import pytest

from asyncio_operator import ConfigurationError, EnricherError
from enrichers.redis import RedisEnricher
from tests.redis_service import RedisServer, needs_redis, redis_server

__all__ = ["redis_server"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:s3cret@h?socket_timeot=5", "'socket_timeot' is none of them; did you mean 'socket_timeout'"),
        ("redis://:s3cret@h?pasword=s3cret", "'pasword' is none of them; did you mean 'password'"),
        ("redis://:s3cret@h?max_connections=5", "'max_connections' is none of them; use the argument pool_size"),
        ("redis://:s3cret@h?ssl_ca_certs=s3cret", "'ssl_ca_certs' is for TLS, and so for rediss://"),
        ("redis://:s3cret@h?db=s3cret", "Invalid value for .db. in connection URL"),
        ("redis://:s3cret@h?s3cret", "not of the form name=value"),
    ],
)
async def test_X4_options_that_redis_py_does_not_take_are_named_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        RedisEnricher(url, schema="v string")
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigurationError, match=says) as caught:
        await RedisEnricher(lambda: url, schema="v string").open()
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


async def test_options_that_redis_py_takes_are_taken(redis_server: RedisServer) -> None:
    options = "db=1&client_name=me&socket_timeout=5.0&health_check_interval=30&socket_keepalive=yes&protocol=3"
    enricher = RedisEnricher(f"{redis_server.url}?{options}", schema="v string")
    await enricher.open()
    assert await enricher.lookup("k") is None
    await enricher.close()


async def test_X4_a_function_that_hangs_is_given_up_after_the_connect_timeout() -> None:
    released = threading.Event()
    try:
        with pytest.raises(ConfigurationError, match=r"returned nothing within 0.01 s \(connect_timeout\)"):
            await RedisEnricher(lambda: str(released.wait()), schema="v string", connect_timeout=0.01).open()
    finally:
        released.set()


@pytest.fixture
def open_server() -> Iterator[RedisServer]:
    """A server that asks for no password."""
    needs_redis()
    with RedisServer() as server:
        server.command("CONFIG", "SET", "requirepass", "")
        yield server


async def refusal(url: str) -> str:
    enricher = RedisEnricher(url, schema="v string")
    await enricher.open()
    with pytest.raises(EnricherError) as caught:
        await enricher.lookup("k")
    await enricher.close()
    assert (caught.value.retryable, caught.value.any_key) == (False, True)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("protocol", ["", "?protocol=2", "?protocol=3"])
async def test_what_to_do_about_credentials_is_told(redis_server: RedisServer, protocol: str) -> None:
    wrong = await refusal(redis_server.url_with("wr0ng-s3cret") + protocol)
    assert "refuses the credentials: check user and password of the URL, as in redis://user:password@host" in wrong
    missing = await refusal(f"redis://127.0.0.1:{redis_server.port}{protocol}")
    assert "a password is required; put it into the URL, percent-encoded, as in redis://:password@" in missing


async def test_a_password_for_a_server_without_one_is_told(open_server: RedisServer) -> None:
    told = await refusal(open_server.url + "?protocol=2")
    assert "it has no password for the user that is called default; leave it out of the URL" in told
