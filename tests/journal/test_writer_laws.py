"""Law J2: when answers are written, what is acknowledged, and what a place that fails costs."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from asyncio_operator.checks import LONGEST
from asyncio_operator.errors import StateError
from asyncio_operator.journal import storage
from asyncio_operator.journal import writer as writers
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.storage import Place, ask_place, in_parallel
from asyncio_operator.journal.writer import JournalWriter
from tests.journal.helpers import Watched, append, batch, described, read


@pytest.fixture
def place(tmp_path: Path) -> Watched:
    return Watched(str(tmp_path))


class Gate(Place):
    """A place whose files are written, and opened behind "held", when its gate is open."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.open_gate = threading.Event()
        self.reached = threading.Event()
        self.held = ""

    def put(self, name: str, data: bytes) -> None:
        self.reached.set()
        assert self.open_gate.wait(30)
        super().put(name, data)

    def open(self, name: str) -> pa.NativeFile:
        assert name != self.held or self.open_gate.wait(30)
        return super().open(name)


def ended(writer: JournalWriter) -> None:
    """Wait for the thread of a writer that was given up: it writes on, into the next test otherwise."""
    for thread in threading.enumerate():
        if thread.name == f"journal {writer.run}":
            thread.join(30)
            assert not thread.is_alive()


def wait_until_acknowledged(writer: JournalWriter, answers: int) -> None:
    deadline = time.monotonic() + 30
    while writer.acknowledged < answers:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_J2_answers_are_written_within_flush_every_without_being_asked(place: Watched) -> None:
    description = described(place)
    writer = JournalWriter(place, description, flush_every=0.02)
    for number in range(3):
        last = append(writer, batch({number: ["a"]}))
        wait_until_acknowledged(writer, last)
    writer.close()
    assert read(place, description, [0, 1, 2]) == {0: ["a"], 1: ["a"], 2: ["a"]}


def test_J2_answers_that_come_all_the_time_are_written_within_flush_every_too(place: Watched) -> None:
    """An answer that came since must not put off the write of those before it."""
    description = described(place)
    writer = JournalWriter(place, description, flush_every=0.2)
    deadline = time.monotonic() + 5
    key = 0
    while not writer.acknowledged:
        assert time.monotonic() < deadline
        append(writer, batch({key: ["a"]}))
        key += 1
        time.sleep(0.005)
    writer.close()


def test_J2_close_writes_what_waits_and_says_so(place: Watched) -> None:
    description = described(place)
    writer = JournalWriter(place, description, flush_every=3600)
    append(writer, batch({1: ["a"]}))
    append(writer, batch({2: ["b"]}))
    writer.close()
    writer.close()
    assert writer.acknowledged == 2
    assert place.puts == 2, "one description, and one file for both batches"
    with pytest.raises(StateError, match="is closed"):
        append(writer, batch({3: ["c"]}))


def test_J2_a_writer_without_answers_writes_nothing_and_starts_no_thread(place: Watched) -> None:
    description = described(place)
    threads = threading.active_count()
    writer = JournalWriter(place, description)
    assert threading.active_count() == threads
    writer.close()
    assert [path.name for path in Path(place.shown).iterdir()] == ["_journal"]


def test_J2_a_place_that_fails_for_good_ends_the_writer_with_what_to_do(place: Watched) -> None:
    description = described(place)
    place.errors = [OSError(errno.ENOSPC, "no space left")] * 100
    roomy = threading.Event()
    writer = JournalWriter(place, description, flush_every=3600, patience=0.01, first_pause=0.002, on_room=roomy.set)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError, match=r"cannot be written.*no space left.*the task ends; check the place"):
        writer.close()
    assert roomy.wait(30), "who waits for room must learn of it"
    assert writer.acknowledged == 0
    for call in (lambda: append(writer, batch({2: ["b"]})), writer.close):
        with pytest.raises(JournalError, match="no space left"):
            call()


@pytest.mark.parametrize(
    "error",
    [PermissionError(errno.EACCES, "denied"), OSError("AWS Error ACCESS_DENIED during PutObject"), TypeError("a bug")],
)
def test_J2_an_error_that_lasts_is_not_repeated(place: Watched, error: Exception) -> None:
    description = described(place)
    place.errors = [error] * 2
    writer = JournalWriter(place, description, flush_every=3600)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError):
        writer.close()
    assert len(place.errors) == 1


def test_J2_what_waits_is_bounded_and_room_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MOST_WAITING", 10_000)
    monkeypatch.setattr(writers, "FULL_FILE", 4_000)
    described(Place(str(tmp_path)))
    place, roomy = Gate(str(tmp_path)), threading.Event()
    writer = JournalWriter(place, described(place), flush_every=3600, on_room=roomy.set)
    key = 0
    while writer.has_room:
        key += 1
        assert key < 100
        append(writer, batch({key: ["x" * 1000]}))
    assert not roomy.wait(timeout=0.01)
    place.open_gate.set()
    assert roomy.wait(timeout=30)
    assert writer.has_room
    writer.close()
    assert writer.acknowledged == key


def test_J2_a_listener_that_fails_stops_no_writing(
    place: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writers, "MOST_WAITING", 1)

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    description = described(place)
    writer = JournalWriter(place, description, flush_every=0.001, on_room=closed)
    for key in range(3):
        wait_until_acknowledged(writer, append(writer, batch({key: ["a"]})))
    writer.close()
    assert read(place, description, [0, 1, 2]) == {0: ["a"], 1: ["a"], 2: ["a"]}
    assert "on_room of the journal" in caplog.text


