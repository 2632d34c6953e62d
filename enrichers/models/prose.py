"""Hides texts of the user, such as a system text, in what a service says: also a part of one.

A service may repeat what it was sent: the whole request, the beginning of it, one line. So a text is hidden wherever
`RUN` of its letters follow each other, whatever stands between them: spaces, line breaks, quotes, escapes of JSON.
Shorter texts are hidden as a whole. Credentials are hidden as everywhere, see `Secrets`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from asyncio_operator.services.secrets import Secrets

RUN = 12
"""Letters in a row that betray a text. Few messages of a service share as many with a prompt by chance."""

_LETTER = re.compile(r"\\u([0-9a-fA-F]{4})|\\.|(\w)", re.DOTALL)


class ProseSecrets(Secrets):
    """Secrets, and texts of which no part is shown either.

    Args:
        prose: the texts.
    """

    def __init__(self, prose: Iterable[str]) -> None:
        texts = [text.strip() for text in prose]
        super().__init__([text for text in texts if sum(map(str.isalnum, text)) > 2])
        self._runs = set()
        for text in texts:
            letters = "".join([letter for letter, _, _ in _letters(text)])
            self._runs |= {letters[i : i + RUN] for i in range(len(letters) - RUN + 1)}

    def hide(self, text: str) -> str:
        """The text without secrets, and without parts of the texts."""
        text = super().hide(text)
        found = _letters(text)
        letters = "".join([letter for letter, _, _ in found])
        spans: list[tuple[int, int]] = []
        for i in range(len(letters) - RUN + 1):
            if letters[i : i + RUN] in self._runs:
                start, end = found[i][1], found[i + RUN - 1][2]
                if spans and start <= spans[-1][1]:
                    start = spans.pop()[0]
                spans.append((start, end))
        for start, end in reversed(spans):
            text = f"{text[:start]}***{text[end:]}"
        return text


def _letters(text: str) -> list[tuple[str, int, int]]:
    """The letters and digits of a text in lower case, each with its beginning and end in the text."""
    found = []
    for match in _LETTER.finditer(text):
        letter = chr(int(match[1], 16)) if match[1] else match[2] or ""
        if letter.isalnum():
            found.append((letter.lower()[:1], match.start(), match.end()))
    return found
