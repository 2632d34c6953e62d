"""What must never be shown, and texts without it: the one place that hides secrets, for all enrichers.

Whatever a user put into a header, into the query of a URL or before its ``@`` may be a secret, unless its name says
that it is none. It is hidden in whatever a server or a library says, also where that shows it percent-encoded, as JSON
or as HTML writes it, or in other case: of each character every way of writing it is known. A secret that equals a
public text (the user is the password, as on many a test server) stays readable: hiding it would tell it.

Texts are searched only when an error is made, and by pattern only where the letters of a secret are in them at all:
errors may come by the ten thousand in a second.
"""

from __future__ import annotations

import html
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import unquote, unquote_plus, urlsplit

from asyncio_operator.enricher import describe

_HIDDEN = "***"

_LONG = 8
"""Characters from which a secret is hidden inside of words too."""

_RENEWALS = 10
"""Tokens that are hidden besides the newest: late answers may still show them."""

_PUBLIC_HEADERS = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "content-type", "prefer", "user-agent"}
)

_TELLTALE = re.compile("pass|pwd|secret|token|key|auth|sig|credential", re.IGNORECASE)

_LETTERS = re.compile("[0-9A-Za-z]+")


class Secrets:
    """A set of texts that are hidden.

    Args:
        texts: what is secret.
        public: what stays readable where it stands just so.
    """

    def __init__(self, texts: Iterable[str] = (), public: Iterable[str] = ()) -> None:
        self._public = frozenset(public)
        self._lasting: set[str] = set()
        self._passing: deque[set[str]] = deque(maxlen=_RENEWALS)
        self._letters: dict[str, str] = {}
        self.add(texts)

    def add(self, texts: Iterable[str]) -> None:
        """Hide these from now on, also percent-decoded."""
        self._lasting |= _forms(texts)
        self._arrange()

    def renew(self, texts: Iterable[str]) -> None:
        """The same for what expires, as tokens do: what was given `_RENEWALS` different ones ago is forgotten."""
        forms = _forms(texts)
        if forms not in self._passing:
            self._passing.append(forms)
            self._arrange()

    def _arrange(self) -> None:
        """The longest first. Letters are written in one way only: a text without a row of them has no form of it."""
        forms = sorted(self._lasting.union(*self._passing), key=len, reverse=True)
        self._letters = {form: max(_LETTERS.findall(form), key=len, default="").casefold() for form in forms}

    def hide(self, text: str) -> str:
        """The text without secrets. Short ones are hidden where they stand as words."""
        folded = text.casefold()
        for secret, letters in self._letters.items():
            if letters in folded:
                text = _pattern(secret).sub(self._hidden, text)
        return text

    def _hidden(self, found: re.Match[str]) -> str:
        return found[0] if found[0] in self._public else _HIDDEN

    def line(self, text: str, limit: int) -> str:
        """A text as one printable line without secrets, cut after they are hidden, so that no half of one is left."""
        text = _cut(self.hide(" ".join(text.split())), limit)
        return text if text.isprintable() else "".join([one if one.isprintable() else "?" for one in text])

    def show(self, value: object, limit: int = 200) -> str:
        """A value for a message, without secrets, cut after they are hidden."""
        return _cut(self.hide(describe(value, 20 * limit)), limit)

    def told_by(self, error: BaseException | None) -> bool:
        """Whether a traceback that shows this error, and what caused it, would show a secret."""
        try:
            text = " ".join([text for one in chain(error) for text in (str(one), repr(one), *_notes(one))])
        except Exception:
            return True
        return self.hide(text) != text


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and whatever caused it, those of a group too, each once."""
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


def _notes(error: BaseException) -> Iterable[str]:
    return map(str, getattr(error, "__notes__", ()))


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

    What repeats is atomic, so that no text makes the search try every way to divide it. A possessive quantifier stands
    at no group that backtracks: before Python 3.11.5 such a one does not find all that it should.
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
    """What may be secret in a header: its value, and the words of it, as in ``Bearer word``."""
    if name.lower() in _PUBLIC_HEADERS or not value.strip():
        return []
    return [value, *(word for word in value.split() if len(word) >= _LONG)]


def of_named(name: str, value: str) -> list[str]:
    """What may be secret in a parameter or a field: any text, and a number whose name tells that it is one."""
    if not value.strip() or (len(value) < 3 and not any(character.isalnum() for character in value)):
        return []
    harmless = len(value) < 3 or value.isdecimal() or value.lower() in ("true", "false", "null")
    return [] if harmless and not _TELLTALE.search(name) else [value]


@lru_cache(100)
def of_url(url: str, public_options: frozenset[str]) -> Secrets:
    """What may be secret in ``scheme://user:password@host/path?option=value``; not to be added to.

    It is the whole, the password, and the values of all options but the public ones: one that the driver does not know
    may be a misspelt password. A bare number is none, unless the name of its option tells that it is.
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
