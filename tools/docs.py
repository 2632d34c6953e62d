"""Builds the documentation site: `python tools/docs.py`, which `make docs` runs, makes site/ of docs/ and mkdocs.yml.

Pages in docs/ link to files beside docs/ (examples, tests, the README), for who reads them in the repository. A site
has only what is in it. So the pages are copied to build/docs first, with such links led to pages that are made of the
files: the README and the changes as they are, any other file as a block of code, a folder as a list of its programs.

Zensical then builds the site, and refuses a page, or a heading, that is not there. At last every address in every
page that was built is looked up: what a browser would ask for has to be in the site, and nothing may be fetched from
elsewhere. What is wrong is printed, and is the exit status.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from textwrap import indent
from urllib.parse import unquote, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent

PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that are not in docs/, and where they are in the site."""

FOLDERS = ("examples",)
"""Folders that have a page in the menu, whether a page links to them or not."""

LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[#)])")
"""The path of a link to a file, as Markdown writes it."""

TAB = re.compile(
    r'^<details class="tab" markdown="1"><summary>(.*?)</summary>\n(.*?)^</details>\n', re.DOTALL | re.MULTILINE
)
"""A note that is a tab in the site, beside its neighbours. The repository shows it folded: it has no tabs."""

FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
"""Elements for which a browser fetches something without being asked, and the attribute that says what."""


def page_of(file: str) -> str:
    """Where a file of the repository is in the site."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return PAGES.get(file, f"source/{file}.md")


def staged(file: str, linked: set[str]) -> str:
    """A page with its links led to where their targets are in the site; what it links to is added to `linked`."""

    def lead(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(file).parent / match[1])
        if not (ROOT / target).exists():
            return match[1]  # for Zensical to refuse
        linked.add(target)
        return os.path.relpath(page_of(target), PurePosixPath(page_of(file)).parent)

    text = LINK.sub(lead, (ROOT / file).read_text(encoding="utf-8"))
    return TAB.sub(lambda note: f'=== "{note[1]}"\n{indent(note[2], "    ")}', text)


def source_page(file: str) -> str:
    """A page that shows a file, or lists the programs of a folder."""
    path = ROOT / file
    if path.is_file():
        kind = {".py": "python", ".toml": "toml"}.get(path.suffix, "text")
        return f"# {path.name}\n\n`{file}`\n\n````{kind}\n{path.read_text(encoding='utf-8')}````\n"
    lines = [f"| [{name}]({path.name}/{name}.md) | {first} |" for name, first in programs(path)]
    return "\n".join([f"# {path.name.capitalize()}", "", "| program | what it is |", "| --- | --- |", *lines, ""])


def programs(folder: Path) -> Iterator[tuple[str, str]]:
    """The modules of a folder, with the first line that each says of itself."""
    for module in sorted(folder.glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
        yield module.name, docstring.partition("\n")[0]


def stage(pages: Path) -> None:
    """Copy the pages, and make those that they link to."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    texts = [*PAGES, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    linked = set(FOLDERS)
    for text in texts:
        (pages / page_of(text)).write_text(staged(text, linked), encoding="utf-8")
    for folder in [ROOT / file for file in linked if (ROOT / file).is_dir()]:
        linked |= {(folder / name).relative_to(ROOT).as_posix() for name, _ in programs(folder)}
    for file in sorted(linked.difference(texts)):
        if not file.startswith("docs/"):
            page = pages / page_of(file)
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(source_page(file), encoding="utf-8")


def build(work: Path) -> Path:
    """Build the site in a folder, and say where; ends the program if Zensical finds fault with it."""
    stage(work / "pages")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config["docs_dir"] = "pages"
    for plugin in config["plugins"]:
        if isinstance(plugin, dict) and "mkdocstrings" in plugin:
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    (work / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "mkdocs.yml"]
    if subprocess.run(command, cwd=work, check=False).returncode:
        sys.exit("Zensical finds fault with the pages, see above.")
    site = work / str(config["site_dir"])
    # What the search reads of a site that is opened from a disk, where a page may not read JSON.
    index = (site / "search.json").read_text(encoding="utf-8")
    (site / "search.js").write_text(f"var __index = {index}", encoding="utf-8")
    return site


class Built(HTMLParser):
    """What a page that was built has: its anchors, the addresses of its links, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        address = given.get(FETCHED.get(tag, "href"))
        if address is None or (tag == "link" and given.get("rel") == "canonical"):
            return
        (self.fetched if tag in FETCHED else self.links).append(address)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the addresses in a site, each with its page."""
    pages = {path: Built(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for address in [*page.fetched, *page.links]:
            target = urlsplit(address)
            if target.scheme or target.netloc:
                if address in page.fetched and target.scheme != "data":
                    yield f"{path.relative_to(site)} fetches {address}"
                continue
            base = site if target.path.startswith("/") else path.parent
            leads_to = (base / unquote(target.path).lstrip("/")).resolve() if target.path else path
            leads_to = leads_to / "index.html" if leads_to.is_dir() else leads_to
            if not leads_to.exists():
                yield f"{path.relative_to(site)} links to {address}, which is not there"
            elif target.fragment and leads_to in pages and unquote(target.fragment) not in pages[leads_to].anchors:
                yield f"{path.relative_to(site)} links to {address}: there is no such heading"


def main() -> int:
    """Build and check; the exit status."""
    site = ROOT / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(build(ROOT / "build" / "docs"), site)
    found = list(faults(site))
    print("\n".join(found) or f"The site is in {site}: open {site / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
