"""What an error can say about its remedy: a module that is not installed, a variable that is not set, a name that is
misspelt.

An error about the machine does not depend on the key of the call that met it. It may be hidden behind other errors, so
their causes are searched too. Of Spark, this module knows only the remedies.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, TypeVar

from asyncio_operator.errors import ConfigurationError


class Missing(NamedTuple):
    """A missing module or environment variable. `kind` is "module" or "environment variable"."""

    kind: str
    name: str

    def __str__(self) -> str:
        place = "not installed in this Python" if self.kind == "module" else "not set in this process"
        return f"the {self.kind} {self.name!r} is {place}"


def missing_here(error: BaseException) -> Missing | None:
    """What this process lacks, if the error, or an error that led to it, says so; else None."""
    for cause in _led_to(error, contexts=True):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return Missing("module", cause.name)
        if isinstance(cause, KeyError):
            frame = cause.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next  # The innermost frame is the one that raised.
            # Keys of other dictionaries than ``os.environ`` are not shown: they may hold a secret.
            if frame is not None and frame.tb_frame.f_code is type(os.environ).__getitem__.__code__:
                return Missing("environment variable", str(cause.args[0]))
    return None


def not_installed(what: str, library: str, extra: str) -> ConfigurationError:
    """The error for something that needs a library; `extra` is the extra of this package that installs it."""
    problem = f"{what} needs {library}, which is not installed in {sys.executable}"
    with suppress(ImportError, ValueError):  # As for a name with an extra.
        if find_spec(library) is not None:
            problem = f"{what} needs {library}, of which a part is missing in {sys.executable}"
    return ConfigurationError(
        f"{problem}: pip install 'asyncio-operator[{extra}]'; with Spark, in the Python of every worker"
    )


@contextmanager
def needs(what: str, library: str, extra: str, *modules: str) -> Iterator[None]:
    """What needs a library imports it inside. If one of the `modules` of the extra, by default the library, is absent,
    the error is that of `not_installed`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (modules or (library,)):
            raise
        raise not_installed(what, library, extra) from error


def remedy(error: BaseException) -> str:
    """The end of a message: what to do if this process lacks something; empty if the error says nothing of that."""
    match missing_here(error):
        case Missing("module", name):
            return (
                f". This Python worker ({sys.executable}) has no module {name!r}: install it in the Python of every "
                "executor, or send it with spark.submit.pyFiles or spark.archives"
            )
        case Missing(_, name):
            return (
                f". This Python worker has no environment variable {name!r}: give it to the executors, as in "
                f"--conf spark.executorEnv.{name}=..."
            )
    return ""


def failed_import(error: BaseException) -> ImportError | None:
    """The failed import, if the error is one, or was raised ``from`` one.

    An error that was merely raised while a failed import was handled does not count: it may come from the fallback
    that replaces the module.
    """
    return next((cause for cause in _led_to(error) if isinstance(cause, ImportError)), None)


def _led_to(error: BaseException, contexts: bool = False) -> Iterator[BaseException]:
    """The error and the errors that led to it, each once: ``raise error from error`` makes a circle."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            for one in cause.exceptions:
                yield from _led_to(one, contexts)
        before = cause.__cause__
        if before is None and contexts and not cause.__suppress_context__:
            before = cause.__context__
        cause = before


P = ParamSpec("P")
R = TypeVar("R")


def refuse_unknown(
    face: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise a ConfigurationError for an option that `face` does not have: what `elsewhere` says of it, or was meant."""
    options = list(known)
    for name in given:
        if name not in options:
            remedy = elsewhere.get(name) or did_you_mean(name, options)
            raise ConfigurationError(f"{name!r} is not an option of {face}; {remedy}")


def named_options(
    face: str, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a function refuse options that it does not have, as `refuse_unknown` does."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__
        known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]

        @functools.wraps(function)
        def called(*arguments: P.args, **options: P.kwargs) -> R:
            refuse_unknown(face, options, known, elsewhere)
            return function(*arguments, **options)

        return called

    return decorate


SHOWN = 30  # The maximum number of names listed if none is similar.


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a name that is not among `names`: the most similar names, or else all names.

    Case is ignored in the comparison: ``did you mean 'Year'?``. If no name is similar, the names are listed in their
    order: ``there are year, seats``.
    """
    known = list(dict.fromkeys(names))
    folded: dict[str, list[str]] = {}
    for other in known:
        folded.setdefault(other.casefold(), []).append(other)
    import difflib  # Here: most programs misspell no name.

    near = folded.get(name.casefold()) or [
        other for match in difflib.get_close_matches(name.casefold(), folded) for other in folded[match]
    ]
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    more = f", and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"there are {', '.join(known[:SHOWN])}{more}" if known else "there are none"
