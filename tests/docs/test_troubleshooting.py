"""The messages of docs/troubleshooting.md are messages of the source, as it stands."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.pages import DOCS

ROOT = DOCS.parent
GAP = "…"
"""What the page writes for a value, and what values become here in the messages of the source."""

MESSAGES = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def texts_of(tree: ast.Module) -> Iterator[str]:
    """The texts of a module that are not its documentation, with a gap for every value in them."""
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in documentation:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(?:\.\d)?[sdrf]", GAP, node.value)


@functools.cache
def texts_of_the_source() -> tuple[str, ...]:
    files = [*(ROOT / "asyncio_operator").rglob("*.py"), *(ROOT / "enrichers").rglob("*.py")]
    return tuple(text for file in files for text in texts_of(ast.parse(file.read_text(encoding="utf-8"))))


def is_in_the_source(message: str) -> bool:
    """Whether some text of the source has the words of a message, in their order, with values between them."""
    words = f"{GAP}.*".join(map(re.escape, message.strip(GAP).split(GAP)))
    return any(re.search(words, text, re.DOTALL) for text in texts_of_the_source())


def test_there_are_the_most_likely_messages() -> None:
    assert len(MESSAGES) >= 25
    assert len(set(MESSAGES)) == len(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_of_the_page_is_one_of_the_source(message: str) -> None:
    assert is_in_the_source(message), "reword the heading as the source has it"


@pytest.mark.parametrize("message", ["the service wants more requests", f"on has {GAP} columns and rows"])
def test_what_no_message_says_is_not_found(message: str) -> None:
    assert not is_in_the_source(message)
