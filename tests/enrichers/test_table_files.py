"""Law X12 of `TableEnricher`: a path never gives rows from a file that is not part of the table, nor nulls for a key
that a file does not have."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from asyncio_operator import ConfigurationError, EnricherError, ResultError
from enrichers.table import TableEnricher


def write(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def rows(source: Any, **options: Any) -> dict[Any, Any]:
    """All rows by key, read as a job does: the schema first, then the rows."""
    enricher = TableEnricher(source, **{"key": "id"} | options)
    enricher.schema()
    found = enricher._table(enricher._read([]), [])
    return {row.pop("id"): row for row in found.to_pylist()}


LOGS = [
    "_delta_log/00.json",
    "_spark_metadata/0",
    ".hoodie/hoodie.properties",
    "_delta_log/_last_checkpoint",
    "metadata/v1.metadata.json",
    "metadata/00001-6f0c.metadata.json.gz",
    "schema/schema-0",
    "_journal/description-0a1b.json",
]


@pytest.mark.parametrize("uri", ["", "file://"])
@pytest.mark.parametrize("part", ["", "day=1", "day=1/part.parquet", "day=1/hour=2"])
@pytest.mark.parametrize("log", LOGS)
def test_X12_a_table_that_is_more_than_its_files_is_refused(tmp_path: Path, log: str, part: str, uri: str) -> None:
    table = tmp_path / "table"
    write(table / "day=1/part.parquet", id=[1], v=[2])
    write(table / "day=1/hour=2/part.parquet", id=[1], v=[2])
    (table / log).parent.mkdir()
    (table / log).write_text("{}")
    with pytest.raises(ConfigurationError) as raised:
        TableEnricher(uri + str(table / part), key="id").schema()
    text = str(raised.value)
    reader = "spark.read.parquet(path)" if "_spark" in log else "deltalake.DeltaTable(path)"
    for way in ("TableEnricher(", reader, "a table that Spark reads", "a list of the files", str(table)):
        assert way in text
    assert ("deltalake" in text) == ("_spark" not in log)


@pytest.mark.parametrize("log", LOGS)
def test_X12_a_directory_above_such_a_table_is_refused(tmp_path: Path, log: str) -> None:
    write(tmp_path / "orders/a.parquet", id=[1], v=[2])
    (tmp_path / "orders" / log).parent.mkdir()
    (tmp_path / "orders" / log).write_text("{}")
    with pytest.raises(ConfigurationError, match="says which files are part of it"):
        TableEnricher(tmp_path, key="id").schema()


@pytest.mark.parametrize("where", ["table", "table/day=1"])
def test_X12_the_log_is_looked_for_behind_a_link(tmp_path: Path, where: str) -> None:
    write(tmp_path / "table/day=1/a.parquet", id=[1], v=[2])
    (tmp_path / "table/_delta_log").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / where)
    with pytest.raises(ConfigurationError, match="Delta"):
        TableEnricher(tmp_path / "link", key="id").schema()


async def test_X12_a_log_is_found_with_a_given_schema_too_and_when_it_came_later(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], v=[2])
    enricher = TableEnricher(tmp_path, key="id", schema="id long, v long")
    enricher.schema()
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ConfigurationError, match="Delta"):
        await enricher.open()
    await enricher.close()
    with pytest.raises(ConfigurationError, match="Delta"):
        TableEnricher(tmp_path, key="id", schema="id long, v long").schema()


def test_X12_a_list_of_files_is_taken_as_given(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], v=[2])
    write(tmp_path / "b.parquet", id=[1], v=[3])
    write(tmp_path / "x=1/_c.parquet", id=[4], v=[5])
    (tmp_path / "_delta_log").mkdir()
    assert rows([tmp_path / "b.parquet", str(tmp_path / "x=1/_c.parquet")]) == {1: {"v": 3}, 4: {"v": 5}}
    for wrong, says in (([tmp_path], "is a directory"), ([tmp_path / "a.parquet"] * 2, "twice"), ([], "source is")):
        with pytest.raises(ConfigurationError, match=says):
            rows(wrong)
    with pytest.raises(ConfigurationError, match=r"cannot be read: FileNotFoundError.*gone\.parquet"):
        rows([tmp_path / "gone.parquet"])


def test_X12_an_ordinary_directory_of_the_name_of_a_log_is_none(tmp_path: Path) -> None:
    write(tmp_path / "metadata/table/a.parquet", id=[1], v=[2])
    write(tmp_path / "schema/table/a.parquet", id=[1], v=[2])
    (tmp_path / "metadata/readme.json").write_text("")
    assert rows(tmp_path / "metadata/table") == rows(tmp_path / "schema/table") == {1: {"v": 2}}


def test_X12_files_that_spark_leaves_out_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], v=[2])
    hidden = ["_temporary/0/b.parquet", ".b.parquet", "_b.parquet", "_old/_delta_log/b.parquet", "b.parquet._COPYING_"]
    for name in (
        *hidden,
        "part-0.inprogress.17",
        "part-0.inprogress",
        "_metadata",
        "_common_metadata",
        ".dir/b.parquet",
    ):
        write(tmp_path / name, id=[1], v=[9])
    for name in ("_SUCCESS", ".a.parquet.crc", "a.parquet.crc", "_started_17"):
        (tmp_path / name).write_text("x")
    assert rows(tmp_path) == {1: {"v": 2}}


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"v": [2]}, r"b\.parquet' has no column 'id', which is a key"),
        ({"ID": [2], "v": [2]}, r"b\.parquet' has no column 'id', which is a key; did you mean 'ID'"),
        ({"id": ["2"], "v": [2]}, r"column 'id' is bigint in file .*a\.parquet' and string in .*b\.parquet'.*schema="),
        ({"id": [2], "v": [2.5]}, r"column 'v' is bigint in file .*a\.parquet' and double in .*b\.parquet'"),
        ({"id": [2], "V": [2]}, r"column 'v' is spelt 'V' in some files"),
        (None, r"b\.parquet'"),
    ],
)
@pytest.mark.parametrize("names", [("a.parquet", "b.parquet"), ("sub=1/a.parquet", "sub=2/b.parquet")])
async def test_X12_a_file_unlike_the_others_is_an_error_that_names_it(
    tmp_path: Path, second: Any, says: str, names: tuple[str, str]
) -> None:
    write(tmp_path / names[0], id=[1], v=[1])
    write(tmp_path / names[1], **(second or {"id": [1]}))
    if second is None:
        (tmp_path / names[1]).write_bytes(b"PAR1half")
    with pytest.raises(ConfigurationError, match=says) as raised:
        TableEnricher(tmp_path, key="id").schema()
    assert str(raised.value).count("TableEnricher(") == 1
    with pytest.raises((ConfigurationError, EnricherError), match=says):
        await TableEnricher(tmp_path, key="id").open()


def test_X12_columns_that_only_some_files_have_are_null_in_the_others(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", id=[1], v=[1])
    write(tmp_path / "a.parquet", more=["x"], id=[2], v=[2])
    write(tmp_path / "c.parquet", v=pa.array([3], pa.int64()), id=[3])
    assert rows(tmp_path) == {1: {"more": None, "v": 1}, 2: {"more": "x", "v": 2}, 3: {"more": None, "v": 3}}
    assert rows(tmp_path, columns=["more"]) == {1: {"more": None}, 2: {"more": "x"}, 3: {"more": None}}


def test_X12_a_declared_type_holds_for_each_file(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[1], v=[1], unused=[1])
    write(tmp_path / "b.parquet", id=[2], v=[2.5], unused=["x"])
    assert rows(tmp_path, schema="id long, v double") == {1: {"v": 1.0}, 2: {"v": 2.5}}
    whole = TableEnricher(str(tmp_path), "id", schema="id long, v long")
    assert whole.try_lookup(1) == {"v": 1}
    with pytest.raises(ResultError, match=r"key 2: column 'v'.*truncated"):
        whole.try_lookup(2)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["1", "01", "-3"], [1, 1, -3]),
        (["1", "2147483648"], [1, 2147483648]),
        (["1", "abc"], ["1", "abc"]),
        (["1", "01", "abc"], ["1", "01", "abc"]),
        (["2024-01-31", "__HIVE_DEFAULT_PARTITION__"], [datetime.date(2024, 1, 31), None]),
        (["2024-02-30", "2024-1"], ["2024-02-30", "2024-1"]),
        (["2024-01-01", "1"], ["2024-01-01", "1"]),
        (["a%20b%3D", "Z%25"], ["a b=", "Z%"]),
    ],
)
def test_X12_columns_of_directories_are_those_that_spark_infers(tmp_path: Path, values: Any, found: Any) -> None:
    for number, value in enumerate(values):
        write(tmp_path / f"_x={value}/a.parquet", id=[number])
    assert rows(tmp_path) == {number: {"_x": value} for number, value in enumerate(found)}
    assert rows(tmp_path, schema="id long, _x string")[0] == {
        "_x": str(values[0]).replace("%20", " ").replace("%3D", "=")
    }


@pytest.mark.parametrize(
    ("value", "kind"), [("1e20", "decimal(38,17)"), ("0012.5", "decimal(10,2)"), ("inf", "double")]
)
def test_X12_a_number_of_a_directory_keeps_its_value(tmp_path: Path, value: str, kind: str) -> None:
    write(tmp_path / f"x={value}/a.parquet", id=[1])
    assert rows(tmp_path, schema=f"id long, x {kind}")[1]["x"] == Decimal(value)


UNKNOWN = ("1.5", "1e5", "2024-01-01 10:00:00", "12:00", "NaN", "9" * 20, " 1", "%C3%A9", "")
TOO_LARGE = {
    "1e30": "decimal(38,18)",
    "3e38": "decimal(38,0)",
    "1.005": "decimal(10,2)",
    "1e999": "double",
    "1e300": "float",
    "-1e39": "float",
    "300": "tinyint",
}


@pytest.mark.parametrize(
    ("names", "schema", "says"),
    [
        ([], None, "has no Parquet file"),
        (["x=1/a.parquet", "b.parquet"], None, "name different columns"),
        (["x=1/a.parquet", "y=1/b.parquet"], None, "name different columns"),
        (["a.parquet", "backup/b.parquet"], None, "'backup', whose name is not name=value"),
        (["x=__HIVE_DEFAULT_PARTITION__/a.parquet"], None, "all null"),
        (["v=2/a.parquet"], None, "in the name of its directory"),
        *(([f"x={value}/a.parquet"], None, "schema=|function as the source|not name=value") for value in UNKNOWN),
        *(
            ([f"x={value}/a.parquet"], kind, f"the directory x={value} is no {re.escape(kind)}, the type of column 'x'")
            for value, kind in TOO_LARGE.items()
        ),
    ],
)
def test_X12_directories_that_spark_does_not_read_as_one_table_or_type_are_refused(
    tmp_path: Path, names: list[str], schema: str | None, says: str
) -> None:
    for number, name in enumerate(names):
        write(tmp_path / name, id=[number], v=[1])
    with pytest.raises(ConfigurationError, match=says):
        rows(tmp_path, schema=schema and f"id long, v long, x {schema}")


def test_X12_a_column_of_directories_may_be_a_key(tmp_path: Path) -> None:
    write(tmp_path / "day=1/a.parquet", v=[7])
    write(tmp_path / "day=2/a.parquet", v=[8])
    enricher = TableEnricher(tmp_path, key="day")
    assert enricher.key_schema() == pa.schema({"day": pa.int32()})
    assert enricher._table(enricher._read([]), []).to_pylist() == [{"v": 7, "day": 1}, {"v": 8, "day": 2}]
    with pytest.raises(ConfigurationError, match="no time zone"):
        rows(tmp_path, key="v", schema="v long, day timestamp")


def test_X12_a_pattern_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"glob\.glob"):
        TableEnricher(tmp_path / "*.parquet", key="id").schema()