def test_J2_abort_ends_the_thread_and_close_with_a_limit_says_what_is_lost(tmp_path: Path) -> None:
    described(Place(str(tmp_path)))
    place = Gate(str(tmp_path))
    writer = JournalWriter(place, described(place), flush_every=0.001)
    append(writer, batch({1: ["a"]}))
    assert place.reached.wait(30)
    with pytest.raises(JournalError, match=r"for 0\.01 seconds"):
        writer.close(timeout=0.01)
    place.open_gate.set()
    ended(writer)


class Full(Gate):
    """A place whose first write fails, and whose further ones wait."""

    is_full = True

    def put(self, name: str, data: bytes) -> None:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.ENOSPC, "No space left on device")
        super().put(name, data)


def test_J2_there_is_no_room_while_a_write_is_repeated(tmp_path: Path) -> None:
    place = Full(str(tmp_path))
    description = described(Place(str(tmp_path)))
    told = threading.Event()
    writer = JournalWriter(place, description, flush_every=0.001, first_pause=0.001, on_room=told.set)
    assert writer.has_room
    append(writer, batch({1: ["a"]}))
    assert place.reached.wait(30)
    assert not writer.has_room, "what is answered now may be lost"
    place.open_gate.set()
    assert told.wait(30)
    assert writer.has_room
    writer.close()
    assert read(place, description, [1]) == {1: ["a"]}


def test_J2_a_place_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HANGS_AFTER", 0.1)
    described(Place(str(tmp_path)))
    place = Gate(str(tmp_path))
    place.held = "x"
    with pytest.raises(JournalError, match=r"did not answer for 0\.1 seconds.*; check the place, and start") as caught:
        ask_place(place, lambda place: place.open("x"))
    assert place.shown in str(caught.value)
    writer = JournalWriter(place, described(place), flush_every=0.001)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(JournalError, match=r"did not answer for 0\.1 seconds.*; check the place"):
        writer.close()
    place.open_gate.set()
    ended(writer)


def test_J2_files_are_synced_before_they_get_their_name_and_leave_no_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(str(tmp_path / "j"))
    description = described(place)
    steps: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(descriptor: int) -> None:
        steps.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")
        fsync(descriptor)

    def renamed(path: str, to: str) -> None:
        assert os.path.basename(path).startswith(".")
        steps.append("rename")
        rename(path, to)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    writer = JournalWriter(place, description)
    append(writer, batch({1: ["a"]}))
    writer.close()
    assert steps == ["file", "rename", "directory"]
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.parametrize("seconds", [1e10, LONGEST])
def test_J2_the_longest_flush_every_loses_nothing(place: Watched, seconds: float) -> None:
    description = described(place)
    writer = JournalWriter(place, description, flush_every=seconds)
    append(writer, batch({1: ["a"]}))
    writer.close()
    assert writer.acknowledged == 1
    assert read(place, description, [1]) == {1: ["a"]}


@pytest.mark.parametrize("again", ["no", "the same", "another"])
def test_J2_a_journal_that_was_deleted_is_not_made_again_by_a_writer(tmp_path: Path, again: str) -> None:
    place = Place(str(tmp_path / "journal"))
    description = described(place)
    writer = JournalWriter(place, description, flush_every=0.001, patience=0.01, first_pause=0.002)
    wait_until_acknowledged(writer, append(writer, batch({1: ["a"]})))
    shutil.rmtree(tmp_path / "journal")
    if again != "no":
        described(place, "long" if again == "the same" else "text")
    append(writer, batch({2: ["b"]}))
    if again == "the same":
        writer.close()
        assert read(place, description, [1, 2]) == {2: ["b"]}
        return
    with pytest.raises(JournalError, match="is not there: the journal was deleted, or this machine does not see"):
        writer.close()
    assert (tmp_path / "journal").exists() == (again == "another")
    assert not [*(tmp_path / "journal").glob("answers-*")]


def test_J2_a_bug_that_ends_the_thread_of_a_writer_fails_its_task(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(place, described(place), flush_every=0.001)
    monkeypatch.setattr(writer, "write_due", lambda: 1 // 0)
    append(writer, batch({1: ["a"]}))
    with pytest.raises(ZeroDivisionError):
        writer.close()


def test_J2_a_machine_without_a_free_thread_loses_no_answer(place: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    description = described(place)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = JournalWriter(place, description, flush_every=3600)
    with pytest.raises(RuntimeError, match="can't start"):
        append(writer, batch({1: ["a"]}))
    writer.close()
    assert writer.acknowledged == 1
    assert read(place, description, [1]) == {1: ["a"]}


def test_J2_a_place_that_goes_on_is_waited_for_and_its_error_is_that_of_the_caller(
    place: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "HANGS_AFTER", 0.2)
    place.put("x", b"x")

    def slowly(place: Place) -> int:
        for _ in range(20):
            threading.Event().wait(0.02)
            place.open("x").close()
        return place.progress

    assert ask_place(place, slowly) >= 20
    with pytest.raises(FileNotFoundError):
        ask_place(place, lambda place: place.open("y"))


def test_many_files_are_asked_for_side_by_side_and_the_first_error_is_raised() -> None:
    barrier = threading.Barrier(4)

    def work(item: int) -> int:
        barrier.wait(10)
        return item * item

    assert in_parallel(work, range(8), 4) == [one * one for one in range(8)]
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda item: 1 // item, [3, 2, 0, 1, 5], 2)
    assert in_parallel(work, [], 4) == []
