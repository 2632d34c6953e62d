"""How metrics, plans and traces show themselves: tables that fit, and nothing hostile in a notebook."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys
import unicodedata
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncio_operator import Budget, Latency, OperatorStatistics
from asyncio_operator.figures import rows_of_figures
from asyncio_operator.quota.spec import BudgetStatistics, UnitStatistics
from asyncio_operator.spark import EnrichmentPlan, EnrichmentStatistics
from asyncio_operator.trace import Trace
from asyncio_operator.view.progress import Bar, Moment, Text, Watch, display_here
from asyncio_operator.view.tables import WIDTH, html_table, text_table

HOSTILE = "<img src=x onerror='bad()'><script>bad()</script>"

TEXTS = st.text(max_size=20) | st.just("wide " * 40) | st.just("<b>&\n")


def statistics(**figures: Any) -> EnrichmentStatistics:
    latency = Latency(0.01, 0.02, 0.3, 1.2)
    return EnrichmentStatistics(rows=1_234_567, found=1_000_000, calls=5_000, attempt_latency=latency, **figures)


def plan(**figures: Any) -> EnrichmentPlan:
    return EnrichmentPlan(
        rows=10, null_keys=0, distinct_keys=5, lookups=5, calls=5, cached_lookups=4, cached_calls=3, tasks=1,
        tasks_at_once=1, sampled_rows=10, **figures
    )  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: dict[str, str | None] = {}
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(max_examples=30)
@given(head=st.lists(TEXTS, min_size=1, max_size=8), names=st.lists(TEXTS, min_size=1, max_size=4), cell=TEXTS)
def test_V3_a_table_fits_100_columns_whatever_is_in_it(head: list[str], names: list[str], cell: str) -> None:
    rows = [(name, [cell] * len(head)) for name in names]
    assert all(len(line) <= WIDTH for line in text_table(head, rows).split("\n"))
    assert Tags(html_table(head, rows, cell)).found <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_V3_wide_letters_take_two_columns_and_no_text_commands_a_terminal() -> None:
    table = text_table(["日本語" * 40, "\x1b[2Jred\x07"], [("価格" * 40, ["1", "a\ud800\u202eb"]), ("b", ["2", "価"])])
    lines = table.split("\n")
    takes = [sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line) for line in lines]
    assert max(takes) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert "?[2Jred?" in table
    assert lines[-1].rstrip().endswith("価")
    assert takes[-1] == takes[-2] == takes[-3]
    table.encode()


def test_V3_figures_that_are_0_everywhere_are_left_out_and_errors_have_their_kinds() -> None:
    rows = dict(rows_of_figures([statistics(errors={"OSError": 2}), statistics(retries=3)]))
    assert rows["errors: OSError"] == ["2", "0"]
    assert rows["retries"] == ["0", "3"]
    assert rows["failed"] == ["0", "0"]
    assert "keys shared" not in rows
    assert rows["call p99, ms"] == ["300.00", "300.00"]


def test_V3_in_a_notebook_statistics_and_plans_are_tables_without_hostile_markup() -> None:
    shown = Tags(statistics(errors={HOSTILE: 2})._repr_html_())
    assert HOSTILE in shown.text
    assert not shown.found & {"img", "script"}
    budget = Budget("b", spend={"usd": 1.0})
    weights = {"calls": 5.0, "usd": 7.0, HOSTILE: 2.0}
    shown = Tags(plan(weights=weights, cached_weights=weights, budget=budget)._repr_html_())
    assert "Estimated 7 usd exceeds the limit of 1 usd" in shown.text
    assert HOSTILE in shown.text
    assert not shown.found & {"img", "script"}


def test_V3_the_statistics_of_operators_and_budgets_are_tables_too() -> None:
    shown = Tags(OperatorStatistics(admitted=12_345, latency=Latency(0.5, 0.5, 0.5, 1.0))._repr_html_())
    assert "12,345" in shown.text
    assert "p50 500.00 ms" in shown.text
    units = {HOSTILE: UnitStatistics(allowed=600.0, used=12.0, reserved=0.0, refused=3)}
    shown = Tags(BudgetStatistics(units, workers=1, paused_for=0.0)._repr_html_())
    assert HOSTILE in shown.text
    assert "1 worker." in shown.text
    assert not shown.found & {"img", "script"}


def test_V3_a_budget_prints_what_is_used_and_what_its_source_says(capsys: pytest.CaptureFixture[str]) -> None:
    units = {
        "calls": UnitStatistics(600.0, 12.0, 0.5, 3, {"limit": 600.0, "reset_after": 2.04}),
        "tokens": UnitStatistics(2_000_000.0, 1_234_567.0, 0.0, 0),
    }
    BudgetStatistics(units, workers=3, paused_for=1.26).show()
    assert capsys.readouterr().out.splitlines() == [
        "          allowed       used  reserved  refused  source's limit  reset after",
        "calls         600         12       0.5        3             600        2.0 s",
        "tokens  2,000,000  1,234,567         0        0",
        "3 workers. No call starts for 1.3 s, because the source asked for it.",
    ]
    BudgetStatistics({"t" * 64: units["calls"]}, workers=1, paused_for=0.0).show()
    assert all(len(line) <= WIDTH for line in capsys.readouterr().out.splitlines())


def test_V3_a_plan_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    weights = {"calls": 5.0, "keys": 5.0, "t" * 64: 7.0}
    made = plan(weights=weights, cached_weights=weights, budget=Budget("b", spend={"t" * 64: 1.0}), latency=1.0)
    made.show()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "10 rows in 1 task, 1 at once: 0 without a key, 5 distinct keys", lines[1], lines[2]
    ]  # fmt: skip
    assert all(len(line) <= 100 for line in lines)


def test_V3_a_trace_is_a_page_in_a_frame_that_cannot_touch_the_notebook() -> None:
    trace = Trace()
    assert trace._repr_html_() == "<p>The trace is empty.</p>"
    trace.started(0.0)
    trace.admitted(0.0, 0, HOSTILE)
    trace.record("completed", 1.0, 0, "result")
    trace.record("ended", 1.0)
    shown = Tags(trace._repr_html_())
    assert shown.found == {"iframe"}
    assert shown.attributes["sandbox"] == "allow-scripts"
    assert (shown.attributes["srcdoc"] or "").startswith("<!doctype html>")


# -- progress


def moment(rows: int = 5, **figures: Any) -> Moment:
    return Moment(12.4, (3, 8), EnrichmentStatistics(rows=rows, found=rows, **figures), 1234.5)


def test_V3_in_a_terminal_one_line_moves_and_is_never_wider() -> None:
    out, wide = io.StringIO(), [60]
    line = Text(out, lambda: wide[0])
    line.show(moment(5, in_flight=7, failures=2))
    line.show(moment(6))
    wide[0] = 20
    line.show(moment(7))
    line.close()
    first, second, third = out.getvalue().split("\r")[1:]
    assert first.rstrip() == "12 s, 3 of 8 tasks: 5 rows, 1,234 a second, 7 calls in fligh"[:59]
    assert second.rstrip() == "12 s, 3 of 8 tasks: 6 rows, 1,234 a second, 0 calls in fligh"[:59]
    assert third == "12 s, 3 of 8 tasks:\n"


def test_V3_a_terminal_that_has_shown_nothing_is_left_alone() -> None:
    out = io.StringIO()
    Text(out, lambda: 80).close()
    assert out.getvalue() == ""


def test_V3_a_terminal_that_is_closed_meanwhile_ends_no_job() -> None:
    terminal, program = pty.openpty()
    with open(program, "w") as out:
        watch = Watch(3600.0, EnrichmentStatistics, lambda: (1, 2), Text(out, lambda: 80))
        watch._look()
        os.close(terminal)
        watch.stop()
        with contextlib.suppress(OSError):  # What is left in the buffer.
            out.close()


@pytest.mark.parametrize("closed", [True, False])
def test_V3_progress_needs_no_standard_error(
    closed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    out.close()
    monkeypatch.setattr(sys, "stderr", out if closed else None)
    watch = Watch(3600.0, statistics, lambda: (1, 2), display_here())
    watch._shown = 0
    watch._look()
    watch.stop()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("rows", [40, 0])
def test_V3_in_a_file_a_job_shorter_than_a_pause_has_one_line_at_its_end(rows: int) -> None:
    out, figures = io.StringIO(), [EnrichmentStatistics()]
    watch = Watch(3600.0, lambda: figures[0], lambda: (0, 0), Text(out))
    figures[0] = EnrichmentStatistics(rows=rows)
    watch.stop()
    [line] = out.getvalue().splitlines()
    assert line.startswith(f"0 s: {rows} rows")


class Notebook(SimpleNamespace):
    """What the bar uses of `IPython.display`."""

    def HTML(self, text: str) -> str:
        return text

    def display(self, content: str, display_id: bool) -> Notebook:
        assert display_id
        self.shown = [content]
        return self

    def update(self, content: str) -> None:
        self.shown.append(content)


def test_V3_in_a_notebook_a_bar_moves() -> None:
    notebook = Notebook()
    bar = Bar(notebook)
    bar.show(moment(5))
    bar.show(moment(6))
    bar.close()
    first, second = notebook.shown
    assert '<progress value="3" max="8">' in first
    assert "6 rows" in second


def test_V3_what_spark_raises_disturbs_nothing_and_the_last_moment_is_shown() -> None:
    out, asked = io.StringIO(), [0]

    def tasks() -> tuple[int, int]:
        asked[0] += 1
        if asked[0] == 1:
            raise OSError("Spark is being stopped")
        return 4, 4

    figures = [EnrichmentStatistics()]
    watch = Watch(3600.0, lambda: figures[0], tasks, Text(out, lambda: 80))
    figures[0] = EnrichmentStatistics(rows=40)
    watch._look()
    assert out.getvalue() == ""
    watch.stop()
    assert "4 of 4 tasks: 40 rows" in out.getvalue()
    assert out.getvalue().endswith("\n")
