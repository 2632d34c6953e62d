"""The table of options in docs/udf.md is that of `async_udf`."""

from __future__ import annotations

import inspect
import re

from asyncio_operator.spark import async_udf
from tests.pages import DOCS

TEXT = (DOCS / "udf.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_in_its_order() -> None:
    table = TEXT.partition("| option | default | |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    parameters = [*inspect.signature(async_udf).parameters][1:-1]
    assert re.findall(r"`(\w+)`", " ".join(rows)) == parameters
