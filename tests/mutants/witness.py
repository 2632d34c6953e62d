"""A plugin for pytest that reports from inside of a run of tests: what failed first, and what was imported.

It writes lines of JSON into the file that `REPORT` names. `TREE` is where the package has to be imported from, `MODULE`
the module with the bug.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest

REPORT, TREE, MODULE = "MUTANTS_REPORT", "MUTANTS_TREE", "MUTANTS_MODULE"


def _report(**facts: Any) -> None:
    with Path(os.environ[REPORT]).open("a") as file:
        file.write(json.dumps(facts) + "\n")


def _is_inside(module: Any) -> bool:
    return Path(module.__file__ or "").is_relative_to(os.environ[TREE])


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    import asyncio_operator

    if not _is_inside(asyncio_operator):
        raise pytest.UsageError(f"the tests import {asyncio_operator.__file__}, which is not in {os.environ[TREE]}")
    # A failing example is enough: to make it small takes longer than all other tests.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", hypothesis.settings.get_profile("default"), phases=phases)
    hypothesis.settings.load_profile("mutants")


def pytest_runtest_logstart(nodeid: str) -> None:
    _report(begun=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _report(failed=report.nodeid, why=_last_line(report.longrepr))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _report(failed=report.nodeid, why=_last_line(report.longrepr))


def pytest_sessionfinish() -> None:
    module = sys.modules.get(os.environ.get(MODULE, ""))
    _report(imported=module is not None and _is_inside(module))


def _last_line(longrepr: Any) -> str:
    crash = getattr(longrepr, "reprcrash", None)
    text = str(longrepr) if crash is None else str(crash.message)
    return text.strip().splitlines()[0 if crash is not None else -1][:200] if text.strip() else ""
