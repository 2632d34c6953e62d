"""Importing is quiet and cheap: no warning, nothing of others, nothing started. `make release-check` tells how long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

OWN = ("asyncio_operator", "enrichers")

LIGHT = (
    "asyncio_operator",
    "asyncio_operator.lookup",
    "asyncio_operator.queues",
    "asyncio_operator.state",
    "asyncio_operator.testing",
    "asyncio_operator.timers",
    "asyncio_operator.trace",
    "asyncio_operator.watermarks",
    "enrichers",
)
"""What costs no more than this library, with any packages installed."""


OF_OTHERS = (
    *("aiohttp.web", "asyncio", "asyncpg", "matplotlib", "pandas", "pyarrow.compute", "pyarrow.dataset"),
    *("pyspark.sql.udf", "pyspark.sql.udtf", "redis.asyncio", "rocksdict", "sqlalchemy.ext.asyncio", "uvloop"),
)
"""What is imported once for all modules, for speed."""


def printed(program: str) -> str:
    """What a program prints in a Python that warns of nothing without failing."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize("module", LIGHT)
def test_an_import_loads_only_the_standard_library_starts_no_thread_and_sets_no_handler(module: str) -> None:
    program = (
        "import logging, signal, sys, threading\n"
        "def seen(): return threading.active_count(), [*logging.root.handlers], signal.getsignal(signal.SIGINT)\n"
        f"before, loaded = seen(), set(sys.modules); import {module}\n"
        "print(seen() == before, logging.getLogger('asyncio_operator').handlers)\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - loaded} - set(sys.stdlib_module_names))"
    )
    quiet, loaded = printed(program).splitlines()
    assert quiet == "True []"
    assert set(loaded.split()) <= set(OWN)


ALONE = """
import gc, importlib, os, sys, traceback, warnings

import {of_others}

gc.disable()
# Threads of libraries may run by now; nothing of theirs is used in a child.
warnings.filterwarnings("ignore", ".* multi-threaded", DeprecationWarning)
modules = {modules}

def in_a_fork(name):
    child = os.fork()
    if not child:
        try:
            importlib.import_module(name)
            those_below(name)
        except BaseException:
            traceback.print_exc()
            print(name)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

def those_below(name):
    for below in modules:
        if below.rpartition(".")[0] == name:
            # What the package itself imports cannot be imported in any other way.
            those_below(below) if below in sys.modules else in_a_fork(below)

those_below("")
"""


def test_every_module_can_be_imported_alone_and_without_a_warning() -> None:
    """Each in a fork of its package, so that it leans on nothing else of this library that is imported by then."""
    paths = [path.relative_to(ROOT) for package in OWN for path in (ROOT / package).rglob("*.py")]
    modules = sorted({".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths})
    assert len(modules) > 100
    assert printed(ALONE.format(of_others=", ".join(OF_OTHERS), modules=modules)) == ""


WITHOUT = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {library!r}:
            raise ModuleNotFoundError("no module", name={library!r})
sys.meta_path.insert(0, Without())
try:
    exec({statement!r})
except Exception as error:
    print(type(error).__name__, error)
"""

FOR_ALL = "`from enrichers import *` imports all enrichers"


@pytest.mark.parametrize(
    ("library", "statement", "told"),
    [
        ("pyarrow", "from asyncio_operator.enricher import as_schema", "as_schema needs pyarrow"),
        (
            "pyarrow",
            "import asyncio_operator.testing as t; t.FakeEnricher({})",
            "FakeEnricher needs pyarrow",
        ),
        ("pyarrow", "from enrichers import FunctionEnricher", "FunctionEnricher needs pyarrow"),
        ("pyarrow", "from enrichers import PostgresEnricher", "PostgresEnricher needs pyarrow"),
        ("asyncpg", "from enrichers import PostgresEnricher", "PostgresEnricher needs asyncpg"),
        ("asyncpg", "from enrichers.postgres import PostgresEnricher", "PostgresEnricher needs asyncpg"),
        ("asyncpg", "from enrichers import *", "PostgresEnricher needs asyncpg"),
        ("redis", "from enrichers import *", "RedisEnricher needs redis"),
        ("sqlalchemy", "from enrichers import SqlEnricher", "SqlEnricher needs sqlalchemy[asyncio]"),
        ("greenlet", "from enrichers import SqlEnricher", "SqlEnricher needs sqlalchemy[asyncio]"),
    ],
)
def test_X4_what_a_name_needs_is_told_with_the_python_that_lacks_it(library: str, statement: str, told: str) -> None:
    message = printed(WITHOUT.format(library=library, statement=statement))
    assert message.startswith(f"ConfigurationError {told}, which is not installed in {sys.executable}: pip install '")
    assert (FOR_ALL in message) is ("import *" in statement)
