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
"""What costs nobody more than this library, whatever is installed."""


OF_OTHERS = (
    *("aiohttp.web", "asyncio", "asyncpg", "matplotlib", "pandas", "pyarrow.compute", "pyarrow.dataset"),
    *("pyspark.sql.udf", "pyspark.sql.udtf", "redis.asyncio", "rocksdict", "uvloop"),
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


def test_every_module_can_be_imported_alone_and_without_a_warning() -> None:
    """Each in a fork of its own, so that none can lean on what another one of this library has imported."""
    paths = [path.relative_to(ROOT) for package in OWN for path in (ROOT / package).rglob("*.py")]
    modules = sorted({".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths})
    assert len(modules) > 100
    program = (
        "import importlib, os, sys, traceback, warnings\n"
        f"import {', '.join(OF_OTHERS)}\n"
        "# Threads of libraries may run by now; nothing of theirs is used in a child.\n"
        "warnings.filterwarnings('ignore', '.* multi-threaded', DeprecationWarning)\n"
        f"for name in {modules!r}:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        try:\n"
        "            importlib.import_module(name)\n"
        "        except BaseException:\n"
        "            traceback.print_exc()\n"
        "            print(name)\n"
        "        sys.stdout.flush()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    assert printed(program) == ""
