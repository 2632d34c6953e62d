"""Importing is quiet and cheap: no warning, nothing of others, nothing started. `make release-check` tells how long."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.test_layers import PACKAGES, ROOT, module_of, sources_of_the_project

OWN = tuple(PACKAGES)

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
    # mmh3, where it is installed, is one compiled module that imports nothing.
    assert set(loaded.split()) <= {*OWN, "mmh3"}


ALONE = """
import gc, importlib, sys, traceback

import {of_others}

gc.disable()
modules = {modules}

def here():
    # The modules of this library that are imported, and what packages have: they keep what was imported below.
    own = {{name: module for name, module in sys.modules.items() if name.startswith({own})}}
    return {{name: set(vars(module)) if hasattr(module, "__path__") else set() for name, module in own.items()}}

def forget_all_but(before):
    for name in here().keys() - before.keys():
        del sys.modules[name]
    for name, names in before.items():
        for new in vars(sys.modules[name]).keys() - names if names else ():
            delattr(sys.modules[name], new)

def those_below(name):
    for below in modules:
        # What the package itself imports cannot be imported in any other way.
        if below.rpartition(".")[0] == name and below in sys.modules:
            those_below(below)
        elif below.rpartition(".")[0] == name:
            before = here()
            try:
                importlib.import_module(below)
            except BaseException:
                traceback.print_exc()
                print(below)
            else:
                those_below(below)
            forget_all_but(before)

those_below("")
print(len(modules))
"""


def test_every_module_can_be_imported_alone_and_without_a_warning() -> None:
    """Each with its package, and nothing else of this library that it could lean on: what was imported is forgotten."""
    modules = sorted(map(module_of, sources_of_the_project()))
    assert len(modules) > 100
    assert printed(ALONE.format(of_others=", ".join(OF_OTHERS), modules=modules, own=OWN)) == str(len(modules))


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
        ("pyarrow", "import asyncio_operator.testing as t; t.FakeEnricher({})", "FakeEnricher needs pyarrow"),
        ("pyarrow", "from enrichers import FunctionEnricher", "FunctionEnricher needs pyarrow"),
        ("pyarrow", "from enrichers import PostgresEnricher", "PostgresEnricher needs pyarrow"),
        ("asyncpg", "from enrichers import PostgresEnricher", "PostgresEnricher needs asyncpg"),
        ("asyncpg", "from enrichers.postgres import PostgresEnricher", "PostgresEnricher needs asyncpg"),
        ("asyncpg", "from enrichers import *", "PostgresEnricher needs asyncpg"),
        ("redis", "from enrichers import *", "RedisEnricher needs redis"),
        (
            "asyncio_operator_proof",
            "from asyncio_operator.testing import Simulation",
            "Simulation needs asyncio_operator_proof",
        ),
        ("sqlalchemy", "from enrichers import SqlEnricher", "SqlEnricher needs sqlalchemy[asyncio]"),
        ("greenlet", "from enrichers import SqlEnricher", "SqlEnricher needs sqlalchemy[asyncio]"),
    ],
)
def test_X4_what_a_name_needs_is_told_with_the_python_that_lacks_it(library: str, statement: str, told: str) -> None:
    message = printed(WITHOUT.format(library=library, statement=statement))
    assert message.startswith(f"ConfigurationError {told}, which is not installed in {sys.executable}: pip install '")
    assert (FOR_ALL in message) is ("import *" in statement)
