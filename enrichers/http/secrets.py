"""What must never be shown, and texts without it.

Whatever a user put into a header, into the query of a URL or before its ``@`` may be a secret, unless its name says
that it is none. It is hidden in whatever a server or a library says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

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
            self._texts |= {text, unquote(text)}
        self._texts.discard("")

    def hide(self, text: str) -> str:
        """The text without secrets. Short ones are hidden where they stand as words."""
        for secret in sorted(self._texts, key=len, reverse=True):
            if secret not in text:
                continue
            if len(secret) >= _LONG:
                text = text.replace(secret, _HIDDEN)
            else:
                before = r"(?<!\w)" if secret[0].isalnum() else ""
                after = r"(?!\w)" if secret[-1].isalnum() else ""
                text = re.sub(before + re.escape(secret) + after, _HIDDEN, text)
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


def of_header(name: str, value: str) -> list[str]:
    """What may be secret in a header: its value, and the words of it, as in ``Bearer word``."""
    if name.lower() in _PUBLIC_HEADERS:
        return []
    return [value, *(word for word in value.split() if len(word) >= _LONG)]


def of_named(name: str, value: str) -> list[str]:
    """What may be secret in a parameter or a field: any text, and a number whose name tells that it is one."""
    harmless = len(value) < 3 or value.isdecimal() or value.lower() in ("true", "false")
    return [] if harmless and not _TELLTALE.search(name) else [value]
