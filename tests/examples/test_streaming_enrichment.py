"""The streaming example: every flight once, with its plane, and a line per micro-batch; started again it goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.examples.programs import frames, run_example

pytestmark = pytest.mark.spark

ROWS = 25_000


def test_every_flight_is_written_once_with_its_plane(play: Callable[..., str], tmp_path: Path) -> None:
    write(play, tmp_path / "kept")


def write(run: Callable[..., str], kept: Path) -> pd.DataFrame:
    """Run the example; what it must write."""
    said = run("streaming_enrichment", "--rows", str(ROWS), "--directory", str(kept)).splitlines()
    batches = [re.findall(r"[\d,.]+", line) for line in said if re.fullmatch(r" +\d+( +[\d,.]+){8}", line)]
    figures = [[int(number.replace(",", "")) for number in batch[:6]] for batch in batches]
    assert [batch[:2] for batch in figures] == [[0, 20_000], [1, 5_000]]
    data = frames()
    expected = expected_flights(data, ROWS)
    found = int(expected["plane_seats"].notna().sum())
    assert sum(batch[2] for batch in figures) == found
    assert sum(batch[3] for batch in figures) == ROWS - found
    assert [batch[5] > 0 for batch in figures] == [False, True], "only the second micro-batch finds planes in the cache"
    assert any(line.startswith(f"25,000 rows, {found:,} found, {ROWS - found:,} missing, 0 failed") for line in said)
    assert said[-1] == f"25,000 flights are in the output, {kept / 'out'}"
    check_output(kept, expected)
    return expected


# That a query goes on from its checkpoint is in tests/spark/test_streaming.py; this takes two Sparks.
@pytest.mark.faults
@pytest.mark.timeout(240)
def test_a_second_start_adds_only_what_is_new(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    expected = write(run_example, kept)

    # One more file, as if it had come while the program was not there.
    more = pq.read_table(kept / "in" / "0002.parquet")
    more = more.set_column(0, "number", pa.array(range(ROWS, ROWS + more.num_rows)))
    pq.write_table(more, kept / "in" / "0003.parquet")
    said = run_example("streaming_enrichment", "--directory", str(kept)).splitlines()
    assert said[-1] == f"30,000 flights are in the output, {kept / 'out'}"
    assert any(line.startswith("5,000 rows: ") for line in said)
    again = expected[expected["number"] >= 20_000].assign(number=lambda rows: rows["number"] + 5_000)
    check_output(kept, pd.concat([expected, again]))


def check_output(kept: Path, expected: pd.DataFrame) -> None:
    written = pq.read_table(kept / "out").sort_by("number")
    table = pa.Table.from_pandas(expected, preserve_index=False)
    assert written.num_rows == table.num_rows
    assert written.select(table.schema.names).cast(table.schema).equals(table)


def expected_flights(data: dict[str, pd.DataFrame], rows: int) -> pd.DataFrame:
    planes = data["planes"][["tailnum", "year", "manufacturer", "model", "seats"]]
    planes.columns = ["tailnum", *(f"plane_{name}" for name in planes.columns[1:])]
    flights = data["flights"].head(rows).assign(number=range(rows))
    return flights.merge(planes, on="tailnum", how="left")
