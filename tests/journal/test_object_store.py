"""Laws J2, J3, J4 and J7 on a server that speaks S3, and on one that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from asyncio_operator.journal.files import list_journal
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.options import Journal
from asyncio_operator.journal.storage import Place, open_place
from asyncio_operator.journal.writer import JournalWriter
from tests.journal.helpers import NOW, append, batch, compact, described, read, write
from tests.moto_store import MotoStore
from tests.object_store import KEY_ID, SECRET, FailingServer, ObjectStore


@pytest.fixture(scope="module", params=[ObjectStore, pytest.param(MotoStore, marks=pytest.mark.faults)])
def server(request: pytest.FixtureRequest) -> Iterator[FailingServer]:
    with request.param() as server:
        yield server


@pytest.fixture
def store(server: FailingServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    server.objects.clear()
    yield server
    server.delay = 0.0
    server.refuse = server.cut = server.lose = 0


@pytest.fixture
def place(store: FailingServer) -> Place:
    return open_place(Journal(store.url("answers")).location)


def files(store: FailingServer) -> list[str]:
    return [name for name in store.objects if name.endswith(".parquet")]


def test_J3_a_journal_on_an_object_store_is_written_read_and_compacted(place: Place, store: FailingServer) -> None:
    description = described(place)
    assert described(place) == description
    write(place, description, batch({1: ["a"], 2: []}), batch({3: ["x", "y"]}))
    expected = {1: ["a"], 2: [], 3: ["x", "y"]}
    assert read(place, description, [1, 2, 3, 4]) == expected
    assert compact(place, description, grace=0, clock=lambda: NOW).files_deleted == 2
    assert len(files(store)) == 1
    assert read(place, description, [1, 2, 3, 4]) == expected


def test_J3_a_listing_of_many_pages_is_whole(place: Place, store: FailingServer) -> None:
    described(place)
    for number in range(2500):
        store.objects[f"answers/answers-{number:013d}-{'a' * 16}-000000.parquet"] = b""
    assert len(list_journal(place).files) == 2500


def test_J4_a_file_of_several_parts_appears_whole(place: Place, store: FailingServer) -> None:
    import os

    description = described(place)
    values = [os.urandom(1 << 20).hex() for _ in range(12)]
    write(place, description, batch(dict(enumerate([value] for value in values))))
    assert len(files(store)) == 1
    assert store.requests["POST"] >= 2, "an upload in parts"
    assert read(place, description, [3, 11]) == {3: [values[3]], 11: [values[11]]}


@pytest.mark.skipif(pa.__version__ < "19", reason="Arrow 18 opens a file with a request of its own")
def test_J2_one_small_file_is_one_request(place: Place, store: FailingServer) -> None:
    description = described(place)
    write(place, description, batch({1: ["a"]}))
    store.requests.clear()
    write(place, description, batch({2: ["b"]}))
    assert dict(store.requests) == {"PUT": 1, "HEAD": 1}, "the file, and whether the journal is still there"


@pytest.mark.parametrize("failure", ["refuse", "cut", "lose"])
@pytest.mark.parametrize("times", [1, pytest.param(7, marks=pytest.mark.faults)])
def test_J2_a_store_that_fails_for_a_while_loses_and_doubles_nothing(
    place: Place, store: FailingServer, failure: str, times: int
) -> None:
    description = described(place)
    setattr(store, failure, times)
    writer = JournalWriter(place, description, flush_every=3600, first_pause=0.01)
    append(writer, batch({1: ["a", "b"], 2: []}))
    writer.close()
    assert getattr(store, failure) == 0
    assert writer.acknowledged == 2
    assert len(files(store)) == 1
    assert read(place, description, [1, 2]) == {1: ["a", "b"], 2: []}


def test_J2_a_put_that_is_always_cut_leaves_nothing_and_ends_the_writer(place: Place, store: FailingServer) -> None:
    description = described(place)
    store.cut = 1000
    writer = JournalWriter(place, description, flush_every=3600, patience=0.1, first_pause=0.01)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError, match=r"the journal s3a://bucket/answers cannot be written"):
        writer.close()
    assert writer.acknowledged == 0
    assert files(store) == []


def test_J2_a_missing_bucket_is_not_taken_for_a_failure_that_passes(store: FailingServer) -> None:
    place = open_place(Journal(store.url("answers").replace("bucket", "other")).location)
    described_elsewhere = described(open_place(Journal(store.url("answers")).location))
    writer = JournalWriter(place, described_elsewhere, flush_every=3600, first_pause=6)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError, match=r"s3a://other/answers cannot be written, after [0-2]\.\d.*is not there"):
        writer.close()


def test_J2_a_wrong_secret_is_refused_and_not_repeated(
    place: Place, store: FailingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    description = described(place)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    writer = JournalWriter(open_place(Journal(store.url("answers")).location), description, flush_every=3600)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError, match=r"after [0-2]\.\d seconds.*ACCESS_DENIED"):
        writer.close()
    assert files(store) == []
