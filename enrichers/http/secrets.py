"""What must never be shown, and texts without it.

Whatever a user put into a header, into the query of a URL or before its ``@`` may be a secret, unless its name says
that it is none. It is hidden in whatever a server or a library says, also where that shows it percent-encoded, as JSON
or as HTML writes it, or in other case: of each character every way of writing it is known.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

from asyncio_operator.enricher import describe

_HIDDEN = "***"

_LONG = 8
"""Characters from which a secret is hidden inside of words too."""

_PUBLIC_HEADERS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "content-type", "prefer", "user-agent"}
)

_TELLTALE = re.compile("pass|pwd|secret|token|key|auth|sig|credential", re.IGNORECASE)


class Secrets:
    """A set of texts that are hidden."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts: set[str] = set()
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Hide these from now on, also percent-decoded."""
        for text in texts:
            self._texts |= {form for form in (text, unquote(text), unquote_plus(text)) if form.strip()}

    def hide(self, text: str) -> str:
        """The text without secrets. Short ones are hidden where they stand as words."""
        for secret in sorted(self._texts, key=len, reverse=True):
            text = _pattern(secret).sub(_HIDDEN, text)
        return text

    def show(self, value: object, limit: int = 200) -> str:
        """A value for a message, without secrets, cut after they are hidden, so that no half of one is left."""
        text = self.hide(describe(value, 20 * limit))
        return text if len(text) <= limit else text[: limit - 3] + "..."

    def told_by(self, error: BaseException | None) -> bool:
        """Whether a traceback that shows this error, and what caused it, would show a secret."""
        if error is None:
            return False
        text = " ".join([str(error), repr(error), *getattr(error, "__notes__", ())])
        return self.hide(text) != text or self.told_by(error.__cause__ or error.__context__)


@lru_cache(1000)
def _pattern(secret: str) -> re.Pattern[str]:
    """What finds a secret, however it is written."""
    pattern = "".join([_written(piece) for piece in re.findall(r"[\s+]+|\\+|.", secret)])
    if len(secret) < _LONG:
        before = r"(?<!\w)" if secret[0].isalnum() else ""
        after = r"(?!\w)" if secret[-1].isalnum() else ""
        pattern = before + pattern + after
    return re.compile(pattern, re.IGNORECASE)


def _written(piece: str) -> str:
    """The pattern of a character, of blanks and pluses, or of backslashes, of which there may be more or fewer.

    What repeats is possessive, so that no text makes the search try every way to divide it.
    """
    if piece.isspace() or "+" in piece:
        return r"(?:[\s+]|%(?:25)*+(?:20|2b|0[9a-d])|(?:\\++|(?<=\\))(?:[nrtf]|u002b)|&#(?:0*43|x0*2b);)++"
    if piece[0] == "\\":
        return r"(?:\\(?:u005c)?|%(?:25)*+5c|&#(?:0*92|x0*5c);)++"
    if piece.isascii() and piece.isalnum():
        return piece
    in_url = "".join([f"%(?:25)*{byte:02x}" for byte in piece.encode("utf-8", "surrogatepass")])
    units = piece.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join([rf"\\*+u{units[i : i + 4]}" for i in range(0, len(units), 4)])
    in_html = f"&#(?:0*{ord(piece)}|x0*{ord(piece):x});"
    named = f"|{html.escape(piece)}" if piece in "&<>\"'" else ""
    return rf"(?:\\*+{re.escape(piece)}|{in_url}|{in_json}|{in_html}{named})"


def of_header(name: str, value: str) -> list[str]:
    """What may be secret in a header: its value, and the words of it, as in ``Bearer word``."""
    if name.lower() in _PUBLIC_HEADERS:
        return []
    return [value, *(word for word in value.split() if len(word) >= _LONG)]


def of_named(name: str, value: str) -> list[str]:
    """What may be secret in a parameter or a field: any text, and a number whose name tells that it is one."""
    if len(value) < 3 and not any(character.isalnum() for character in value):
        return []
    harmless = len(value) < 3 or value.isdecimal() or value.lower() in ("true", "false")
    return [] if harmless and not _TELLTALE.search(name) else [value]
