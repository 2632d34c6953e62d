"""The contract of state backends, as plain checks: for those who write one, and for ours.

`check_state_backend(make)` raises AssertionError, naming what is wrong, unless backends that `make` gives obey the
laws of keyed state and of time to live. It needs no test framework.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from asyncio_operator.testing import state_laws, state_ttl
from asyncio_operator.testing.state_laws import Make

LAWS = (*state_laws.LAWS, *state_ttl.LAWS)


def check_state_backend(make: Make) -> None:
    """Checks every law on new backends.

    Args:
        make: gives a new, empty backend each time. Called with the keywords `clock`, `key_groups` and
        `max_parallelism` if it
            takes them; laws that need one it does not take are left out.

    Raises:
        AssertionError: a law is broken.
    """
    for law in LAWS:
        if accepts(make, law):
            law(make)


def accepts(make: Make, law: Callable[[Make], None]) -> bool:
    """Whether `make` takes the keywords that the law gives it."""
    needed = {"clock": None} if law in state_ttl.LAWS else {}
    if law is state_laws.law_s1_range:
        needed = {"key_groups": None, "max_parallelism": None}
    try:
        inspect.signature(make).bind(**needed)
    except TypeError:
        return False
    return True
