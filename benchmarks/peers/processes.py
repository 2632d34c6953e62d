"""The processes of a program: the CPU seconds that they have used, and the end of one of its workers.

The processes are the program and its descendants. The time of a process that has ended is in the figures of the one
that waited for it.
"""

from __future__ import annotations

import contextlib

import psutil


def cpu_seconds(pid: int) -> float:
    """The seconds of user and system time that a process, its descendants and those that have ended have used."""
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def kill_worker(pid: int, port: int) -> bool:
    """Kill a descendant of a program that has a connection to a port. A program and its JVM are no workers.

    Returns:
        Whether there was one.
    """
    for process in _tree(pid)[1:]:
        with contextlib.suppress(psutil.Error):
            connected = any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp"))
            if connected and process.name() != "java":
                process.kill()
                return True
    return False


def _tree(pid: int) -> list[psutil.Process]:
    """The process, then its descendants; empty if it has ended."""
    if not pid:
        return []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []
