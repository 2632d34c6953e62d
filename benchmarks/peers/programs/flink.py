"""Flink's Java operator, of the jars that PyFlink brings: compiles `flink/Peer.java`, and passes tasks on to it.

The class needs a `javac` and a `java` of the same version, 17 or newer. Its jars hold no asynchronous client for
PostgreSQL.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pyflink  # type: ignore[import-not-found]

from benchmarks.peers.functions import PATIENCE
from benchmarks.peers.task import Answer, Task, serve

SOURCE = Path(__file__).resolve().parents[1] / "flink" / "Peer.java"
JARS = Path(pyflink.__file__).parent / "lib" / "*"


def measure(flink: subprocess.Popen[str], task: Task) -> Answer:
    """Have a task done."""
    if task.work == "postgres":
        return Answer(cannot="no asynchronous client for PostgreSQL among its jars")
    assert flink.stdin is not None
    assert flink.stdout is not None
    mode = "ordered" if task.ordered else "unordered"
    service = task.url or "-", task.keys or "-", round(task.patience or PATIENCE), str(task.count).lower()
    print(task.work, task.rows, mode, task.capacity, *service, file=flink.stdin, flush=True)
    line = flink.stdout.readline().strip()
    if not line[:1].isdigit():
        return Answer(error=line or "the JVM has ended")
    seconds, found, counts = line.split(" ", 2)
    return Answer(float(seconds), None, int(found), json.loads(counts))


def main() -> None:
    """Compile, start the JVM, and serve."""
    with tempfile.TemporaryDirectory(prefix="peers-flink-") as classes:
        subprocess.run(["javac", "-nowarn", "-cp", str(JARS), "-d", classes, str(SOURCE)], check=True)
        command = ["java", "-Xmx1g", "-cp", f"{classes}:{JARS}", "Peer"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as flink:
            serve(lambda task: measure(flink, task))


if __name__ == "__main__":
    main()
