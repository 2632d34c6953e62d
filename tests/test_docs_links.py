"""Links in the README and in docs lead somewhere: to a file of the repository, and to a heading in it; paths too."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "asyncio_operator"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_path_that_the_page_of_the_architecture_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 80
    paths = re.findall(r"`([\w/]+(?:\.(?:py|html)|/))`", page)
    assert len(paths) > 80
    roots = [
        ROOT if path.startswith(("asyncio_operator/", "enrichers/", "proof/", "tests/")) else CORE for path in paths
    ]
    assert [path for root, path in zip(roots, paths, strict=True) if not (root / path).exists()] == []


def test_every_test_that_a_page_or_a_command_of_make_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [targets] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    # A line with $(MAKE) runs in a dry run too; that of check has only the commands of others.
    dry = [target for target in targets.split() if target != "check"]
    commands = subprocess.check_output(["make", "--dry-run", *dry], cwd=ROOT, text=True)
    texts = {page.name: re.findall(r"`(tests/[\w/]+\.py)`", page.read_text(encoding="utf-8")) for page in PAGES}
    texts["Makefile"] = re.findall(r"(?<=[ ./])(?:tests|tools|proof)/[\w./-]+", commands)
    assert len(texts["Makefile"]) > 30
    assert {(name, path) for name, paths in texts.items() for path in paths if not (ROOT / path).exists()} == set()
