"""Whether Spark has read what a task has written: so a task makes no call ahead of the rows that Spark takes (law X15).

Spark reads the next row only when it needs one. But what a worker writes goes into the buffers of its connection, so a
write says nothing about the reader. The kernel knows how many bytes were not delivered (`SIOCOUTQ`; for a Unix socket
that is all: they were not read), and for a TCP connection of this machine, which Spark's is, how many the other end
has not read (`sock_diag(7)` of Linux), each in some microseconds. Both are needed: on a busy machine a small write is
delivered some milliseconds later, and until then the other end has nothing to read. Elsewhere nothing is known, and all
that was written counts as read.

This module does not know rows.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

SOCK_DIAG: Final = 4
"""NETLINK_SOCK_DIAG"""

BY_FAMILY: Final = 20
"""SOCK_DIAG_BY_FAMILY"""

UNREAD_AT: Final = 72
"""Where `idiag_rqueue` is in the answer: behind its head, four bytes, two addresses, and `idiag_expires`."""

ANY: Final = 2**32 - 1

FIRST_LOOK = 0.0001
LAST_LOOK = 0.02
"""Seconds between two looks at a reader: at first as long as reading a row takes."""


class GoneError(Exception):
    """The other end is closed."""


def unread_by(output: Any) -> Callable[[], int] | None:
    """A function for the number of bytes that the reader of a file over a socket has not read, or None if this cannot
    be known. The function raises `GoneError` if the other end is closed."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        with socket.socket(fileno=os.dup(output.fileno())) as connection:
            look = _undelivered(output)
            if connection.family != socket.AF_UNIX:
                look = _unread_in_tcp(connection, look)
        look()
    except (OSError, ValueError, GoneError):
        return None
    return look


def _undelivered(output: Any) -> Callable[[], int]:
    import fcntl
    import termios

    def look() -> int:
        answer = bytearray(4)
        fcntl.ioctl(output.fileno(), termios.TIOCOUTQ, answer)
        return int.from_bytes(answer, sys.byteorder)

    return look


def _unread_in_tcp(connection: socket.socket, undelivered: Callable[[], int]) -> Callable[[], int]:
    def address(name: Any) -> bytes:
        return socket.inet_pton(connection.family, name[0]).ljust(16, b"\0")

    # Otherwise a small write waits for the acknowledgement of the one before, up to 40 ms, and is unread nowhere.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, other = connection.getsockname(), connection.getpeername()
    # The socket of the other end, whose own address is this end's peer. No interface, and no cookie.
    names = struct.pack("!HH", other[1], own[1]) + address(other) + address(own) + struct.pack("=III", 0, ANY, ANY)
    question = struct.pack("=BBBBI", connection.family, socket.IPPROTO_TCP, 0, 0, ANY) + names
    message = struct.pack("=IHHII", 16 + len(question), BY_FAMILY, 1, 0, 0) + question
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)

    def look() -> int:
        # First: what is delivered between the two questions is counted by the second.
        if left := undelivered():
            return left
        kernel.send(message)
        answer = kernel.recv(8192)
        if struct.unpack_from("=H", answer, 4)[0] != BY_FAMILY:
            raise GoneError
        return int(struct.unpack_from("=I", answer, UNREAD_AT)[0])

    return look


def wait_until_read(output: Any, has_hung_up: Callable[[], bool]) -> Callable[[], None]:
    """A function that sends what was written, and waits until Spark has read it.

    It raises a `BrokenPipeError` if Spark closes the connection.
    """
    unread, never = unread_by(output), threading.Event()

    def wait() -> None:
        output.flush()
        pause = FIRST_LOOK
        while unread is not None:
            try:
                left, gone = unread(), has_hung_up()
            except GoneError:
                left, gone = 0, True
            # First: Java shuts a connection down before it closes it, and then nothing in it counts as unread.
            if gone:
                raise BrokenPipeError("Spark has closed the connection to this Python worker: the task is over")
            if not left:
                return
            never.wait(pause)
            pause = min(2 * pause, LAST_LOOK)

    return wait
