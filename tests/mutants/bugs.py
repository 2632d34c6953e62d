"""The list of planted bugs: each replaces one text of one file by another. See `bugs.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("bugs.toml")
PACKAGE = "asyncio_operator"


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug.

    Attributes:
        name: of the bug, for the command line.
        law: that it breaks, such as "R3".
        says: what it does, in one sentence.
        file: the path inside of the package; that of an enricher begins with ``enrichers/``.
        old, new: the text that is replaced, which the file has exactly once, and its replacement.
    """

    name: str
    law: str
    says: str
    file: str
    old: str
    new: str

    @property
    def path(self) -> str:
        """The file, from the root of the repository."""
        return self.file if self.file.startswith("enrichers/") else f"{PACKAGE}/{self.file}"

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").replace("/", ".")

    def planted(self, text: str) -> str:
        """The text of the file with the bug in it.

        Raises:
            ValueError: the text to replace is not there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.name}: {self.path} has the text to replace {count} times, and must have it once; correct `old` "
                f"in {LIST.name}:\n{self.old}"
            )
        return text.replace(self.old, self.new)


def read_bugs() -> list[Bug]:
    """All planted bugs, in the order of the list."""
    return [Bug(**fields) for fields in tomllib.loads(LIST.read_text())["bug"]]
