"""docs/production.md on security: its programs run, its tests exist, and keys lead nowhere but into their place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from asyncio_operator import EnricherError
from asyncio_operator.testing import FakeRequest, FakeService
from enrichers import HttpEnricher
from tests.pages import DOCS, run_programs

ROOT = DOCS.parent


def test_the_programs_of_the_page_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN_SECRET", "")
    for section in ("Secrets", "Keys from outside"):
        run_programs("production.md", section)


def test_the_tests_that_the_page_names_exist() -> None:
    folder = Path()
    named = re.findall(r"`((?:tests/\S+/)?test_\w+\.py)`", (DOCS / "production.md").read_text(encoding="utf-8"))
    assert len(named) > 5
    for name in named:
        folder = Path(name).parent if "/" in name else folder
        assert (ROOT / folder / Path(name).name).is_file(), name


def keys(decoy: str) -> list[str]:
    """Those that would lead to another server, or to another path of the same, if they were not kept in their place."""
    host = decoy.removeprefix("http://")
    lead = [
        decoy,
        f"{decoy}/rows/x",
        f"//{host}/",
        f"/\\{host}/",
        f"\\\\{host}\\x",
        f"@{host}/",
        f":pw@{host}",
        f"x@{host}",
    ]
    wide = [f"\uff0f\uff0f{host}", f"\u2044\u2044{host}", "\uff0e\uff0e/admin", f"x\u2100{host}"]
    paths = [
        "../admin",
        "/../../admin",
        "..%2fadmin",
        "%2e%2e/admin",
        "..;/admin",
        "./admin",
        "\\..\\admin",
        "x/../../admin",
    ]
    marks = ["?admin=1", "x#y", "x?y#z", "&q=other", "x;admin", "%3fadmin", "%00", "\0", "%", "%zz"]
    lines = [
        f"x\r\nHost: {host}",
        f"x HTTP/1.1\r\nHost: {host}\r\n\r\nGET /admin",
        "x\ny",
        "x\u2028y",
        "x\u0085y",
        " ",
        "\t",
    ]
    return [
        *lead,
        *wide,
        *paths,
        *marks,
        *lines,
        "日本",
        "e\u0301",
        "\u202e",
        "😀",
        "file:///etc/passwd",
        "javascript:1",
    ]


@pytest.mark.parametrize(
    "place", ["/rows/{key}", "/rows/{key}/x", "/rows/v{key}", "/rows/?q={key}", "/rows/a?b={key}&c=1"]
)
async def test_a_key_leads_to_no_other_server_path_or_parameter(place: str) -> None:
    def echo(incoming: FakeRequest) -> Any:
        return {"target": incoming.target}

    async with FakeService(handler=echo) as decoy, FakeService(handler=echo) as service:
        enricher = HttpEnricher(service.url + place.replace("rows", "asked"), schema="target string", redirects="any")
        await enricher.open()
        try:
            for key in keys(decoy.url):
                row: Any = await enricher.lookup(key)
                before, after = place.replace("rows", "asked").split("{key}")
                assert row["target"].startswith(before)
                assert row["target"].endswith(after)
                written = row["target"][len(before) : len(row["target"]) - len(after)]
                assert re.fullmatch(r"(?:[\w.~-]|%[0-9A-F]{2})+", written, re.ASCII)
                assert unquote(written) == key
            asked = len(service.requests)
            for key in ("..", ".", ""):
                if place.startswith("/rows/{key}"):
                    with pytest.raises(EnricherError, match="cannot be sent"):
                        await enricher.lookup(key)
            assert len(service.requests) == asked
        finally:
            await enricher.close()
        assert decoy.requests == []
        assert asked == len(keys(decoy.url))
        assert all(request.headers["host"] == service.url.removeprefix("http://") for request in service.requests)
