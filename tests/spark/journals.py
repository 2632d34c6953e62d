"""A source that counts its calls in a file, and what tests of journals ask about it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from enrichers import FunctionEnricher

SCHEMA = "x long, t string"


class Calls:
    """The calls of the sources that it makes, in any process. Each key that ends in 3 is a miss, one that ends in 4 has
    two rows, and one that ends in 9 fails if the source does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.new()

    def new(self) -> list[str]:
        """The keys that were asked since the last time, in order."""
        keys = sorted(self._path.read_text().split("\n")[:-1]) if self._path.exists() else []
        self._path.write_text("")
        return keys

    def counted(self) -> Counter[str]:
        """How often each key was asked since the last time."""
        return Counter(self.new())

    def source(self, fails: bool = False, schema: str = SCHEMA) -> FunctionEnricher:
        path = str(self._path)

        def note(key: Any) -> None:
            with open(path, "a") as file:
                file.write(f"{key}\n")

        async def look_up(key: Any) -> Any:
            note(key)
            last = str(key)[-1]
            if fails and last == "9":
                raise ValueError("enough")
            if last == "3":
                return None
            row = {"x": len(str(key)), "t": f"t{key}"}
            return [row, {"x": 0}] if last == "4" else row

        return FunctionEnricher(look_up, schema)


def rows(frame: DataFrame) -> list[Any]:
    """The rows, in order, without the status column."""
    names = [name for name in frame.columns if name != "how"]
    return [tuple(row[name] for name in names) for row in frame.collect()]


def sources(frame: DataFrame) -> Counter[tuple[str, str, int, bool]]:
    """The rows by status, source and attempts, and whether there is a latency."""
    found = (row["how"] for row in frame.select("how").collect())
    return Counter((how.status, how.source, how.attempts, how.latency_ms is not None) for how in found)
