"""`LivePage`: a page that shows the figures of running tasks, served by the driver.

The address has a token of 32 random bytes, and every path without it gets a 403. The page loads nothing from anywhere
else, and names, keys and errors only ever become text in it. It answers GET alone, and changes nothing.

It shows the figures of a ledger once a second, with those of budgets, and the slowest keys of traces. A sample has
totals, so the page computes rates from any two, and a lost one does no harm. Percentiles are those of the last `WINDOW`
samples. All of this is plain data for JSON.

Prometheus gets the figures as text, in its exposition format 0.0.4. What may get smaller is a gauge: rows of an attempt
that has failed are counted by the next one.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from asyncio_operator.checks import must_be, natural
from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import ConfigurationError, StateError
from asyncio_operator.figures import FIGURES, NUMBERS, Figures, Kind
from asyncio_operator.metrics import Histogram
from asyncio_operator.quota.spec import Budget
from asyncio_operator.spark.driver.ledger import MOST_TASKS, Ledger, Lookup, TaskView
from asyncio_operator.trace.stories import slowest

EVERY = 1.0  # Seconds between two samples.
IDLE_CONNECTION = 30.0  # Seconds in which a request must come on an open connection.

MOST_CONNECTIONS = 50
"""Open connections. Each takes a thread of the driver, also before its request has shown the token."""

PROMETHEUS = "text/plain; version=0.0.4"  # The type of what Prometheus reads.
Answer = tuple[HTTPStatus, str, dict[str, str], bytes]  # Status, type, headers and body.

FORBIDDEN: Answer = HTTPStatus.FORBIDDEN, "text/plain", {}, b"403: the address of this page has a token\n"
"""The answer to a request without the token."""

ANYWHERE = ("", "0.0.0.0", "::")  # Hosts that mean all addresses of this machine.


class LivePage:
    """A page that is served until it is closed, or until the process ends. Made by `EnrichmentMetrics.serve`.

    Attributes:
        url: its address, with the token: everyone who has it can see the page. ``url + "metrics"`` is for Prometheus.
    """

    def __init__(self, ledger: Ledger, port: int, host: str) -> None:
        if not isinstance(host, str):
            raise must_be("host", host, "a name or an address of this machine")
        natural("port", port)
        self._token = secrets.token_urlsafe(32)
        self._samples = LiveSamples(ledger)
        self._over = threading.Event()
        try:
            self._server = _Server(host, port, self._answer)
        except (OSError, OverflowError, ValueError, TypeError) as error:  # Not all texts can be the name of a host.
            raise ConfigurationError(
                f"the page cannot be served at {host}:{port} ({error}); give a free port, or 0, and a host of this "
                "machine"
            ) from error
        shown = socket.gethostname() if host in ANYWHERE else f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/{self._token}/"
        self._samples.take()
        self._threads = [
            threading.Thread(target=work, name=f"asyncio-operator-{name}", daemon=True)
            for name, work in (("page", self._server.serve_forever), ("samples", self._take_samples))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop serving it, also on connections that are open. A second time does nothing."""
        if not self._over.is_set():
            self._over.set()
            self._server.shutdown()
            self._server.server_close()
            self._server.cut()
            for thread in self._threads:
                thread.join(5 * EVERY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LivePage({self.url!r}{', closed' if self._over.is_set() else ''})"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank" rel="noreferrer">The live page of the metrics</a>'

    def _take_samples(self) -> None:
        while not self._over.wait(EVERY):
            with contextlib.suppress(Exception):  # The next one may be taken.
                self._samples.take()

    def _answer(self, target: str) -> Answer:
        """The answer for a path."""
        try:
            address = urlsplit(target)
        except ValueError:  # As in http://[x/
            return FORBIDDEN
        _, _, rest = address.path.partition("/")
        token, _, page = rest.partition("/")
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return FORBIDDEN
        if page == "":
            if not rest.endswith("/"):
                return HTTPStatus.MOVED_PERMANENTLY, "text/plain", {"Location": f"/{token}/"}, b""
            nonce = secrets.token_urlsafe(16)
            policy = (
                f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
                "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            content = files("asyncio_operator.spark.driver").joinpath("live_page.html").read_text(encoding="utf-8")
            body = content.replace("{{nonce}}", nonce).encode()
            return HTTPStatus.OK, "text/html; charset=utf-8", {"Content-Security-Policy": policy}, body
        if page == "figures.json":
            asked = parse_qs(address.query).get("after", ["0"])[0]
            after = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 19 else 0
            return HTTPStatus.OK, "application/json", {}, json.dumps(self._samples.page(after)).encode()
        if page == "metrics":
            return (
                HTTPStatus.OK,
                f"{PROMETHEUS}; charset=utf-8",
                {},
                self._samples.exposition().encode("utf-8", "backslashreplace"),
            )
        return HTTPStatus.NOT_FOUND, "text/plain", {}, b"404: there is no such page\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False  # Some versions of Python let two servers have one port.

    def __init__(self, host: str, port: int, answer: Any) -> None:
        self.answer = answer
        self._open: set[socket.socket] = set()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Request)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for a connection. One without room is closed at once."""
        return len(self._open) < MOST_CONNECTIONS

    def server_bind(self) -> None:
        """Not that of `HTTPServer`, which asks DNS for the name of the host, and may wait long for it."""
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def cut(self) -> None:
        """End all connections: a browser keeps its own, and asks on it for as long as it gets answers."""
        for connection in self._open.copy():
            with contextlib.suppress(OSError):  # Its client has gone.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_CONNECTION
    server: _Server

    def __getattr__(self, name: str) -> Any:
        """Every method is answered by the same function, so that each needs the token."""
        if name.startswith("do_"):
            return self._do
        raise AttributeError(name)

    def _do(self) -> None:
        status, kind, headers, body = self.server.answer(self.path)
        if status is not HTTPStatus.FORBIDDEN and self.command not in ("GET", "HEAD"):
            status, kind, headers, body = HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", {"Allow": "GET, HEAD"}, b""
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        if self.command not in ("GET", "HEAD"):
            # What the request has in its body was not read, and is no next request.
            self.close_connection = True
            fixed["Connection"] = "close"
        for name, value in (fixed | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "asyncio-operator"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged: their paths have the token."""


KEPT = 900  # Samples that are kept: a quarter of an hour.
WINDOW = 5  # Samples over which percentiles are computed. With fewer, they jump; with more, a change shows late.
SLOWEST = 20  # Keys of each trace that are shown.
LATER = 30.0  # Seconds until a budget that did not answer is queried again.
AMOUNTS = ("allowed", "used", "reserved", "refused")  # What is shown of each unit of a budget.

SHOWN = [
    (name, one.title, one.kind.name, one.always) for name, one in FIGURES.items() if name in (*NUMBERS, "in_flight")
]
"""What the page needs to know of each figure that is a number."""

FIELDS = ("time", "in_flight", *NUMBERS, "refused", "p50", "p95", "p99")
"""The numbers of a sample: seconds since the epoch, totals, calls that a circuit breaker refused, and percentiles in
milliseconds."""


class LiveSamples:
    """Takes samples of a ledger. `take` is called by one thread, and `page` by any. `time` is in seconds since the
    epoch."""

    def __init__(self, ledger: Ledger, time: Clock = wall, clock: Clock = monotonic) -> None:
        self._ledger = ledger
        self._time = time
        self._clock = clock
        self._lock = threading.Lock()
        self._number = 0
        self._samples: dict[str, deque[tuple[int, list[float]]]] = {}
        self._before: dict[str, deque[Histogram]] = {}
        self._budgets: dict[str, dict[str, Any]] = {}
        self._used: dict[str, deque[tuple[int, list[Any]]]] = {}
        self._not_before: dict[str, float] = {}
        self._slowest: dict[str, list[dict[str, Any]]] = {}
        self._traces: dict[str, tuple[int, int, int]] = {}

    def take(self) -> None:
        """Take a sample."""
        calls, lookups = _in_flight(self._ledger.tasks()), self._ledger.lookups()
        now = self._time()
        budgets = {one.budget.name: one.budget for one, _ in lookups if one.budget is not None}
        # Outside of the lock: a coordinator may take its time, and so may a long trace.
        asked = {name: self._asked(budget) for name, budget in budgets.items()}
        found = self._slowest_now([lookup for lookup, _ in lookups], calls)
        with self._lock:
            self._number += 1
            self._slowest |= found
            for lookup, figures in lookups:
                label = lookup.label
                before = self._before.setdefault(label, deque(maxlen=WINDOW))
                recent = Histogram()
                recent.merge(figures.attempt_latency)
                # After a reset of the metrics there are fewer samples than before.
                if before and before[0].count <= recent.count:
                    recent.subtract(before[0])
                before.append(figures.attempt_latency)
                latency = recent.percentiles() if recent.count else Histogram().percentiles()
                totals = [getattr(figures, name) for name in NUMBERS]
                percentiles = (round(1000 * p, 3) for p in (latency.p50, latency.p95, latency.p99))
                sample = [now, calls[label], *totals, figures.errors["CircuitOpenError"], *percentiles]
                self._samples.setdefault(label, deque(maxlen=KEPT)).append((self._number, sample))
            for gone in self._samples.keys() - {lookup.label for lookup, _ in lookups}:
                del self._samples[gone], self._before[gone]
                self._slowest.pop(gone, None)
                self._traces.pop(gone, None)
            for gone in self._budgets.keys() - budgets.keys():
                del self._budgets[gone], self._used[gone]
            for name, budget in asked.items():
                if budget is not None:
                    self._budgets[name] = budget
                    used = {unit: [one["used"], one["allowed"]] for unit, one in budget["units"].items()}
                    self._used.setdefault(name, deque(maxlen=KEPT)).append((self._number, [now, used]))

    def _slowest_now(self, lookups: list[Lookup], calls: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
        """The slowest keys of traces that have changed: of a new lookup and of one without calls at once, else every
        `WINDOW` samples."""
        found: dict[str, list[dict[str, Any]]] = {}
        for lookup in lookups:
            trace, label = lookup.trace, lookup.label
            if trace is None or (label in self._traces and calls[label] and self._number % WINDOW):
                continue
            state = id(trace), trace.runs, trace.size
            if self._traces.get(label) != state:
                self._traces[label], found[label] = state, []
                with contextlib.suppress(StateError):  # It is empty.
                    found[label] = [
                        {
                            "key": one.life.key or one.life.value,
                            "milliseconds": round(1000 * one.seconds, 3),
                            "attempts": len(one.life.calls),
                            "outcome": one.life.outcome or "running",
                            "error": one.error,
                        }
                        for one in slowest(trace.story(), SLOWEST)
                    ]
        return found

    def _asked(self, budget: Budget) -> dict[str, Any] | None:
        if self._clock() < self._not_before.get(budget.name, 0.0):
            return None
        try:
            found = budget.statistics()
        except Exception:
            # Its coordinator may be away, or no task has asked it yet.
            self._not_before[budget.name] = self._clock() + LATER
            return None
        units = {unit: {name: getattr(one, name) for name in AMOUNTS} for unit, one in found.units.items()}
        return {"name": budget.name, "units": units, "workers": found.workers, "paused_for": found.paused_for}

    def exposition(self) -> str:
        """The figures as they are now, for Prometheus."""
        lookups, calls = self._ledger.lookups(), _in_flight(self._ledger.tasks())
        with self._lock:
            budgets = [*self._budgets.values()]
        return exposition(lookups, calls, budgets)

    def page(self, after: int = 0) -> dict[str, Any]:
        """The figures for a page that has all samples up to number `after`."""
        lookups, tasks = self._ledger.lookups(), self._ledger.tasks()
        calls = _in_flight(tasks)
        with self._lock:
            return {
                "number": self._number,
                "fields": FIELDS,
                "figures": SHOWN,
                "lookups": [
                    {
                        "label": lookup.label,
                        "totals": _totals(figures, calls[lookup.label]),
                        "errors": dict(figures.errors.most_common(SLOWEST)),
                        "samples": _later(self._samples.get(lookup.label), after),
                        "slowest": self._slowest.get(lookup.label),
                    }
                    for lookup, figures in lookups
                ],
                "running": len({one.origin.attempt for one in tasks if one.state == "running"}),
                "tasks": [
                    {
                        "lookup": task.label,
                        **{name: getattr(task.origin, name) for name in ("stage", "partition", "attempt")},
                        "state": task.state,
                        "age": round(task.age, 1),
                        **{name: getattr(task.figures, name) for name in ("rows", "calls", "retries", "failures")},
                        "in_flight": task.in_flight,
                        "p99": round(1000 * task.figures.attempt_latency.percentiles().p99, 3),
                    }
                    for task in tasks[:MOST_TASKS]
                ],
                "budgets": [one | {"samples": _later(self._used[name], after)} for name, one in self._budgets.items()],
            }


def _later(samples: deque[tuple[int, Any]] | None, after: int) -> list[Any]:
    return [sample for number, sample in samples or () if number > after]


def _in_flight(tasks: Iterable[TaskView]) -> Counter[str]:
    """Calls that run now, by the label of their lookup."""
    calls = Counter[str]()
    for task in tasks:
        calls[task.label] += task.in_flight
    return calls


def _totals(figures: Figures, in_flight: int) -> dict[str, Any]:
    numbers = {name: getattr(figures, name) for name in NUMBERS}
    numbers |= {"in_flight": in_flight, "keys_called": figures.latency.count}
    for name in ("latency", "attempt_latency"):
        found = getattr(figures, name).percentiles()
        numbers |= {f"{name}_{part}": round(1000 * getattr(found, part), 3) for part in ("p50", "p95", "p99", "max")}
    return numbers


PREFIX = "asyncio_operator"

BOUNDS = [2.0**power for power in range(-10, 7)]
"""Seconds, from 1 ms to a minute: powers of two, because the buckets of `Histogram` begin there."""

ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]

KINDS = {Kind.ROWS: ("gauge", ""), Kind.NOW: ("gauge", ""), Kind.LATENCIES: ("histogram", "_seconds")}
"""The types of metrics that are no counters, and the ends of their names."""


def exposition(lookups: Sequence[tuple[Lookup, Figures]], in_flight: Mapping[str, int], budgets: Iterable[Any]) -> str:
    """The text. `in_flight` has the calls that run now, by the label of their lookup; `budgets` are as the live page
    has them."""
    lines: list[str] = []
    for name, figure in FIGURES.items():
        kind, suffix = KINDS.get(figure.kind, ("counter", "_total"))
        full, samples = name + suffix, list[tuple[str, Labels, float]]()
        for lookup, figures in lookups:
            labels = {"lookup": lookup.label}
            value = in_flight.get(lookup.label, 0) if figure.kind is Kind.NOW else getattr(figures, name)
            if isinstance(value, Histogram):
                samples += _buckets(full, labels, value)
            elif isinstance(value, Mapping):  # A number for each type of error.
                samples += ((full, labels | {"type": error}, count) for error, count in value.items())
            else:
                samples.append((full, labels, value))
        lines += _family(full, kind, figure.help, samples)
    units = [
        ({"budget": one["name"], "unit": unit}, amounts) for one in budgets for unit, amounts in one["units"].items()
    ]
    for name in AMOUNTS:
        of_units = ((f"budget_{name}", labels, amounts[name]) for labels, amounts in units)
        lines += _family(f"budget_{name}", "gauge", f"Units of a budget: {name}", of_units)
    return "\n".join([*lines, ""])


def _family(name: str, kind: str, what: str, samples: Iterable[tuple[str, Labels, float | None]]) -> list[str]:
    """A metric with its samples; nothing if there are none."""
    lines = []
    for full, labels, value in samples:
        if value is not None:
            written = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in labels.items())
            lines.append(f"{PREFIX}_{full}{{{written}}} {value}")
    return [f"# HELP {PREFIX}_{name} {what}", f"# TYPE {PREFIX}_{name} {kind}", *lines] if lines else []


def _buckets(name: str, labels: Labels, histogram: Histogram) -> Iterator[tuple[str, Labels, float]]:
    counts, total = histogram.below(BOUNDS), histogram.count
    for bound, count in zip(BOUNDS, counts, strict=True):
        yield f"{name}_bucket", {**labels, "le": repr(bound)}, count
    yield f"{name}_bucket", {**labels, "le": "+Inf"}, total
    yield f"{name}_sum", labels, histogram.sum
    yield f"{name}_count", labels, total
