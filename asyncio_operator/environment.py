"""What a process lacks: a module that is not installed, an environment variable that is not set.

Such an error is a matter of the machine and not of the key that happened to be asked for, and it is mended elsewhere
than in the program. It is found behind other errors too, by way of their causes. Knows nothing of Spark.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Missing(NamedTuple):
    """A module or an environment variable: `kind` is one of these words."""

    kind: str
    name: str

    def __str__(self) -> str:
        place = "not installed in this Python" if self.kind == "module" else "not set in this process"
        return f"the {self.kind} {self.name!r} is {place}"


def missing_here(error: BaseException) -> Missing | None:
    """What this process lacks, if that is what an error, or one that caused it, says; else None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return Missing("module", cause.name)
        if isinstance(cause, KeyError) and _raised_by_environ(cause):
            return Missing("environment variable", str(cause.args[0]))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _raised_by_environ(error: KeyError) -> bool:
    """Whether ``os.environ[name]`` raised it: the keys of other dictionaries may hold a secret."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code is type(os.environ).__getitem__.__code__
