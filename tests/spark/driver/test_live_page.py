"""The live page over real HTTP, and in a browser where there is one: who sees it, what it shows, what it loads."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from asyncio_operator import Budget, ConfigurationError, Limit
from asyncio_operator.figures import Figures
from asyncio_operator.quota.spec import BudgetStatistics, UnitStatistics
from asyncio_operator.spark import LivePage
from asyncio_operator.spark.driver import live_page
from asyncio_operator.spark.driver.ledger import MOST_LOOKUPS, MOST_TASKS, Ledger, Lookup
from asyncio_operator.spark.driver.live_page import KEPT, WINDOW, LiveSamples, exposition
from asyncio_operator.spark.worker.reporting import Origin, TaskReport
from asyncio_operator.testing import ManualClock
from asyncio_operator.trace import Trace
from asyncio_operator.trace.stories import Story
from tests.browser import Browser, needs_chromium
from tests.spark.helpers import wait_until

HOSTILE = "<img src=x onerror='window.bad=1'><script>window.bad=1</script>"


def report(enrichment: str, rows: int, state: str = "running", part: str = "", partition: int = 0) -> TaskReport:
    figures = Figures(rows=rows, found=rows, calls=2 * rows, cache_hits=rows, journal_hits=1, retries=3)
    for _ in range(2 * rows):
        figures.attempt_latency.add(0.01)
    for _ in range(3 * rows):
        figures.latency.add(0.02)
    figures.errors.update({HOSTILE: 2, "CircuitOpenError": 4})
    return TaskReport(part, None, figures, Origin(enrichment, 5, partition, 9, "r"), state, 6)


def slow_keys() -> Trace:
    trace = Trace()
    trace.started(0.0)
    for number, key in enumerate(["fast", HOSTILE]):
        trace.admitted(0.0, number, key)
        trace.record("attempt_started", 0.0, number, 1)
        trace.record("attempt_ended", 1.0 + number, number, 1, "error", f"OSError: {HOSTILE}")
        trace.record("completed", 1.0 + number, number, "failed")
    trace.record("ended", 3.0)
    return trace


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[LivePage]:
    """It takes samples when a test says so."""
    monkeypatch.setattr(live_page, "EVERY", 3600.0)
    with LivePage(ledger, 0, "127.0.0.1") as served:
        yield served


def asked(page: LivePage, path: str, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    address = urlsplit(page.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def path_of(page: LivePage, name: str = "") -> str:
    return urlsplit(page.url).path + name


def test_V2_every_path_without_the_token_is_forbidden(page: LivePage) -> None:
    token = path_of(page).strip("/")
    assert len(token) >= 40
    wrong = ["/", "//", "/x/", "/figures.json", "/favicon.ico", f"/{token[:-1]}/", f"/{token}x/", f"/x/{token}/"]
    wrong += [f"/{token.swapcase()}/", "/%2e%2e/", f"/?{token}", "/%C3%A4/"]
    for path in wrong:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
            assert asked(page, path, method)[0].status == 403, (method, path)


def test_V2_the_page_needs_nothing_from_elsewhere_and_is_not_kept(page: LivePage) -> None:
    answer, body = asked(page, path_of(page))
    text = body.decode()
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    [nonce] = set(re.findall("'nonce-(.+?)'", policy))
    assert text.count(f'nonce="{nonce}"') == 2
    assert "{{" not in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "innerHTML" not in text
    assert f"'nonce-{nonce}'" not in asked(page, path_of(page))[0].headers["Content-Security-Policy"]


def test_V2_only_get_is_answered_and_unknown_pages_are_not_there(page: LivePage) -> None:
    for method in ("POST", "TRACE"):
        assert asked(page, path_of(page), method)[0].status == 405
    assert asked(page, path_of(page, "other"))[0].status == 404
    answer, body = asked(page, path_of(page), "HEAD")
    assert (answer.status, body) == (200, b"")
    answer, _ = asked(page, path_of(page).rstrip("/"))
    assert (answer.status, answer.headers["Location"]) == (301, path_of(page))


def test_V2_connections_are_bounded_because_each_takes_a_thread_of_the_driver(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "MOST_CONNECTIONS", 3)
    with LivePage(ledger, 0, "127.0.0.1") as page:
        address = "127.0.0.1", urlsplit(page.url).port
        silent = [socket.create_connection(address) for _ in range(3)]
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            asked(page, path_of(page))
        for one in silent:
            one.close()

        def served() -> bool:
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                return asked(page, path_of(page))[0].status == 200
            return False

        wait_until(served, 20, "the page is served again")


def figures_of(page: LivePage, after: object = 0) -> Any:
    answer, body = asked(page, path_of(page, f"figures.json?after={after}"))
    assert answer.status == 200
    return json.loads(body)


def test_V2_figures_of_each_lookup_and_task_come_as_json(ledger: Ledger, page: LivePage) -> None:
    first = ledger.begin(Lookup("prices", "", None, slow_keys()))
    second = ledger.begin(Lookup(HOSTILE, "planes"))
    ledger.extend([report(first, 10), report(second, 20, "failed", "planes", 1)])
    page._samples.take()
    shown = figures_of(page)
    assert [one["label"] for one in shown["lookups"]] == ["prices", f"planes: {HOSTILE}"]
    prices, planes = shown["lookups"]
    assert [(one["milliseconds"], one["attempts"]) for one in prices["slowest"]] == [(2000, 1), (1000, 1)]
    assert planes["slowest"] is None
    assert prices["errors"] == {"CircuitOpenError": 4, HOSTILE: 2}
    assert {name: prices["totals"][name] for name in ("rows", "calls", "cache_hits", "journal_hits", "retries")} == {
        "rows": 10, "calls": 20, "cache_hits": 10, "journal_hits": 1, "retries": 3
    }  # fmt: skip
    last = dict(zip(shown["fields"], prices["samples"][-1], strict=True))
    assert (last["rows"], last["in_flight"], last["refused"]) == (10, 6, 4)
    assert 9.5 < last["p99"] < 10.5
    assert planes["totals"]["rows"] == 0, "the task has failed"
    assert planes["totals"]["calls"] == 40
    assert (prices["totals"]["keys_called"], planes["totals"]["keys_called"]) == (30, 60)
    tasks = [(one["stage"], one["partition"], one["state"], one["rows"], one["in_flight"]) for one in shown["tasks"]]
    assert tasks == [(5, 0, "running", 10, 6), (5, 1, "failed", 20, 0)]
    assert shown["running"] == 1
    assert figures_of(page, shown["number"])["lookups"][0]["samples"] == []
    for odd in ("-1", "x", "9" * 30, "%D9%A3", ""):
        assert figures_of(page, odd)["number"] == shown["number"]


def test_V2_calls_in_flight_are_those_of_all_tasks_and_the_first_tasks_are_shown(
    ledger: Ledger, page: LivePage
) -> None:
    name = ledger.begin(Lookup("prices", ""))
    for number in range(MOST_TASKS + 50):
        one = report(name, 1, partition=number)
        assert one.origin is not None
        ledger.extend([replace(one, origin=replace(one.origin, attempt=number))])
    page._samples.take()
    shown = figures_of(page)
    last = dict(zip(shown["fields"], shown["lookups"][0]["samples"][-1], strict=True))
    assert (last["in_flight"], shown["running"], len(shown["tasks"])) == (6 * 150, 150, MOST_TASKS)
    assert b'in_flight{lookup="prices"} 900\n' in asked(page, path_of(page, "metrics"))[1]


def test_V2_a_long_trace_does_not_hold_up_the_page(ledger: Ledger) -> None:
    class Long(Trace):
        def story(self) -> Story:
            reading = threading.Thread(target=lambda: pages.append(samples.page()), daemon=True)
            reading.start()
            reading.join(5)
            return super().story()

    pages: list[Any] = []
    ledger.begin(Lookup("prices", "", None, Long()))
    samples = LiveSamples(ledger)
    samples.take()
    assert len(pages) == 1


def test_V1_a_trace_is_read_again_only_if_it_has_grown(ledger: Ledger) -> None:
    read = []

    class Watched(Trace):
        def story(self) -> Story:
            read.append(self.size)
            return super().story()

    trace = Watched()
    samples = LiveSamples(ledger)
    samples.take()
    ledger.begin(Lookup("prices", "", None, trace))
    samples.take()
    assert samples.page()["lookups"][0]["slowest"] == [], "a new lookup is known to have a trace at once"
    for keys in (2, 4):
        trace.include(slow_keys())
        samples.take()
        assert len(samples.page()["lookups"][0]["slowest"]) == keys, "no call runs: they are there at once"
        for _ in range(3 * WINDOW):
            samples.take()
    assert read == [0, 9, 17]


def test_V2_percentiles_are_those_of_the_last_seconds_and_samples_are_bounded(ledger: Ledger) -> None:
    clock = ManualClock()
    samples, name = LiveSamples(ledger, clock, clock), ledger.begin(Lookup("prices", ""))
    figures = Figures()
    for number in range(KEPT + 20):
        clock.advance(1)
        for _ in range(10):
            figures.attempt_latency.add(0.01 if number < 100 else 1.0)
        ledger.extend([TaskReport("", None, Figures.of_json(figures.as_json()), Origin(name, 1, 0, 0, "r"))])
        ledger._partitions.clear()
        figures = Figures()
        samples.take()
    [lookup] = samples.page()["lookups"]
    assert len(lookup["samples"]) == KEPT
    p99 = {one[0]: one[-1] for one in lookup["samples"]}
    assert 9.5 < p99[99] < 10.5
    assert 950 < p99[108] < 1050


def test_V2_percentiles_after_a_reset_are_those_of_what_came_since(ledger: Ledger) -> None:
    samples, name = LiveSamples(ledger), ledger.begin(Lookup("prices", ""))

    def sampled(partition: int, seconds: float, calls: int) -> list[float]:
        figures = Figures()
        for _ in range(calls):
            figures.attempt_latency.add(seconds)
        ledger.extend([TaskReport("", None, figures, Origin(name, 1, partition, 0, "r"))])
        samples.take()
        [lookup] = samples.page()["lookups"]
        return [round(latency, -1) for latency in lookup["samples"][-1][-3:]]

    assert sampled(0, 1.0, 10) == [1000, 1000, 1000]
    ledger.forget()
    assert sampled(1, 1.0, 5) == [1000, 1000, 1000]


def test_V2_a_budget_is_shown_as_long_as_a_lookup_with_it_is_remembered(ledger: Ledger) -> None:
    class Asked(Budget):
        def statistics(self) -> BudgetStatistics:
            return BudgetStatistics({"calls": UnitStatistics(10.0, 1.0, 0.0, 0)}, workers=1, paused_for=0.0)

    ledger.begin(Lookup("others", "", Budget("a budget that no task has asked", Limit(10))))
    ledger.begin(Lookup("prices", "", Asked("shop", Limit(10))))
    samples = LiveSamples(ledger)
    for number in range(MOST_LOOKUPS + 1):
        samples.take()
        assert [one["name"] for one in samples.page()["budgets"]] == (["shop"] if number < MOST_LOOKUPS else [])
        ledger.begin(Lookup(f"{number}", ""))


@pytest.mark.parametrize(
    ("port", "host"),
    [*((port, "127.0.0.1") for port in (-1, "x", 70_000, 0.0)), *((0, host) for host in (5, "a..b", "a\0b"))],
)
def test_V2_a_wrong_address_is_told(ledger: Ledger, port: Any, host: Any) -> None:
    with pytest.raises(ConfigurationError):
        LivePage(ledger, port, host)


def test_V2_a_closed_page_leaves_nothing_and_no_path_is_logged(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    before = set(threading.enumerate())
    page = LivePage(ledger, 0, "127.0.0.1")
    asked(page, path_of(page))
    asked(page, "/nowhere")
    page.close()
    page.close()
    assert {one for one in threading.enumerate() if one.name.startswith("asyncio-operator")} <= before
    with pytest.raises(ConnectionError):
        asked(page, path_of(page))
    assert path_of(page) not in caplog.text + "".join(capfd.readouterr())
    assert "closed" in repr(page)


def test_V2_a_closed_page_answers_no_more_on_a_connection_that_is_open(ledger: Ledger) -> None:
    with LivePage(ledger, 0, "127.0.0.1") as page:
        address = urlsplit(page.url)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=20)) as browser:
            browser.request("GET", path_of(page, "figures.json"))
            browser.getresponse().read()
            page.close()
            assert browser.sock.recv(1) == b"", "the connection has ended"


def test_V2_a_path_that_cannot_be_read_is_forbidden(page: LivePage) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(page.url).port), timeout=20) as client:
        client.sendall(b"GET http://[x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 403 ")


def test_V2_a_port_is_not_shared_by_two_pages_and_no_name_is_asked_for(
    ledger: Ledger, page: LivePage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="cannot be served at"):
        LivePage(ledger, urlsplit(page.url).port or 0, "127.0.0.1")

    def slow(_host: str) -> str:
        raise AssertionError("DNS may take long")

    monkeypatch.setattr(socket, "getfqdn", slow)
    LivePage(ledger, 0, "127.0.0.1").close()


def test_V2_in_a_browser_nothing_hostile_runs_and_buttons_do_what_they_say(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_chromium()
    monkeypatch.setattr(live_page, "EVERY", 0.1)
    first = ledger.begin(Lookup("prices", "", None, slow_keys()))
    second = ledger.begin(Lookup(HOSTILE, "planes"))
    # Two lookups of one task.
    ledger.extend([report(first, 10), report(second, 20, part="planes")])
    with LivePage(ledger, 0, "127.0.0.1") as page, Browser() as browser:
        for width, scheme in ((1400, "light"), (390, "dark")):
            tab = browser.tab(width=width, scheme=scheme)
            tab.open(page.url)
            tab.wait_for("document.querySelector('#tasks td')")
            assert tab.texts("#numbers dd")[0] == "10"
            assert tab.texts("#state")[0].startswith("1 task running, ")
            assert tab.texts("#tasks th")[2] == "task ID"
            assert tab.texts(".chart text")[:3] == ["0", "0.5", "1"]
            assert HOSTILE in tab.texts("#errors")[0]
            assert "2,000" in tab.texts("#slowest")[0]
            tab.click("#lookups button", text="planes: ")
            assert tab.texts("#numbers dd")[0] == "20"
            tab.click("button[data-span='60']")
            assert tab.evaluate("document.querySelector(`button[data-span='60']`).ariaPressed") == "true"
            tab.click("#tasks th", 4)
            assert tab.texts("#tasks th")[4].startswith("rows")
            assert len(tab.texts(".chart path")) >= 12
            tab.click("#pause")
            assert tab.texts("#pause") == ["Go on"]
            assert tab.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
            assert tab.evaluate("window.bad === undefined")
            assert tab.said == []
            assert tab.loaded
            assert all(url.startswith(page.url) for url in tab.loaded)


def test_V4_prometheus_reads_the_figures_of_each_lookup(ledger: Ledger, page: LivePage) -> None:
    first = ledger.begin(Lookup("prices", ""))
    second = ledger.begin(Lookup('a "quoted"\n\\name', "planes"))
    ledger.extend([report(first, 10), report(second, 20, "failed", "planes", 1)])
    page._samples.take()
    answer, body = asked(page, path_of(page, "metrics"))
    text = body.decode()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert text.endswith("\n")
    sample = re.compile(r'[a-z_]+\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="(\\.|[^"\\\n])*")*\} -?[0-9.e+-]+')
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line) or sample.fullmatch(line), line
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert found['asyncio_operator_rows{lookup="prices"}'] == "10"
    assert found['asyncio_operator_in_flight{lookup="prices"}'] == "6"
    assert found[r'asyncio_operator_calls_total{lookup="planes: a \"quoted\"\n\\name"}'] == "40"
    assert found['asyncio_operator_errors_total{lookup="prices",type="CircuitOpenError"}'] == "4"
    # All calls took 10 ms: none less than 7.8, all less than 15.6.
    below = {le: found[f'asyncio_operator_attempt_latency_seconds_bucket{{lookup="prices",le="{le}"}}']
             for le in ("0.0078125", "0.015625", "+Inf")}  # fmt: skip
    assert below == {"0.0078125": "0", "0.015625": "20", "+Inf": "20"}
    assert float(found['asyncio_operator_attempt_latency_seconds_sum{lookup="prices"}']) == pytest.approx(0.2, rel=0.04)
    assert asked(page, "/metrics")[0].status == 403


def test_V4_prometheus_reads_budgets_too() -> None:
    units = {"calls": {"allowed": 100, "used": 7, "reserved": 0.5, "refused": 0}}
    lines = exposition([], {}, [{"name": "shop", "units": units}]).splitlines()
    assert 'asyncio_operator_budget_used{budget="shop",unit="calls"} 7' in lines
    assert len([line for line in lines if not line.startswith("#")]) == 4
