"""O16 at the end of a process, and after a fork: each test is a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_program(program: str, *options: str) -> tuple[list[str], str]:
    """The lines that a program prints, and what it complains of; it has to end by itself, and well."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", PREAMBLE + textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # In debug mode asyncio tells of steps that took long, as on a busy machine.
    complaints = re.sub(r"Executing <.*> took [\d.]+ seconds\n", "", ended.stderr)
    return ended.stdout.splitlines(), complaints


ON_LOOP = {"uvloop": "", "asyncio": "sys.modules['uvloop'] = None\n"}
"""How a program begins that is to run on that loop."""

PREAMBLE = """
import asyncio, itertools, os, sys, threading
from asyncio_operator import *

PARENT = os.getpid()

def tell(*words):
    # One system call, because two processes write.
    line = " ".join(map(str, words)) + ("" if os.getpid() == PARENT else " in the child")
    os.write(1, line.encode() + b"\\n")

class Function(AsyncFunction):
    async def open(self):
        tell("open")

    async def invoke(self, value):
        return value if value < 1000 else await asyncio.sleep(3600)

    async def close(self):
        tell("close")
"""


@pytest.mark.parametrize("loop", ON_LOOP)
def test_O16_the_interpreter_ends_with_a_run_left_open(loop):
    lines, complaints = run_program(
        ON_LOOP[loop]
        + """
outputs = AsyncWaitOperator(Function())(itertools.count())
tell(next(outputs))
"""
    )
    assert lines == ["open", "0", "close"]
    assert complaints == ""


def test_O16_the_interpreter_ends_by_an_exit_in_the_middle_of_a_run():
    program = """
try:
    for output in AsyncWaitOperator(Function())(itertools.count()):
        if output == 500:
            sys.exit(0)
finally:
    tell("left")
"""
    lines, complaints = run_program(program)
    assert sorted(lines) == ["close", "left", "open"]
    assert complaints == ""


def test_O16_the_interpreter_ends_while_another_thread_waits_for_outputs():
    program = """
began = threading.Event()

def consume():
    try:
        for output in AsyncWaitOperator(Function())(itertools.count()):
            began.set()
    except BaseException as error:
        tell(type(error).__name__)

threading.Thread(target=consume, daemon=True).start()
began.wait()
"""
    lines, complaints = run_program(program)
    assert lines[:1] == ["open"]
    assert "close" in lines
    assert complaints == ""


def test_O16_an_interrupted_consumer_ends_the_run():
    program = """
class Interrupting(Function):
    async def invoke(self, value):
        if value == 3:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(3600)
        return value

import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background of a shell ignores it
operator = AsyncWaitOperator(Interrupting())
for _ in range(2):
    try:
        for output in operator(range(10)):
            pass
    except KeyboardInterrupt:
        tell("interrupted")
"""
    lines, complaints = run_program(program)
    assert lines == ["open", "close", "interrupted"] * 2
    assert complaints == ""


def test_O16_behind_the_end_of_the_loop_thread_a_run_fails_at_once():
    program = """
import atexit
operator = AsyncWaitOperator(Function(), grace_period=3600)

def late():
    try:
        list(operator([1]))
    except RuntimeError as error:
        tell(error)

atexit.register(late)
tell(list(operator([1])))
"""
    lines, complaints = run_program(program)
    assert lines[:3] == ["open", "close", "[1]"]
    assert "closed" in lines[3]
    assert complaints == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("loop", ON_LOOP)
@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)", "pass"])
def test_O16_a_forked_child_has_a_loop_thread_of_its_own(loop, leave):
    """And leaves the parent's alone, whose descriptors it shares."""
    lines, complaints = run_program(
        ON_LOOP[loop]
        + f"""
operator = AsyncWaitOperator(Function())
outputs = operator(iter(range(900)))
next(outputs)
pid = os.fork()
if pid == 0:
    tell(type(operator.snapshot()).__name__)
    try:
        list(outputs)
    except StateError as error:
        tell(error)
    tell(sum(operator(range(10))))
    {leave}
else:
    tell("left", os.waitpid(pid, 0)[1])
    tell(sum(outputs))
    tell(sum(AsyncWaitOperator(Function())(range(10))))
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    child = [line.removesuffix(" in the child") for line in lines if "child" in line]
    parent = [line for line in lines if "child" not in line]
    assert child[0] == "OperatorSnapshot"
    assert child[1].startswith("the outputs come from a run of another process")
    assert child[2:] == ["open", "close", "45"]
    assert sorted(parent[:4]) == sorted(["open", "left 0", "close", str(sum(range(900)))])
    assert parent[4:] == ["open", "close", "45"]
    assert complaints == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("loop", ON_LOOP)
@pytest.mark.parametrize("leave", ["return 'child'", "sys.exit(7)", "raise ValueError"])
def test_O16_a_child_that_a_function_forks_ends_when_it_returns_to_the_loop(loop, leave):
    """It would answer for its parent, with a copy of the loop."""
    lines, _ = run_program(
        ON_LOOP[loop]
        + f"""
async def forks(value):
    if value == 3:
        children.append(os.fork())
        if not children[-1]:
            {leave}
    await asyncio.sleep(0.01)
    return value

children = []
tell(sum(AsyncWaitOperator(forks, capacity=2)(range(8))))
tell(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
tell(sum(AsyncWaitOperator(forks, capacity=2)(range(3))))
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert lines == ["28", "1", "3"]


def test_O16_nothing_starts_before_it_is_needed():
    program = """
operator = AsyncWaitOperator(Function())
print(threading.active_count())
outputs = operator([1])
"""
    assert run_program(program) == (["1"], "")
