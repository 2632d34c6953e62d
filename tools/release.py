"""Checks the wheels and the sdists with twine and the recipes of conda with rattler-build, and prints figures of a
release. `make release-check` runs it.

The figures are their sizes, and what importing the library costs.
Both have environments of their own in build/: twine needs two dozen packages that nothing else here needs.

Times are those of whole processes, in turns with one that does nothing, so that a busy machine falls on both; the least
of each is taken. Nothing is asserted here: the target is 150 ms for an import. Names are
loaded on first use, so a star import tells what all of them cost.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TURNS = 15
IMPORTS = (
    "import asyncio_operator",
    "from asyncio_operator import *",
    "import enrichers",
    "from asyncio_operator.state import *",
    "from asyncio_operator.testing import FakeEnricher",
)


TWINE = "twine==7.0.0"
RATTLER = "py-rattler-build==0.73.0"

RENDER = """
import sys
from rattler_build import Stage0Recipe, VariantConfig
for path in sys.argv[1:]:
    [variant] = Stage0Recipe.from_file(path).render(VariantConfig())
    print(f"{path}: {variant}")
"""
"""Reads recipes as rattler-build does. To build them it needs a channel with Python."""


def python_with(package: str) -> str:
    """The Python of an environment in build/ that has this package, which is made if needed."""
    place = ROOT / "build" / package.partition("==")[0]
    python, stamp = str(place / "bin" / "python"), place / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != package:
        venv.create(place, clear=True, with_pip=True)
        options = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *options, package], check=True)
        stamp.write_text(package, encoding="utf-8")
    return python


def check(files: list[Path]) -> None:
    """Let twine read the metadata and render the description of what would be uploaded, and rattler-build read the
    recipes of conda; it ends the program if they are wrong."""
    subprocess.run([python_with(TWINE), "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    recipes = sorted((ROOT / "tools" / "conda").iterdir())
    subprocess.run([python_with(RATTLER), "-c", RENDER, *map(str, recipes)], check=True)


def seconds(statement: str) -> float:
    """How long a Python takes that runs a statement and ends."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], cwd=ROOT, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print them."""
    with tempfile.TemporaryDirectory() as directory:
        build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", directory]
        for source in (ROOT, ROOT / "proof"):
            subprocess.run(build, cwd=source, check=True, capture_output=True)
        files = sorted(Path(directory).iterdir())
        check(files)
        for path in files:
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
    statements = ["pass", *IMPORTS]
    turns = [[seconds(statement) for statement in statements] for _ in range(TURNS)]
    bare, *others = [min(column) for column in zip(*turns, strict=True)]
    print(f"Python {sys.version.split()[0]} that does nothing: {bare * 1000:.0f} ms")
    for statement, least in zip(statements[1:], others, strict=True):
        print(f"{statement}: {(least - bare) * 1000:.0f} ms more")


if __name__ == "__main__":
    main()
