"""The options in docs/sql.md are those of `async_udf`: what differs from the operator in a table, the others named."""

from __future__ import annotations

import inspect
import re

from asyncio_operator import AsyncWaitOperator
from asyncio_operator.spark import async_udf
from tests.pages import DOCS

TEXT = (DOCS / "sql.md").read_text(encoding="utf-8")


def test_every_option_is_named_once_and_only_those_of_the_operator_without_a_meaning() -> None:
    names, rest = re.split(
        r"are\s+those\s+of\s+the\s+\[operator\]", TEXT.partition("### Options of a column function\n")[2], maxsplit=1
    )
    table = rest.partition("| option | default | |")[2].partition("\n\n")[0]
    shared, own = re.findall(r"`(\w+)`", names), re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    parameters = [*inspect.signature(async_udf).parameters][1:-1]
    assert sorted([*shared, *own]) == sorted(parameters)
    assert {*shared} <= inspect.signature(AsyncWaitOperator).parameters.keys()
