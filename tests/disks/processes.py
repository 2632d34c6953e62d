"""Work in a child process that may be killed, crash or hang. What it said before is there.

Children are forked from a process that has imported everything and used nothing: RocksDB does not survive a fork, and
a new Python would take a second.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("kills.c")

LIMIT = 60.0
"""Seconds after which a child hangs: it takes a hundredth."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    Attributes:
        lines: what it said.
        signal: that killed it; 0: it came to its end.
        wrong: the error that it raised, or that it hangs; empty if neither.
    """

    lines: list[str]
    signal: int
    wrong: str


def forked(work: Callable[[Say], None], kill: tuple[int, float] | None = None) -> Ended:
    """Does work in a child and waits for its end.

    Args:
        kill: after how many lines, and how many seconds more, the child is killed.
    """
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(out)
        _do(work, into)
    os.close(into)
    with os.fdopen(out, "rb", buffering=0) as pipe:
        text, hangs = _heard(pipe.fileno(), child, kill)
    _, status = os.waitpid(child, 0)
    lines = text.decode().split("\n")[:-1]  # The last one may be cut.
    wrong = "\n".join(line.removeprefix("wrong ") for line in lines if line.startswith("wrong "))
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if hangs:
        wrong = f"it hangs: {LIMIT:g} s are over"
    elif killed and killed != signal.SIGKILL:
        wrong = f"it died of {signal.Signals(killed).name}"
    return Ended([line for line in lines if not line.startswith("wrong ")], killed, wrong)


def _do(work: Callable[[Say], None], into: int) -> None:
    logging.disable()

    def say(line: str) -> None:
        os.write(into, f"{line}\n".encode())

    try:
        work(say)
    except BaseException:
        say("\n".join(f"wrong {line}" for line in traceback.format_exc().splitlines()))
    os._exit(0)


def _heard(pipe: int, child: int, kill: tuple[int, float] | None) -> tuple[bytes, bool]:
    """What a child says until its end, and whether it hangs."""
    text, end = b"", time.monotonic() + LIMIT
    while (left := end - time.monotonic()) > 0:
        if kill is not None and text.count(b"\n") >= kill[0]:
            time.sleep(kill[1])
            os.kill(child, signal.SIGKILL)
            kill = None
        if select.select([pipe], [], [], left)[0]:
            data = os.read(pipe, 1 << 16)
            if not data:
                return text, False
            text += data
    os.kill(child, signal.SIGKILL)
    return text, True


@contextmanager
def with_kills() -> Iterator[dict[str, str] | None]:
    """The environment of a process in which `arm` works; None where there is no Linux, or no C compiler."""
    with tempfile.TemporaryDirectory(prefix="kills-") as directory:
        library = f"{directory}/kills.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", library, str(SOURCE), "-ldl"]
        try:
            if not sys.platform.startswith("linux"):
                raise OSError("LD_PRELOAD is of Linux")
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield {**os.environ, "LD_PRELOAD": library}


def can_arm() -> bool:
    """Whether `arm` works in this process and its children."""
    return hasattr(ctypes.CDLL(None), "disks_arm")


def arm(directory: Path, moment: int) -> None:
    """Counts the moments of writes of this process below a directory, and ends it at one; 0: at none."""
    ctypes.CDLL(None).disks_arm(os.fsencode(directory), ctypes.c_long(moment))
