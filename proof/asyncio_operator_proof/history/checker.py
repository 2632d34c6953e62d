"""`check_history`: decides every law that speaks of what can be seen from outside. It knows no part of the library.

Each law is a function ``law_<letter><number>_<what it says>``, whose docstring is the sentence of `history_laws`. One
law may have several. A function looks at all cases of a history, and reports the broken and the undecided ones.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from asyncio_operator_proof.history import (
    answer_laws,
    attempt_laws,
    batch_laws,
    cache_laws,
    cached_laws,
    circuit_laws,
    hedge_laws,
    journal_laws,
    limit_laws,
    order_laws,
    row_laws,
    snapshot_laws,
    spend_laws,
    status_laws,
    usage_laws,
    waiting_laws,
)
from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.event_format import History
from asyncio_operator_proof.history.report import Finding, Report

Law = Callable[[Book, Finding], None]

NAME = re.compile(r"law_([a-z]\d+)_")


MODULES = (
    row_laws,
    order_laws,
    snapshot_laws,
    status_laws,
    attempt_laws,
    circuit_laws,
    batch_laws,
    hedge_laws,
    waiting_laws,
    limit_laws,
    spend_laws,
    usage_laws,
    answer_laws,
    cache_laws,
    cached_laws,
    journal_laws,
)

LAWS: list[tuple[str, Law]] = sorted(
    ((one[1].upper(), law) for module in MODULES for name, law in vars(module).items() if (one := NAME.match(name))),
    key=lambda law: ("ORBLGHJQX".index(law[0][0]), int(law[0][1:])),
)
"""Every function of a law, in the order of the laws."""


def check_history(history: History | str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> Report:
    """Decide the laws for a history.

    Args:
        history: a `History`, the path of its file, or its events as dicts.

    Returns:
        What was broken, what held, and what this history cannot decide.

    Raises:
        TypeError: it is none of these.
        ValueError: it is not a whole history: an event is not of the format, or impossible. The message has its number.
        OSError: the file cannot be read.
    """
    if isinstance(history, str | os.PathLike):
        history = History.load(history)
    elif isinstance(history, bytes | Mapping) or not isinstance(history, Iterable):
        what = (
            f"a history is a History, the path of its file, or its events as dicts, and not a {type(history).__name__}"
        )
        raise TypeError(what)
    elif not isinstance(history, History):
        history = History(history)
    findings: dict[str, Finding] = {}
    with _collector_paused():
        try:
            book = Book(history.events)
            for name, law in LAWS:
                law(book, findings.setdefault(name, Finding(name)))
        except RecursionError:
            raise ValueError("an answer of the history is nested too deeply to be compared") from None
    return Report(findings)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Nothing here is in a cycle that matters, and to look for cycles takes longer than to check a long history."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def history_laws() -> dict[str, str]:
    """The laws that `check_history` decides, each with what it looks at, in a sentence or more."""
    found: dict[str, str] = {}
    for name, law in LAWS:
        sentence = " ".join((law.__doc__ or "").split())
        found[name] = f"{found[name]} {sentence}" if name in found else sentence
    return found
