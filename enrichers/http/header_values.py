"""The values of headers: numbers, times, lists. Each is read exactly, or refused with a reason.

No input raises anything but `WrongError` and `UnknownError`. This module knows no header and no clock.

Sources: RFC 9651 (lists), RFC 3339 and RFC 9110 (dates), Go's ``time.Duration`` (``1h2m3.5s``).
"""

from __future__ import annotations

import email.utils
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

LONGEST_VALUE = 1_000
"""Characters of a header. Lists of limits have some dozens for each."""

LARGEST_NUMBER = 1e15
"""Larger amounts and waits are mistakes: a second is a microsecond, and a token a byte, long before."""

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?")
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DURATION = re.compile("".join([rf"(?:([0-9]{{1,15}}(?:\.[0-9]{{1,15}})?){unit})?" for unit in _UNITS]))
_COMMAS = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^",])+')
_SEMICOLONS = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^";])+')


class Ignored(NamedTuple):
    """A header that was left out, and why."""

    header: str
    why: str


class UnknownError(Exception):
    """The service says that it does not know the value."""


class WrongError(Exception):
    """A header cannot be right."""

    def __init__(self, header: str, why: str) -> None:
        super().__init__(header, why)
        self.ignored = Ignored(header, why)


def single(header: str, values: Sequence[str]) -> str | None:
    """The value of a header that must occur at most once; None if it does not occur. Equal copies count as one."""
    different = {value.strip() for value in values}
    if not different:
        return None
    if len(different) > 1:
        raise WrongError(header, "it occurs several times, with different values")
    return _usable(header, different.pop())


def items(header: str, values: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The items of a list of RFC 9651, each with its parameters. All of them are taken as text."""
    listed = []
    for item in _COMMAS.findall(",".join([_usable(header, value.strip()) for value in values])):
        first, *more = [part.strip() for part in _SEMICOLONS.findall(item)] or [""]
        parameters = (part.partition("=") for part in more)
        listed.append((first.strip('"'), {name.strip(): value.strip(' "') for name, _, value in parameters}))
    return listed


def amount(header: str, text: str | None) -> float | None:
    """A number of at least 0; None for None."""
    if text is None:
        return None
    if text == "-1":
        raise UnknownError
    if not is_number(text):
        negative = text.startswith("-") and is_number(text[1:])
        raise WrongError(header, "it is negative" if negative else "it is neither a number nor a time")
    number = float(text)
    if number > LARGEST_NUMBER:
        raise WrongError(header, "it is too large")
    return number


def positive(header: str, text: str | None) -> float | None:
    """A number above 0; None for None."""
    number = amount(header, text)
    if number == 0:
        raise WrongError(header, "it is 0")
    return number


def is_number(text: str) -> bool:
    """Whether it is a number without a sign, as headers have it."""
    return _NUMBER.fullmatch(text) is not None


def duration_of(text: str) -> float | None:
    """The seconds of ``1h2m3.5s`` or ``12ms``; None if it is something else."""
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        return None
    parts = zip(found.groups(), _UNITS.values(), strict=True)
    return sum([float(part) * unit for part, unit in parts if part is not None])


def date_of(text: str) -> float | None:
    """A date of RFC 3339 or of HTTP, in seconds since the epoch; None if it is something else."""
    if is_number(text):  # fromisoformat would read 20260101 as a day.
        return None
    try:
        moment = datetime.fromisoformat(text)
        return None if moment.tzinfo is None else moment.timestamp()
    except (ValueError, OverflowError):
        pass
    try:
        moment = email.utils.parsedate_to_datetime(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except Exception:  # The parser of e-mail raises several kinds for text that is no date.
        return None


def _usable(header: str, value: str) -> str:
    if not value or len(value) > LONGEST_VALUE or not value.isascii():
        raise WrongError(header, "it is empty, too long, or not ASCII")
    return value
