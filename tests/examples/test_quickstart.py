"""The notebook runs from its first cell to its last, and shows what is stored in it."""

from __future__ import annotations

from typing import Any

import pytest

from tools.notebook import read, run


def shown(notebook: dict[str, Any]) -> list[list[tuple[str, list[str]]]]:
    """The kinds of outputs of each cell with code."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[(one["output_type"], [*one.get("data", ())]) for one in cell["outputs"]] for cell in cells]


def printed(notebook: dict[str, Any], head: str) -> str:
    [text] = [text for cell in notebook["cells"] for one in cell.get("outputs", ())
              if head in (text := "".join(one.get("text", ())))]  # fmt: skip
    return text


def test_every_cell_has_the_outputs_of_a_run_in_the_order_of_the_cells() -> None:
    notebook = read()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert [("execute_result", ["text/html", "text/plain"])] in shown(notebook)


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_it_runs_and_shows_what_is_stored_in_it() -> None:
    stored = read()
    again = run(stored)
    assert shown(again) == shown(stored)
    assert printed(again, "Green tea") == printed(stored, "Green tea")
    assert "ms, " in printed(again, "attempts")
