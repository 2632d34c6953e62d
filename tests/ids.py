"""Names of the cases of a test that are the same in every process, as tests that run side by side need them."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """The value, without where it is in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
