"""A real browser for tests of pages: a headless Chromium, driven by its own protocol (DevTools), gone with its files.

The program is the ``chromium`` or ``google-chrome`` on PATH. Without it, tests that need it are skipped. It reaches
nothing but what its pages ask for.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import aiohttp
import psutil
import pytest

from tests.servers import Server

BINARY = shutil.which("chromium") or shutil.which("google-chrome")

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--remote-debugging-port=0",
)


class Browser(Server):
    """A Chromium with a profile of its own."""

    def __init__(self) -> None:
        super().__init__("chromium-")
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._runner.run(self._connect())
        except BaseException:
            self.close()
            raise
        return self

    def tab(self, *, width: int, scheme: str) -> Tab:
        """A page of this width that prefers the colour scheme ``light`` or ``dark``."""
        created = self.call("Target.createTarget", url="about:blank")
        attached = self.call("Target.attachToTarget", targetId=created["targetId"], flatten=True)
        tab = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Page.setLifecycleEventsEnabled", enabled=True)
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return tab

    def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """The result of a method of the protocol."""
        return self._runner.run(asyncio.wait_for(self._call(method, session, parameters), 30))

    def close(self) -> None:
        if hasattr(self, "_http"):
            if hasattr(self, "_socket"):
                self._runner.run(self._socket.close())
            self._runner.run(self._http.close())
        self._runner.close()
        super().close()

    def wait_for(self, session: str, method: str, wanted: dict[str, Any]) -> None:
        """Wait until the browser has reported an event with these parameters."""

        async def receive() -> None:
            while not any(wanted.items() <= one.items() for one in self.events(session, method)):
                self._events.append(await self._socket.receive_json())

        self._runner.run(asyncio.wait_for(receive(), 30))

    async def _connect(self) -> None:
        self._events: list[Any] = []
        self._numbers = itertools.count(1)
        self._http = aiohttp.ClientSession()
        port, path = self._active.read_text().split()
        self._socket = await self._http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0)

    async def _call(self, method: str, session: str | None, parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_str(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            received = await self._socket.receive_json()
            if received.get("id") != number:
                self._events.append(received)
                continue
            assert "error" not in received, received["error"]
            return received["result"]

    def events(self, session: str, *methods: str) -> list[Any]:
        """Events of a page so far."""
        return [one["params"] for one in self._events if one.get("sessionId") == session and one["method"] in methods]

    @property
    def _active(self) -> Path:
        return self.directory / "profile" / "DevToolsActivePort"

    def _command(self) -> list[str]:
        assert BINARY is not None
        return [BINARY, *OPTIONS, f"--user-data-dir={self.directory / 'profile'}", "about:blank"]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        psutil.wait_procs(self._signal_all(signal.SIGKILL)[1:], 30)

    def _is_ready(self) -> bool:
        return self._active.exists() and len(self._active.read_text().split()) == 2


class Tab:
    """One page. Elements are found by selectors of CSS, or by the text that they contain."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; of a promise, what it becomes."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def open(self, url: str) -> None:
        """Load a page, all of it."""
        loader = self.call("Page.navigate", url=url)["loaderId"]
        # Only then is the page that scripts run in surely this one.
        self._browser.wait_for(self._session, "Page.lifecycleEvent", {"loaderId": loader, "name": "load"})

    def wait_for(self, condition: str) -> None:
        """Wait until a condition of JavaScript holds."""
        self.evaluate(
            f"new Promise(done => {{ const look = () => ({condition}) ? done() : setTimeout(look, 5); look() }})"
        )

    def texts(self, selector: str) -> list[str]:
        """The texts of elements, as they are seen."""
        found: list[str] = self.evaluate(f"{_all(selector)}.map(one => one.innerText ?? one.textContent)")
        return found

    def click(self, selector: str, number: int = 0, text: str = "") -> None:
        """Click on one of the elements that contain the text."""
        self.evaluate(f"{_all(selector)}.filter(one => one.innerText.includes({json.dumps(text)}))[{number}].click()")

    @property
    def said(self) -> list[Any]:
        """What was written to the console, and the errors of scripts."""
        return self._browser.events(self._session, "Runtime.consoleAPICalled", "Runtime.exceptionThrown")

    @property
    def loaded(self) -> list[str]:
        """The URLs that the page has asked for."""
        return [one["request"]["url"] for one in self._browser.events(self._session, "Network.requestWillBeSent")]


def _all(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})]"


def needs_chromium() -> None:
    """Skip the test where there is no Chromium."""
    if BINARY is None:
        pytest.skip("chromium is not installed (Debian's package chromium)")
