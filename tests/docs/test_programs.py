"""Every program of every page of docs/ is run by a test: here, or where a test of the page needs what it defines."""

from __future__ import annotations

import ast
import inspect
import platform
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncio_operator import Budget, RateLimit
from asyncio_operator.spark import enrich
from asyncio_operator.testing import FakeEnricher
from tests.pages import DOCS, programs_of, run_programs

RUNNERS = ("run_programs", "programs_of")


def sections_with_programs() -> Iterator[tuple[str, str]]:
    """Pages, and in them the sections that have programs; "" is what comes before the first one."""
    for path in sorted(DOCS.rglob("*.md")):
        for section in f"\n{path.read_text(encoding='utf-8')}".split("\n## "):
            if "```python" in section:
                yield path.relative_to(DOCS).as_posix(), section.partition("\n")[0]


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def texts_in(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def pages_in(tree: ast.Module) -> Iterator[set[str]]:
    """The pages and sections whose programs each call of a test runs: by name, by a parameter, or in a loop."""
    for test in ast.walk(tree):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call) and names_in(node) & {*RUNNERS}]
        parameters = {argument.arg for argument in test.args.args}
        for call in calls:
            given = texts_in(call)
            if names_in(call) & parameters:
                given |= {text for mark in test.decorator_list for text in texts_in(mark)}
            loops = [node for node in ast.walk(test) if isinstance(node, ast.For)]
            for loop in loops:
                if names_in(loop.target) & names_in(call):
                    given |= texts_in(loop.iter)
            yield given


def test_every_page_with_programs_is_run_by_a_test() -> None:
    modules = [path.read_text(encoding="utf-8") for path in (DOCS.parent / "tests").rglob("test_*.py")]
    runs = [
        given
        for module in modules
        if any(runner in module for runner in RUNNERS)
        for given in pages_in(ast.parse(module))
    ]
    sections: dict[str, set[str]] = {}
    for page, section in sections_with_programs():
        sections.setdefault(page, set()).add(section)
    assert len(sections) > 15
    for page, headings in sections.items():
        parts = [given & headings - {""} for given in runs if page in given]
        assert parts, page
        assert not all(parts) or headings == set().union(*parts), page


def test_a_page_that_no_test_runs_would_be_found() -> None:
    """Also one that a test only names."""
    module = """
def test_a():
    run_programs("run.md")

@pytest.mark.parametrize("page", ["parameter.md"])
def test_b(page):
    programs_of(page)

def test_c():
    read("named.md")
"""
    pages = {text for given in pages_in(ast.parse(module)) for text in given if text.endswith(".md")}
    assert pages == {"run.md", "parameter.md"}


def programs_shown_as_text(text: str) -> list[str]:
    """The blocks of a page that no test runs, although they are Python: what Python reads, and does something."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language in ("python", "sh", "sql"):
            continue
        with suppress(SyntaxError):
            if any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call) for node in ast.walk(ast.parse(block))):
                found.append(block)
    return found


def test_no_program_is_shown_as_text() -> None:
    assert [block for path in DOCS.rglob("*.md") for block in programs_shown_as_text(path.read_text("utf-8"))] == []


def test_the_programs_about_the_operator_run_and_keep_what_they_say() -> None:
    assert "until_found" in run_programs("operator.md")


@pytest.mark.spark
@pytest.mark.parametrize(
    "page",
    [
        "howto/rate-limits.md",
        "howto/as-of.md",
        "howto/cache.md",
        "howto/pay-once.md",
        "howto/keep-failures.md",
        "howto/models.md",
        "howto/send.md",
        "sql.md",
    ],
)
def test_the_programs_of_the_page_run(page: str, spark: SparkSession) -> None:
    """They hold their own results against what is said."""
    assert "assert " in "".join(programs_of(page))
    run_programs(page, spark=spark)


@pytest.mark.parametrize(
    ("page", "section", "files"),
    [
        ("state.md", None, []),
        ("timers.md", None, []),
        ("watch.md", "Traces", ["both.png", "run.html", "run.json", "run.svg"]),
    ],
)
def test_a_program_prints_what_its_comments_say(
    page: str,
    section: str | None,
    files: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in programs_of(page, section):
        exec(compile(program, page, "exec"), {})
        for line in capsys.readouterr().out.splitlines():
            assert f"# {line}" in program
    assert sorted(path.name for path in tmp_path.iterdir()) == files


@pytest.mark.spark
def test_the_program_of_the_first_page_runs(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1, 10), (2, 99)], "id int, customer_id int").coalesce(1)
    names = run_programs("index.md", orders=orders, customers=FakeEnricher({10: {"name": "Ada"}}))
    assert [tuple(row) for row in names["enriched"].collect()] == [(1, 10, "Ada"), (2, 99, None)]


@pytest.mark.spark
def test_the_program_about_platforms_says_what_a_worker_has(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    run_programs("production.md", "Platforms", spark=spark)
    printed = capsys.readouterr().out
    assert platform.python_version() in printed
    assert "reached" in printed
    assert spark.version in printed


@pytest.mark.spark
def test_the_program_about_limits_runs(spark: SparkSession) -> None:
    source = FakeEnricher({1: {"name": "Ada"}})
    orders = spark.range(3).toDF("id")
    names = {"enrich": enrich, "RateLimit": RateLimit, "Budget": Budget, "orders": orders, "source": source}
    run_programs("production.md", "Load on the source", **names)


@pytest.mark.spark
def test_the_tests_of_the_page_about_tests_pass(spark: SparkSession) -> None:
    names = run_programs("howto/test.md")
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == "".join(programs_of("howto/test.md")).count("def test_")
    for test in tests:
        test(**{name: {"spark": spark}[name] for name in inspect.signature(test).parameters})
