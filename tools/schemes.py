"""Lets pictures of matplotlib follow the reader's choice of a light or a dark page, as the diagrams do.

    python -m tools.schemes docs/pictures/ordering.svg ...

The colours stay as they were drawn on a light page. For a dark one a style replaces those that would not be seen there.
"""

from __future__ import annotations

import sys
from pathlib import Path

DARK = {
    "#ffffff": "#1e2129",
    "#000000": "#b0b8c1",
    "#101418": "#e4e7eb",
    "#3d4650": "#e4e7eb",
    "#66707a": "#b0b8c1",
    "#e4e7eb": "#343b47",
    "#c9ced6": "#66707a",
    "#c0392b": "#ea7384",
    "#c8324a": "#ea7384",
    "#6a3d9a": "#b794e0",
    "#8a1c7c": "#d97fcb",
    "#f6cfd3": "#4d2229",
    "#fbe8c9": "#47331a",
}
"""Colours on a light page, and what replaces them on a dark one. Bars of calls keep theirs, which pages name."""

BEGIN, END = "/* on a dark page */", "/* end */"


def style() -> str:
    """Rules that have the last word over the colours in the attributes of a picture."""
    rules = ["svg { background: #1e2129 }", 'g[id^="text_"] { fill: #e4e7eb }']
    rules.append('g[id^="text_"] [style*="fill: #1f77b4"] { fill: #58a6dc !important }')
    rules += [
        f'[style*="{what}: {light}"], [{what}="{light}"] {{ {what}: {dark} !important }}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    return f"{BEGIN} @media (prefers-color-scheme: dark) {{ {' '.join(rules)} }} {END}"


def follow(path: Path) -> None:
    """Add the style to a picture, if it is an SVG. One that is there already is replaced."""
    if path.suffix != ".svg":
        return
    text = path.read_text(encoding="utf-8")
    if BEGIN in text:
        text = text.partition(BEGIN)[0] + text.partition(END)[2]
    head, closing, rest = text.partition("</style>")
    path.write_text(head + style() + closing + rest, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        follow(Path(name))
