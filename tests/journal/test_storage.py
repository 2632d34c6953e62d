"""Law J3: where a journal may be, what Spark and Arrow call it, and the options of `Journal`."""

from __future__ import annotations

import os
import pickle
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from asyncio_operator.errors import ConfigurationError
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.options import Journal, locate
from asyncio_operator.journal.storage import ArrowFiles, Disk, Place, open_place


@pytest.mark.parametrize(
    ("path", "kind", "for_spark", "for_arrow"),
    [
        ("/data/a", "local", "file:///data/a", "/data/a"),
        ("//data//a/../b/", "local", "file:///data/b", "/data/b"),
        ("a b/ü", "local", f"file://{os.getcwd()}/a b/ü", f"{os.getcwd()}/a b/ü"),
        (Path("/x:y/z"), "local", "file:///x:y/z", "/x:y/z"),
        ("file:///data/a", "local", "file:///data/a", "/data/a"),
        ("file:/data/a", "local", "file:///data/a", "/data/a"),
        ("file://localhost/data/a", "local", "file:///data/a", "/data/a"),
        ("s3://bucket/a/b/", "s3", "s3a://bucket/a/b", "bucket/a/b"),
        ("s3a://bucket/a?region=eu-central-1", "s3", "s3a://bucket/a", "bucket/a"),
        ("S3N://bucket/a", "s3", "s3a://bucket/a", "bucket/a"),
        ("gs://bucket/a", "gs", "gs://bucket/a", "bucket/a"),
        ("hdfs://name:8020/a", "hdfs", "hdfs://name:8020/a", "/a"),
        ("hdfs:///a", "hdfs", "hdfs:///a", "/a"),
    ],
)
def test_J3_each_scheme_has_a_name_for_spark_and_one_for_arrow(
    path: str | Path, kind: str, for_spark: str, for_arrow: str
) -> None:
    location = locate(path)
    assert (location.kind, location.for_spark, location.path) == (kind, for_spark, for_arrow)


class Full(Disk):
    """A disk without room: a part of a file is written."""

    def write(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data[:3])
        raise OSError(28, "No space left on device")


class FullOfArrow(ArrowFiles):
    write = Full.write


@pytest.mark.parametrize("files", [Full(), FullOfArrow(pafs.LocalFileSystem, renames=True)])
def test_J4_a_write_that_fails_leaves_nothing_that_takes_room(tmp_path: Path, files: Disk) -> None:
    place = Place(str(tmp_path), files)
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            place.put("x", b"12345")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "it must be a local or mounted path"),
        (None, "it must be a local or mounted path"),
        ("a\0b", "it must be a local or mounted path"),
        ("~/journal", "expanduser"),
        ("dbfs:/journal", "on Databricks, write /dbfs/"),
        ("abfss://c@a.dfs.core.windows.net/x", "has the scheme 'abfss'; a journal is on"),
        ("s3://key:s3cret@bucket/a", "not shown, it may hold a secret.*AWS_ACCESS_KEY_ID"),
        ("s3:///a", "the name of the bucket is missing"),
        ("s3://bucket", "needs a directory of its own"),
        ("s3://bucket/a//b", "needs a directory of its own"),
        ("s3://bucket/a?endpoint=x", "did you mean 'endpoint_override'"),
        ("s3://bucket/a?access_key=k", "has the option 'access_key'"),
        ("hdfs://name/a?x=1", "takes none"),
        ("file://server/a", "with three slashes"),
    ],
)
def test_J3_other_paths_are_refused_with_what_to_write(path: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Journal(path)
    assert "s3cret" not in str(caught.value)


def test_J3_the_options_of_a_journal_are_checked_and_travel() -> None:
    journal = Journal("rel/x", flush_every=timedelta(seconds=2), expire_after=60, keep_missing=False, identity="v2")
    assert journal.path == f"{os.getcwd()}/rel/x", "workers have another directory"
    assert (journal.flush_every, journal.expire_after) == (2.0, 60.0)
    assert pickle.loads(pickle.dumps(journal)) == journal
    assert len({journal, Journal(journal.path, identity="v2", flush_every=2, expire_after=60, keep_missing=False)}) == 1
    with pytest.raises(AttributeError):
        journal.path = "other"  # type: ignore[misc]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"flush_every": 0}, "flush_every is 0; it must be more than 0 seconds"),
        ({"flush_every": None}, "flush_every is None"),
        ({"expire_after": -1}, "expire_after is -1"),
        ({"identity": " "}, "identity is ' '; it must be a text, such as 'customers-v2', or None"),
        ({"keep_missing": 1}, "keep_missing is 1; it must be True or False"),
    ]
    for options, says in wrong:
        with pytest.raises(ConfigurationError, match=says):
            Journal("/x", **options)


@pytest.fixture(params=["local", "remote with renames", "remote without"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    path = str(tmp_path / "a" / "journal")
    if request.param == "local":
        return Place(path)
    os.makedirs(path + "/_journal")
    return Place(path, ArrowFiles(pafs.LocalFileSystem, renames=request.param == "remote with renames"))


def test_J4_a_place_puts_lists_opens_and_deletes_whole_files(place: Place, tmp_path: Path) -> None:
    assert place.list("nothing") == []
    place.put("x.parquet", b"12345")
    place.put("_journal/y.json", b"")
    (tmp_path / "a" / "journal" / ".hidden.part").write_bytes(b"half")
    assert [entry[:2] for entry in place.list()] == [("x.parquet", 5)]
    assert [entry[:2] for entry in place.list("_journal")] == [("y.json", 0)]
    assert place.directories() == ["_journal"]
    with place.open("x.parquet") as file:
        assert file.read() == b"12345"
    place.delete("x.parquet")
    place.delete("x.parquet")
    assert place.list() == []
    with pytest.raises(FileNotFoundError):
        place.open("x.parquet")
    assert sorted(path.name for path in tmp_path.rglob("*.part")) == [".hidden.part"]
    left = [".hidden.part"] if place._files.renames else []
    assert [part.name for part in place.parts()] == left


def test_J4_files_of_a_local_place_have_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        Place(str(tmp_path)).put("x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_J3_a_place_that_cannot_be_reached_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(JournalError, match=r"hdfs://name:8020/a cannot be reached.*libhdfs.*CLASSPATH"):
        open_place(locate("hdfs://name:8020/a")).list()
    monkeypatch.delattr(pafs, "GcsFileSystem")
    with pytest.raises(ConfigurationError, match=r"needs pyarrow\.fs\.GcsFileSystem"):
        open_place(locate("gs://bucket/a")).list()
