"""What a forked child of this process forgets: threads, loops, and locks that threads of the parent may hold.

The child has a copy of the memory, and only the thread that forked. What another thread drove does not go on there, and
a lock that another thread held is never released. A module that keeps such things for the whole process names here
the function that forgets them. All are called in the order in which they were named, even if one raises.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

_callbacks: list[Callable[[], object]] = []


def forget_in_child(callback: Callable[[], object]) -> None:
    """Have a forked child call it, before anything else runs there. It must take no lock that the parent takes."""
    _callbacks.append(callback)


def _forget() -> None:
    with contextlib.ExitStack() as stack:
        # A stack calls the last first, and goes on if one raises. Python reports what the hook raises.
        for callback in reversed(_callbacks):
            stack.callback(callback)


os.register_at_fork(after_in_child=_forget)
