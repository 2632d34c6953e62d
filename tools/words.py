"""Finds words that this project avoids, in source and pages: `python tools/words.py`, which `make lint` runs.

Each of them makes a reader stop whose second language is English. It fails if there are some, and names file, line and
what to write in their place: of all files, or of those in the given places.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PLACES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"),
    *("asyncio_operator", "benchmarks", "docs", "enrichers", "examples", "tests", "tools"),
)
"""Files and folders of the repository that are read: its Python and its pages. Of the tests only the docstrings."""

PARTICIPLE = r"(?:\s+yet)?\s+(?:\w+ed|\w+en|begun|come|gone|had|kept|learnt|left|lost|made|met|read|run|sent)\b"

AVOIDED = {
    r"who(?:m)?ever": 'name the one who acts: "the caller", "a user who"',
    r"nobody": '"no one", or better the one who would act: "no task", "no caller"',
    r"he|his|him": '"it", "its", or the name of the thing; "they" for a person',
    r"so\s+many": 'the number: "at most `count`", "`count` rows"',
    r"(?:come|came|comes|coming)\s+by": '"got", "found", "computed"',
    r"(?:come|came|comes|coming)\s+of": '"follows from", "is caused by"',
    r"told": '"reported", "said", "given"',
    r"(?:fail|failed|fails)\s+of": '"fails with", "fails because of"',
    r"will\s+not\s+do": '"is invalid", "is not enough"',
    rf"(?:has|have)\s+not(?!{PARTICIPLE})": '"does not have", "lacks"',
    r"(?:stands?|stood|standing)\s+(?:for|in)": '"means", "is in", "replaces"',
    r"what\s+(?:is|was)\s+there": 'the thing: "the table", "what exists"',
}
"""Expressions for whole words, in any case, each with what to write in its place."""

WORDS = re.compile("|".join(rf"\b(?P<word{place}>{words})\b" for place, words in enumerate(AVOIDED)), re.IGNORECASE)


class Found(NamedTuple):
    """An avoided word: the file, from the root of the repository, the line, the word, and what to write instead."""

    file: str
    line: int
    word: str
    instead: str


def words_in(file: str, text: str) -> Iterator[Found]:
    """The avoided words of a text, from its first line to its last."""
    for match in WORDS.finditer(text):
        place = int(str(match.lastgroup).removeprefix("word"))
        line = text.count("\n", 0, match.start()) + 1
        yield Found(file, line, " ".join(match[0].split()), [*AVOIDED.values()][place])


def docstrings(source: str) -> str:
    """The docstrings of a program, each on its own lines; all other lines are empty."""
    lines = [""] * (source.count("\n") + 2)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            text = source.splitlines()[node.lineno - 1 : node.end_lineno]
            lines[node.lineno - 1 : node.end_lineno] = text
    return "\n".join(lines)


def text_of(file: str) -> str:
    """What is read of a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return docstrings(text) if file.startswith("tests/") and file.endswith(".py") else text


def files(places: Sequence[str]) -> list[str]:
    """The files in places that are read. This one is not: it has to name the words."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *places]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    known = {file for file in listed if file.endswith((".py", ".md", "Makefile")) and (ROOT / file).is_file()}
    return sorted(known - {Path(__file__).resolve().relative_to(ROOT).as_posix()})


def found_in(places: Sequence[str]) -> dict[str, list[Found]]:
    """The avoided words of every file that has some."""
    texts = {file: text_of(file) for file in files(places)}
    found = {file: list(words_in(file, text)) for file, text in texts.items()}
    return {file: words for file, words in found.items() if words}


def lines_of(words: Iterable[Found]) -> Iterator[str]:
    """What is printed of words."""
    for word in words:
        yield f"{word.file}:{word.line}: {word.word!r}: write {word.instead}"


def main(places: Sequence[str]) -> int:
    """Print what is found in these files and folders, or in all; the exit status."""
    found = [word for words in found_in(places or PLACES).values() for word in words]
    print(*lines_of(found), sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
