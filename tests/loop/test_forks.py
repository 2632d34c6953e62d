"""What a forked child forgets: one hook calls all that modules have named."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.test_layers import sources_of_the_project

PROGRAM = """
import os
from asyncio_operator.loop.forks import forget_in_child

def say(what):
    os.write(1, what.encode())

def fail():
    say("2")
    raise ValueError("not forgotten")

forget_in_child(lambda: say("1"))
forget_in_child(fail)
forget_in_child(lambda: say("3"))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
say(" parent")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forgets_in_order_even_if_one_callback_raises() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "123 parent"
    assert "ValueError: not forgotten" in done.stderr


def test_there_is_one_fork_hook() -> None:
    hooks = [path for path, text in sources_of_the_project().items() if re.search(r"register_at_fork\(", text)]
    assert hooks == ["asyncio_operator/loop/forks.py"]
