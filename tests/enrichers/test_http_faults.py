"""When the service, the connection or the caller's patience ends: statuses, redirects, TLS, proxies, secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.services.secrets import Secrets
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers.http import HttpEnricher
from enrichers.http.errors import failure as mapped
from enrichers.http.proxies import proxy_for
from tests.enrichers.helpers import asked, failure, hanging_up_after, opened, told
from tests.operator.helpers import virtual

ROWS = {"x": {"a": 1}, "y": {"a": 2}}


# -- statuses


@pytest.mark.parametrize(
    ("status", "retryable", "overload", "any_key"),
    [
        *((status, False, False, False) for status in (400, 402, 404, 406, 409, 410, 414, 422, 451, 304, 501)),
        *((status, False, False, True) for status in (401, 403, 405, 407)),
        *((status, True, False, False) for status in (408, 425, 500, 502, 504)),
        *((status, True, True, False) for status in (429, 503, 529)),
        *((status, None, False, False) for status in (507, 520, 599)),
    ],
)
async def test_a_status_says_whether_asking_again_may_help(
    status: int, retryable: bool | None, overload: bool, any_key: bool
) -> None:
    async with FakeService(ROWS) as service, asked(service, missing_statuses=()) as enricher:
        service.answer_next(FakeAnswer({"error": "said so"} if status != 304 else b"", status))
        error = await failure(enricher, "x")
        assert (error.retryable, error.overload, error.any_key) == (retryable, overload, any_key)
        assert f"{status}" in str(error)
        assert "key 'x'" in str(error)
        assert status == 304 or "said so" in str(error)
        assert await enricher.lookup("x") == {"a": 1}
        assert service.connections == 1


async def test_what_the_service_says_is_cut_and_made_printable() -> None:
    async with FakeService() as service, asked(service) as enricher:
        service.answer_next(FakeAnswer("a\x1b[31m\n" + "b" * 100_000, 500), FakeAnswer(b"\xff\x00", 500))
        assert "a?[31m bbb" in str(await failure(enricher, "x"))
        assert len(str(await failure(enricher, "x"))) < 400


# -- connections


async def test_nobody_there_is_retryable_and_no_keys_fault() -> None:
    async with FakeService(ROWS) as service, asked(service) as enricher:
        assert await enricher.lookup("x") == {"a": 1}
    async with asked(service) as service_gone:
        error = await failure(service_gone, "x")
        assert (error.retryable, error.any_key) == (True, True)
        assert "the service is not reachable" in str(error)
        assert isinstance(error.__cause__, aiohttp.ClientConnectorError)
        async with service:
            assert await service_gone.lookup("y") == {"a": 2}, "it comes back"


@pytest.mark.parametrize(("method", "requests"), [("GET", 2), ("POST", 1)])
async def test_a_reset_is_retryable_and_only_get_is_sent_again_by_itself(method: str, requests: int) -> None:
    async with FakeService(ROWS, resets=1.0) as service, asked(service, method=method) as enricher:
        error = await failure(enricher, "x")
        assert (error.retryable, error.overload, error.any_key) == (True, False, False)
        assert "the connection was lost" in str(error)
        assert len(service.requests) == requests


@pytest.mark.parametrize(("said", "retryable"), [("", True), ("Content-Length: 9\r\n", False)])
async def test_an_answer_that_may_have_been_cut_off_is_retryable(said: str, retryable: bool) -> None:
    """Without a length it ends where the connection does, as with HTTP/1.0."""
    sent = f'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n{said}\r\n{{"v": "x1'.encode()
    async with hanging_up_after(sent) as url, opened(HttpEnricher(url + "/x/{key}", schema="v string")) as enricher:
        error = await failure(enricher, "JFK")
    assert "is not JSON" in str(error)
    assert error.retryable is retryable
    assert ("it may have been cut off" in str(error)) is retryable


@virtual
async def test_a_cancelled_lookup_ends_at_once_and_its_connection_is_not_used_again() -> None:
    loop = asyncio.get_running_loop()
    async with FakeService(ROWS, latency=100.0) as service, asked(service) as enricher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await enricher.lookup("x")
        assert loop.time() < 6
        service.answer_next(FakeAnswer({"a": 7}, slow=100.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await enricher.lookup("x")
        assert await enricher.lookup("y") == {"a": 2}
        assert (service.connections, service.abandoned) == (3, 2), "the service heard of it each time"


async def test_close_ends_what_runs_and_may_come_twice() -> None:
    asked_for = asyncio.Event()

    async def never(_: FakeRequest) -> Any:
        asked_for.set()
        await asyncio.Event().wait()

    async with FakeService(handler=never) as service:
        enricher = HttpEnricher(f"{service.url}/x/{{key}}", schema="a int")
        await enricher.close()
        assert "is not open" in str(await failure(enricher, "x"))
        await enricher.open()
        running = asyncio.ensure_future(failure(enricher, "x"))
        await asked_for.wait()
        await enricher.close()
        assert (await running).retryable is not False
        await enricher.close()
        assert "is not open" in str(await failure(enricher, "x"))


@pytest.mark.parametrize(
    ("error", "text", "retryable"),
    [
        (aiohttp.ServerDisconnectedError(), "the connection was lost", True),
        (aiohttp.ConnectionTimeoutError("to https://h/?t=hunter2hunter2"), "no connection came about", True),
        (aiohttp.ClientPayloadError("x"), "the answer broke off", True),
        (aiohttp.InvalidURL("http://h/?token=hunter2hunter2"), "the URL cannot be used", False),
        (TimeoutError(), "no connection came about", True),
        (ConnectionResetError(), "the connection was lost", True),
        (RuntimeError("Session is closed"), "the request failed", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_error_of_the_client_is_mapped_once(error: Exception, text: str, retryable: bool | None) -> None:
    raised = mapped(error, "subject", Secrets(["hunter2hunter2"]))
    assert str(raised).startswith(f"subject: {text}")
    assert raised.retryable is retryable
    assert "hunter2" not in told(raised)


# -- redirects


@pytest.mark.parametrize(("status", "methods"), [(303, "GET"), (302, "GET"), (307, "POST")])
async def test_a_redirected_post_keeps_its_method_where_the_protocol_says_so(status: int, methods: str) -> None:
    async with FakeService(handler=lambda _: {"a": 1}) as service:
        async with asked(service, "/old/{key}", method="POST", json_body={"k": "{key}"}) as enricher:
            service.answer_next(FakeAnswer(status=status, headers={"Location": "/new"}))
            assert await enricher.lookup("k") == {"a": 1}
        sent = service.requests[1]
        assert (sent.method, sent.body) == (methods, b'{"k":"k"}' if methods == "POST" else b"")


async def test_X5_another_host_never_gets_credentials() -> None:
    secret = {"Authorization": "Bearer hunter2hunter2", "X-Api-Key": "k", "Accept-Language": "en"}
    async with FakeService(ROWS) as other, FakeService(ROWS) as service:
        elsewhere = FakeAnswer(status=302, headers={"Location": f"{other.url}/rows/x"})
        async with asked(service, headers=secret) as enricher:
            service.answer_next(elsewhere)
            error = await failure(enricher, "x")
            assert f"redirected to another host, {other.url}" in str(error)
            assert error.retryable is False
            assert other.requests == []
        async with asked(service, headers=secret, redirects="any") as enricher:
            service.answer_next(elsewhere)
            assert await enricher.lookup("x") == {"a": 1}
            received = other.requests[0].headers
            assert "authorization" not in received
            assert "x-api-key" not in received
            assert received["accept-language"] == "en"
        async with asked(service, method="POST", json_body=["{key}"], redirects="any") as enricher:
            service.answer_next(FakeAnswer(status=307, headers={"Location": f"{other.url}/rows/x"}))
            assert "a POST is redirected" in str(await failure(enricher, "x"))
            assert len(other.requests) == 1
        async with asked(service, redirects="never") as enricher:
            for host, location in ((service.url, "/rows/y?token=t"), ("http://h:1", "http://u:p@h:1/y?token=t")):
                service.answer_next(FakeAnswer(b"moved", 302, headers={"Location": location}))
                text = str(await failure(enricher, "x"))
                assert f'it is redirected to {host}, and redirects="never" forbids to follow (status 302)' in text
                assert "token" not in text
                assert "u:p" not in text
        async with asked(service, redirects="never", missing_statuses=(302,)) as enricher:
            for location in ("/rows/y", "ftp://h"):
                service.answer_next(FakeAnswer(status=302, headers={"Location": location}))
                assert await enricher.lookup("x") is None


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


async def test_a_certificate_that_does_not_verify_is_final_and_a_file_of_authorities_helps(
    certificate: Path, server_context: ssl.SSLContext
) -> None:
    async with FakeService(ROWS, ssl_context=server_context) as service:
        async with asked(service) as enricher:
            error = await failure(enricher, "x")
            assert "certificate of the service does not verify; ssl= takes" in str(error)
            assert (error.retryable, error.any_key) == (False, True)
        async with asked(service, ssl=certificate / "cert.pem") as enricher:
            assert await enricher.lookup("x") == {"a": 1}
        cafile = str(certificate / "cert.pem")
        async with asked(service, ssl=lambda: ssl.create_default_context(cafile=cafile)) as enricher:
            assert await enricher.lookup("x") == {"a": 1}
            service.answer_next(FakeAnswer(status=302, headers={"Location": service.url.replace("https", "http")}))
        async with asked(service, ssl=cafile, redirects="any") as enricher:
            assert "from https to http://127.0.0.1" in str(await failure(enricher, "x"))


async def test_X4_authorities_that_are_not_there_are_told_when_a_worker_opens(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for file in ("missing.pem", "empty.pem"):
        enricher = HttpEnricher("https://127.0.0.1/{key}", schema="a int", ssl=tmp_path / file)
        with pytest.raises(ConfigurationError, match=file):
            await enricher.open()
        await enricher.close()
    enricher = HttpEnricher("https://127.0.0.1/{key}", schema="a int", ssl=lambda: 5)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="the function gave 5"):
        await enricher.open()


# -- proxies


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_a_proxy_of_the_environment_is_used_if_asked_for(environment: pytest.MonkeyPatch) -> None:
    def forward(sent: FakeRequest) -> Any:
        return {"a": 7} if sent.target == "http://far.example/rows/x" else None

    async with FakeService(handler=forward) as proxy:
        environment.setenv("http_proxy", proxy.url.replace("://", "://bob:p%40ss@"))
        async with opened(HttpEnricher("http://far.example/rows/{key}", schema="a int", trust_env=True)) as enricher:
            assert await enricher.lookup("x") == {"a": 7}
            assert proxy.requests[0].headers["proxy-authorization"] == "Basic Ym9iOnBAc3M="
            assert proxy.requests[0].headers["host"] == "far.example"
    async with FakeService(ROWS) as service:
        environment.setenv("no_proxy", "127.0.0.1")
        async with asked(service, trust_env=True) as enricher:
            assert await enricher.lookup("x") == {"a": 1}
        environment.delenv("no_proxy")
        async with asked(service) as enricher:
            assert await enricher.lookup("x") == {"a": 1}
        async with asked(service, trust_env=True) as enricher:
            error = await failure(enricher, "x")
            assert "the proxy is not reachable" in str(error)
            assert "p%40ss" not in told(error)
            assert "p@ss" not in told(error)


async def test_X5_the_credentials_of_a_proxy_stay_with_it_when_https_goes_through(
    environment: pytest.MonkeyPatch, certificate: Path, server_context: ssl.SSLContext
) -> None:
    seen: list[bytes] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = seen[-1].split()[1].decode().partition(":")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    async with FakeService(ROWS, ssl_context=server_context) as service, proxy:
        environment.setenv("https_proxy", f"http://bob:p%40ss@127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        async with asked(service, trust_env=True, ssl=certificate / "cert.pem", headers={"X-Key": "k"}) as enricher:
            assert await enricher.lookup("x") == {"a": 1}
        sent = service.requests[0].headers
    assert b"Proxy-Authorization: Basic Ym9iOnBAc3M=" in seen[0]
    assert b"X-Key" not in seen[0]
    assert "proxy-authorization" not in sent
    assert sent["x-key"] == "k"


def test_what_the_environment_says_of_proxies(environment: pytest.MonkeyPatch) -> None:
    assert proxy_for("http", "h:80") is None
    environment.setenv("all_proxy", "proxy.example:3128")
    environment.setenv("https_proxy", "http://u@tls.example")
    environment.setenv("no_proxy", ".internal,near.example:8080")
    assert proxy_for("http", "h:80") == ("http://proxy.example:3128", None)
    assert proxy_for("https", "h:443") == ("http://tls.example", "Basic dTo=")
    assert proxy_for("http", "a.internal:80") is None
    assert proxy_for("http", "near.example:8080") is None
    for wrong in ("socks5://u:hunter2@h:1", "http://u:hunter2@:1", "http://h:hunter2"):
        environment.setenv("http_proxy", wrong)
        with pytest.raises(ConfigurationError, match="proxy for http") as caught:
            proxy_for("http", "h:80")
        assert "hunter2" not in told(caught.value)


NO_PROXY: dict[str, tuple[list[str], list[str]]] = {
    "10.0.0.0/8": (["10.1.2.3:80"], ["11.1.2.3:80", "10.example:80"]),
    "10.1.2.3/8": (["10.9.9.9:80"], []),
    "192.168.0.0/16, 127.0.0.0/8": (["127.0.0.1:80"], []),
    "fd00::/8": (["[fd12::1]:80"], ["[fe80::1]:80", "10.0.0.1:80"]),
    "::1": (["[::1]:443"], []),
    "0:0:0:0:0:0:0:1": (["[::1]:443"], []),
    "[::1]": (["[::1]:443"], []),
    "[::1]:443": (["[::1]:443"], ["[::1]:80"]),
    "127.0.0.1": (["127.0.0.1:80"], ["127.0.0.10:80"]),
    "127.0.0.1:80": (["127.0.0.1:80"], ["127.0.0.1:81"]),
    "127.*": (["127.0.0.1:80"], []),
    "10.1.*": ([], ["10.2.0.1:80"]),
    "*": (["anything.example:80"], []),
    "x *": (["[::1]:80"], []),
    "example.com": (["example.com:80", "a.b.example.com:80", "example.com.:80"], ["badexample.com:80"]),
    ".example.com": (["a.example.com:80", "example.com:80"], []),
    "*.example.com": (["a.example.com:80"], []),
    "EXAMPLE.com": (["Example.COM:80"], []),
    "example.com.": (["example.com:80"], []),
    "example.com:8080": (["a.example.com:8080"], ["a.example.com:80"]),
    " , example.com , ": (["example.com:80"], []),
    "a.example b.example": (["b.example:80"], []),
    "example.com/24": ([], ["example.com:80"]),
    "": ([], ["example.com:80"]),
    ",.,": ([], ["example.com:80"]),
}
"""What a list names: hosts that are asked directly, and hosts that are not."""


@pytest.mark.parametrize("listed", NO_PROXY)
def test_no_proxy_names_hosts_in_all_usual_forms(environment: pytest.MonkeyPatch, listed: str) -> None:
    environment.setenv("http_proxy", "http://proxy.example:3128")
    environment.setenv("NO_PROXY", listed)
    direct, others = NO_PROXY[listed]
    assert [host for host in direct + others if proxy_for("http", host) is None] == direct


# -- secrets


SECRET = "hunter2hunter2"


async def error_of(enricher: HttpEnricher) -> EnricherError:
    async with opened(enricher):
        return await failure(enricher, "JFK")


@pytest.mark.parametrize(
    "fault", ["status", "redirect", "json", "columns", "reset", "gone", "stranger", "cut", "extract"]
)
async def test_X5_no_secret_reaches_an_error_or_a_log(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    def tell(answer: Any) -> Any:
        raise ValueError(f"the token was {SECRET}-2")

    async with FakeService(ROWS) as service:
        url = service.url.replace("://", f"://bob:{SECRET}-1@") + f"/rows/{{key}}?token={SECRET}-2"
        async with opened(
            HttpEnricher(
                url,
                schema="a int",
                headers={"X-Api-Key": f"{SECRET}-3"},
                params={"sig": f"{SECRET}-4"},
                extract=tell if fault == "extract" else None,
            )
        ) as enricher:
            echo = f"you sent {SECRET}-1 {SECRET}-2 {SECRET}-3 {SECRET}-4"
            planned = {
                "status": [FakeAnswer(echo, 400)],
                "redirect": [FakeAnswer(status=302, headers={"Location": f"http://{SECRET}-2@h/?{SECRET}-3"})],
                "json": [FakeAnswer({"a": echo})],
                "columns": [FakeAnswer({"error": echo, f"{SECRET}-2": 1})],
                "stranger": [FakeAnswer(f'"{echo}"')],
                "cut": [FakeAnswer(echo, truncated=True)],
                "reset": [FakeAnswer(reset=True)] * 2,
            }.get(fault, [])
            service.answer_next(*planned)
            if fault == "gone":
                await service.__aexit__(None, None, None)
            error = await failure(enricher, "x")
            shown = told(error) + repr(enricher) + caplog.text + repr(error.__cause__) + repr(error.__context__)
        if fault == "gone":
            await service.__aenter__()
        assert SECRET not in shown


@pytest.mark.parametrize(
    ("options", "echo"),
    [
        ({"params": {"token": "s3cr3t/+abcdef=="}}, lambda sent: "Cannot GET " + sent.target),
        ({"url": "/x/{key}?token=s3cr3t/é=+1234"}, lambda sent: "Cannot GET " + sent.target),
        ({"url": "/x/{key}?v=1&s3cr3t-alone"}, lambda sent: "Cannot GET " + sent.target),
        ({"params": {"token": 's3cr3t"x\\y123'}}, lambda sent: json.dumps(sent.query)),
        ({"headers": {"X-Api": 's3cr3t"x\\y123'}}, lambda sent: json.dumps(sent.headers)),
        ({"headers": {"X-Sig": "s3cr3tvalue"}}, lambda sent: json.dumps(sent.headers).upper()),
        ({"json_body": {"password": "s3cr3t{99", "k": "{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"login": "of s3cr3t-{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"password": "s3cr3t-ü", "k": "{key}"}}, lambda sent: sent.body.decode()),
        ({"json_body": {"secret": {"pin": 12345678}, "k": ["{key}"]}}, lambda sent: sent.body.decode()),
        ({"json_body": {"token": [1.25e7], "k": "{key}"}}, lambda sent: sent.body.decode()),
    ],
)
async def test_X5_what_a_service_says_of_a_request_shows_no_secret(
    options: Any, echo: Callable[[FakeRequest], str]
) -> None:
    method = "POST" if "json_body" in options else "GET"
    async with FakeService(handler=lambda sent: FakeAnswer(echo(sent), 400)) as service:
        url = service.url + options.get("url", "/x" if "json_body" in options else "/x/{key}")
        error = await error_of(HttpEnricher(**{"schema": "v string", "method": method} | options | {"url": url}))
    assert "***" in str(error)
    for part in ("s3cr3t", "12345678", "12500000"):
        assert part not in told(error).lower()


async def test_X5_an_error_of_the_client_that_names_the_url_as_sent_is_not_shown() -> None:
    async with hanging_up_after(b"garbage\r\n\r\n") as url:
        error = await error_of(HttpEnricher(url + "/x/{key}", schema="v string", params={"token": "c2VjcmV0/+x=="}))
    assert "c2VjcmV0" not in told(error)
    assert error.retryable is not False, "what speaks no HTTP may do so later"


async def test_X5_an_error_of_an_extract_function_shows_no_secret_and_keeps_what_it_says_of_itself() -> None:
    def refused(answer: Any) -> Any:
        raise EnricherError(answer["error"], retryable=True, retry_after=3.0, overload=True)

    async with FakeService(handler=lambda sent: {"error": f"{sent.headers['authorization']} has expired"}) as service:
        enricher = HttpEnricher(
            service.url + "/x/{key}",
            schema="v string",
            extract=refused,
            headers=lambda: {"Authorization": "Bearer s3cr3t-v4lue"},
        )
        error = await error_of(enricher)
    assert "s3cr3t" not in told(error)
    assert "key 'JFK': *** has expired" in str(error)
    assert (error.retryable, error.retry_after, error.overload) == (True, 3.0, True)


async def test_X5_no_frame_of_an_error_holds_what_a_function_for_headers_gave() -> None:
    given = {"Authorization": "Bearer s3cr3t-v4lue"}
    enricher = HttpEnricher("http://127.0.0.1:1/x/{key}", schema="v string", headers=lambda: dict(given))
    error = await error_of(enricher)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert len(frames) > 2
    assert not [frame for frame in frames if any("s3cr3t" in repr(value) for value in frame.f_locals.values())]
