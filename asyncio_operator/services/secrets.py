"""Hides secrets in texts: the one place that does so, for all enrichers.

Everything that a user puts into a header, into the query of a URL or before its ``@`` may be a secret, unless its name
says that it is public. It is hidden in every text of a server or a library, also percent-encoded, escaped as in JSON or
HTML, or in another case: each way to write each character is known. A secret that equals a public text (the user is
the password, as on many test servers) stays readable: hiding it would reveal that it is the password.

Texts are searched only when an error is made, and by pattern only if they contain the letters of a secret: tens of
thousands of errors may come in a second.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote, unquote_plus, urlsplit

from asyncio_operator.errors import describe

_HIDDEN = "***"

_LONG = 8  # From this number of characters on, a secret is hidden inside of words too.
_RENEWALS = 10  # The number of tokens that stay hidden: late answers may still show earlier ones.

_PUBLIC_HEADERS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "content-type", "prefer", "user-agent"}
)

_TELLTALE = re.compile("pass|pwd|secret|token|key|auth|sig|credential", re.IGNORECASE)

_LETTERS = re.compile("[0-9A-Za-z]+")


class Secrets:
    """A set of texts to hide. Texts that are `public` stay readable where they occur exactly so."""

    def __init__(self, texts: Iterable[str] = (), public: Iterable[str] = ()) -> None:
        self._public = frozenset(public)
        self._lasting: set[str] = set()
        self._passing: deque[set[str]] = deque(maxlen=_RENEWALS)
        self._letters: dict[str, str] = {}
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Hide these texts from now on, also in percent-decoded form."""
        self._lasting |= _forms(texts)
        self._arrange()

    def renew(self, texts: Iterable[str]) -> None:
        """Hide texts that expire, such as tokens. Only the last `_RENEWALS` different ones stay hidden."""
        forms = _forms(texts)
        if forms not in self._passing:
            self._passing.append(forms)
            self._arrange()

    def _arrange(self) -> None:
        """Sort by length, so that a longer secret is hidden before a part of it.

        Each secret is stored with its longest run of letters, which is written in one way only: a text without this run
        does not contain the secret, and need not be searched by pattern.
        """
        forms = sorted(self._lasting.union(*self._passing), key=len, reverse=True)
        self._letters = {form: max(_LETTERS.findall(form), key=len, default="").casefold() for form in forms}

    def hide(self, text: str) -> str:
        """The text without secrets. A short secret is hidden only where it is a whole word."""
        folded = text.casefold()
        for secret, letters in self._letters.items():
            if letters in folded:
                text = _pattern(secret).sub(lambda found: found[0] if found[0] in self._public else _HIDDEN, text)
        return text

    def line(self, text: str, limit: int) -> str:
        """A text as one printable line without secrets. It is cut after hiding, so that no half of a secret is left."""
        text = _cut(self.hide(" ".join(text.split())), limit)
        return text if text.isprintable() else "".join([one if one.isprintable() else "?" for one in text])

    def show(self, value: object, limit: int = 200) -> str:
        """A value for a message, without secrets. It is cut after hiding."""
        return _cut(self.hide(describe(value, 20 * limit)), limit)

    def shown_by(self, error: BaseException | None) -> bool:
        """Whether a traceback of this error and its causes would show a secret."""
        try:
            texts = [(str(one), repr(one), *map(str, getattr(one, "__notes__", ()))) for one in chain(error)]
            text = " ".join([text for several in texts for text in several])
        except Exception:
            return True  # Unreadable, so it may hold one.
        return self.hide(text) != text


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and all errors that led to it, those of a group too, each once."""
    waiting, seen = [error], set()
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__ or error.__context__, *getattr(error, "exceptions", ())]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _forms(texts: Iterable[str]) -> set[str]:
    return {form for text in texts for form in (text, unquote(text), unquote_plus(text)) if form}


@lru_cache(1000)
def _pattern(secret: str) -> re.Pattern[str]:
    """A pattern that finds a secret in every form of writing."""
    pattern = "".join([_written(piece) for piece in re.findall(r"[\s+]+|\\+|.", secret)])
    if len(secret) < _LONG:
        before = r"(?<!\w)" if secret[0].isalnum() else ""
        after = r"(?!\w)" if secret[-1].isalnum() else ""
        pattern = before + pattern + after
    return re.compile(pattern, re.IGNORECASE)


def _written(piece: str) -> str:
    """The pattern of one character, or of a run of blanks and pluses or of backslashes, whose length may change.

    Repetitions are atomic, so that no text makes the search try every way to divide it. There is no possessive
    quantifier at a group that backtracks: before Python 3.11.5 it does not find everything that it should.
    """
    if piece.isspace() or "+" in piece:
        return r"(?>(?:[\s+]|%(?:25)*+(?:20|2b|0[9a-d])|(?:\\++|(?<=\\))(?:[nrtf]|u002b)|&#(?:0*43|x0*2b);)+)"
    if piece[0] == "\\":
        return r"(?>(?:\\(?:u005c)?|%(?:25)*+5c|&#(?:0*92|x0*5c);)+)"
    if piece.isascii() and piece.isalnum():
        return piece
    in_url = "".join([f"%(?:25)*{byte:02x}" for byte in piece.encode("utf-8", "surrogatepass")])
    units = piece.encode("utf-16-be", "surrogatepass").hex()
    in_json = "".join([rf"\\*+u{units[i : i + 4]}" for i in range(0, len(units), 4)])
    in_html = f"&#(?:0*{ord(piece)}|x0*{ord(piece):x});"
    named = f"|{html.escape(piece)}" if piece in "&<>\"'" else ""
    return rf"(?:\\*+{re.escape(piece)}|{in_url}|{in_json}|{in_html}{named})"


def of_header(name: str, value: str) -> list[str]:
    """What may be secret in a header: its value, and the long words of it, as in ``Bearer word``."""
    if name.lower() in _PUBLIC_HEADERS or not value.strip():
        return []
    return [value, *(word for word in value.split() if len(word) >= _LONG)]


def of_named(name: str, value: str) -> list[str]:
    """What may be secret in a parameter or a field: any text, and a number whose name suggests a secret."""
    if not value.strip() or (len(value) < 3 and not any(character.isalnum() for character in value)):
        return []
    harmless = len(value) < 3 or value.isdecimal() or value.lower() in ("true", "false", "null")
    return [] if harmless and not _TELLTALE.search(name) else [value]


@lru_cache(100)
def of_url(url: str, public_options: frozenset[str]) -> Secrets:
    """What may be secret in ``scheme://user:password@host/path?option=value``. The result must not be changed.

    Secret are the whole URL, the password, and the values of all options that are not public: an unknown option may be
    a misspelt password. A bare number is secret only if the name of its option suggests it.
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    texts, public = [url, password], [unquote(user), unquote(parts.path[1:]), hosts]
    for option in parts.query.split("&"):
        name, _, value = option.partition("=")
        name = unquote(name)
        if name in public_options:
            public.append(unquote_plus(value))
        elif not value.isdecimal() or _TELLTALE.search(name):
            texts.append(value)
    return Secrets(texts, public)
