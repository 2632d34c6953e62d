"""What a process lacks: a module that is not installed, an environment variable that is not set.

Such an error is a matter of the machine and not of the key that happened to be asked for, and it is mended elsewhere
than in the program. It is found behind other errors too, by way of their causes. Of Spark it knows how to mend it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple

from asyncio_operator.errors import ConfigurationError


class Missing(NamedTuple):
    """A module or an environment variable: `kind` is one of these words."""

    kind: str
    name: str

    def __str__(self) -> str:
        place = "not installed in this Python" if self.kind == "module" else "not set in this process"
        return f"the {self.kind} {self.name!r} is {place}"


def missing_here(error: BaseException) -> Missing | None:
    """What this process lacks, if that is what an error, or one that caused it, says; else None."""
    for cause in _led_to(error, contexts=True):
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return Missing("module", cause.name)
        if isinstance(cause, KeyError) and _raised_by_environ(cause):
            return Missing("environment variable", str(cause.args[0]))
    return None


def not_installed(what: str, library: str, extra: str) -> ConfigurationError:
    """The error of something that needs a library, and of the extra of this package that brings it."""
    return ConfigurationError(
        f"{what} needs {library}, which is not installed in {sys.executable}: pip install 'asyncio-operator[{extra}]'; "
        "with Spark, in the Python of every worker"
    )


def remedy(error: BaseException) -> str:
    """What to do about what this process lacks, for the end of a message; empty where an error says nothing of it."""
    match missing_here(error):
        case Missing("module", name):
            return (
                f". This Python worker ({sys.executable}) has no module {name!r}: install it in the Python of every "
                "executor, or send it along with spark.submit.pyFiles or spark.archives"
            )
        case Missing(_, name):
            return (
                f". This Python worker has no environment variable {name!r}: give it to the executors, as in "
                f"--conf spark.executorEnv.{name}=..."
            )
    return ""


def failed_import(error: BaseException) -> ImportError | None:
    """The import that failed, if an error is one, or was raised ``from`` one.

    One that merely came while a failed import was handled does not count: it may be of a way around the module.
    """
    return next((cause for cause in _led_to(error) if isinstance(cause, ImportError)), None)


def _led_to(error: BaseException, contexts: bool = False) -> Iterator[BaseException]:
    """The error and what led to it, each once: ``raise error from error`` makes a circle."""
    told: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in told:
        told.add(id(cause))
        yield cause
        before = cause.__cause__
        if before is None and contexts and not cause.__suppress_context__:
            before = cause.__context__
        cause = before


def _raised_by_environ(error: KeyError) -> bool:
    """Whether ``os.environ[name]`` raised it: the keys of other dictionaries may hold a secret."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code is type(os.environ).__getitem__.__code__
