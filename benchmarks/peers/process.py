"""The runner's side of a program: starts it, sends it a task, and waits for its answer, with a time limit.

If a program dies, or is late, its answer is an error with its last words, and it is started again for the next task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import subprocess
from pathlib import Path

from benchmarks.peers.task import Answer, Task
from examples.stage import tail

ROOT = Path(__file__).resolve().parents[2]

START_TIMEOUT = 60.0
"""Seconds that a program may take to start, in addition to those of the task."""


class Program:
    """A program of `programs/`, by the name of its module, in the environment of a Python.

    Args:
        log: the file for all output except answers. Its directory also has the temporary files.
    """

    def __init__(self, python: Path, name: str, log: Path) -> None:
        self._command = [str(python), "-m", f"benchmarks.peers.programs.{name}"]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of its process; 0 if it does not run."""
        return 0 if self._process is None else self._process.pid

    def ask(self, task: Task, timeout: float) -> Answer:
        """Its answer to a task that may take `timeout` seconds."""
        timeout += self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(task)).encode() + b"\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], timeout)
            line = self._process.stdout.readline() if ready else b""
        except BrokenPipeError:
            ready, line = [], b""
        if line:
            return Answer(**json.loads(line))
        late = self._process.poll() is None and not ready
        self.close(patience=0.0 if late else 1.0)
        return Answer(error=f"took more than {timeout:.0f} s" if late else tail(self._log, 1) or "the program ended")

    def _start(self) -> float:
        if self._process is not None:
            return 0.0
        directory = self._log.parent
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # What libraries leave behind goes with the directory.
            "TMPDIR": str(directory),
            "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={directory}",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return START_TIMEOUT

    def close(self, patience: float = 20.0) -> None:
        """End the program by closing its standard input, or kill it with the processes that it has started."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        process.stdout.close()
