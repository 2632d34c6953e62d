"""The tasks and answers of a program: a line of JSON each, over its standard input and output.

Law: output of libraries never mixes with the answers; it goes to the standard error. A failed work is an answer too,
and the program goes on. This module imports only the standard library, because every environment must run it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

SERVED = ("http", "q13", "texts", "storm", "faults")
"""The works that call an HTTP service."""


@dataclass(frozen=True, slots=True)
class Task:
    """One measurement.

    Attributes:
        side: which way of the program's.
        work: "at_once", "fixed", "skew", "postgres", or one of `SERVED`.
        rows: how many; the keys are ``range(rows)``, or the first of those in the file `keys`.
        ordered: whether results must leave in the order of the rows.
        capacity: calls at once.
        batch: rows of an Arrow batch, in Spark.
        check: whether this is the turn that counts rows, in place of the clock.
        count: whether the answers are counted one by one, into `Answer.answers`.
        dsn, planes: of "postgres": the server, and the table of planes in it.
        keys, table, column: a JSON file with the keys, a Parquet file with the rows whose keys they are, and the
            column of the keys in it; "" for rows that are numbers.
        url, rate: of `SERVED`: the service, and the requests a second that it shall get; 0: as many as it takes.
        patience: of `SERVED`: the seconds after which a request has failed; 0: the client's default.
    """

    side: str
    work: str
    rows: int
    ordered: bool = True
    capacity: int = 100
    batch: int = 10_000
    check: bool = False
    count: bool = False
    dsn: str = ""
    planes: str = ""
    keys: str = ""
    table: str = ""
    column: str = "id"
    url: str = ""
    rate: int = 0
    patience: float = 0.0

    def values(self) -> list[str | int | None]:
        """The keys."""
        if not self.keys:
            return list(range(self.rows))
        with open(self.keys, encoding="utf-8") as file:
            keys: list[str | int | None] = json.load(file)
        return keys[: self.rows]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task.

    Attributes:
        seconds: that it took.
        rows, found: that came out, and those with a result; None where they were not counted.
        answers: how often each answer came out, "" for a row without one; None where they were not counted.
        cannot: why the program has no way to do the task; "" if it has.
        error: what went wrong; "" if nothing did.
    """

    seconds: float = 0.0
    rows: int | None = None
    found: int | None = None
    answers: dict[str, int] | None = None
    cannot: str = ""
    error: str = ""


def serve(measure: Callable[[Task], Answer]) -> None:
    """Do tasks until the standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = measure(Task(**json.loads(line)))
        except Exception as error:
            traceback.print_exc()
            answer = Answer(error=f"{type(error).__name__}: {error}".splitlines()[0])
        # `asdict` would copy a Counter item by item, into one of pairs.
        fields = {field.name: getattr(answer, field.name) for field in dataclasses.fields(answer)}
        print(json.dumps(fields), file=answers, flush=True)
