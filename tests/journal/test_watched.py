"""Law J2, for reading: a place that hangs is an error, and one that is slow is not."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from asyncio_operator.journal import storage
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.storage import Place, ask_place, in_parallel


class Hanging(Place):
    """A place whose files cannot be opened while the gate is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.gate = threading.Event()

    def open(self, name: str) -> pa.NativeFile:
        assert self.gate.wait(30)
        return super().open(name)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hanging:
    monkeypatch.setattr(storage, "HANGS_AFTER", 0.2)
    (tmp_path / "x").write_bytes(b"x")
    return Hanging(str(tmp_path))


def test_J2_a_place_that_hangs_is_given_up_by_its_reader(place: Hanging) -> None:
    with pytest.raises(JournalError, match=r"did not answer for 0\.2 seconds.*; check the place, and start") as caught:
        ask_place(place, lambda place: place.open("x"))
    assert place.shown in str(caught.value)
    place.gate.set()


def test_J2_a_place_that_goes_on_is_waited_for(place: Hanging) -> None:
    place.gate.set()

    def slowly(place: Place) -> int:
        for _ in range(20):
            threading.Event().wait(0.02)
            place.open("x").close()
        return place.progress

    assert ask_place(place, slowly) >= 20


def test_J2_an_error_of_the_place_is_that_of_the_caller(place: Hanging) -> None:
    place.gate.set()
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
