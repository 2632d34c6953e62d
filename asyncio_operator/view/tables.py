"""Small tables for a terminal, at most 100 columns wide, and for a notebook, where all text is escaped."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

WIDTH = 100  # Columns of a terminal that a table fits.

Row = tuple[str, Sequence[str]]
"""The name of a row, and its cells."""

STYLE = "text-align:right;padding:2px 12px"


def text_table(head: Sequence[str], rows: Sequence[Row], width: int = WIDTH) -> str:
    """A table as lines of at most `width` characters. Columns that do not fit follow below, with the names again.
    `head` has the titles of the columns, without that of the names."""
    names = ["", *(name for name, _ in rows)]
    left = min(max(_size(printable(name)) for name in names), width // 2)
    columns = [_cut([title, *(cells[i] for _, cells in rows)], width - left - 2) for i, title in enumerate(head)]
    blocks: list[list[tuple[list[str], int]]] = [[]]  # Each column with its width.
    room = width - left
    for column in columns:
        wide = 2 + max(map(_size, column))
        room -= wide
        if room < 0 and blocks[-1]:
            blocks.append([])
            room = width - left - wide
        blocks[-1].append((column, wide))
    names = _cut(names, left)
    left = max(map(_size, names))
    shown = []
    for block in blocks:
        lines = (
            name
            + " " * (left - _size(name))
            + "".join(" " * (wide - _size(column[i])) + column[i] for column, wide in block)
            for i, name in enumerate(names)
        )
        shown.append("\n".join(line.rstrip() for line in lines if line.strip()))
    return "\n\n".join(shown)


def _cut(texts: list[str], width: int) -> list[str]:
    cut = []
    for text in map(printable, texts):
        sizes = list(accumulate(map(_size, text)))
        cut.append(text if _size(text) <= width else text[: sum(size <= width - 3 for size in sizes)] + "...")
    return cut


def printable(text: str) -> str:
    """A text as one line. What would move the cursor or change colours of a terminal becomes a question mark."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join([one if one.isprintable() else "?" for one in line])


def _size(text: str) -> int:
    """Columns of a terminal that a text takes at most. Letters of Chinese, Japanese and Korean take two."""
    return len(text) if text.isascii() else len(text) + sum(unicodedata.east_asian_width(one) in "WF" for one in text)


def amount(value: float) -> str:
    """A number of units, such as tokens or money: 6 digits, and all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100_000 else f"{value:,.6g}"


def html_table(head: Sequence[str], rows: Sequence[Row], caption: str = "") -> str:
    """The same for a notebook. No text becomes markup."""
    titles = "".join(f'<th scope="col" style="{STYLE}">{html.escape(title)}</th>' for title in head)
    lines = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
        + "".join(f'<td style="{STYLE}">{html.escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    above = f'<caption style="text-align:left">{html.escape(caption)}</caption>' if caption else ""
    header = f"<thead><tr><td></td>{titles}</tr></thead>" if any(head) else ""
    return f"<table>{above}{header}<tbody>{lines}</tbody></table>"
