"""Reading from a place that may hang, such as a network file system whose server is gone: it ends with one clear error.

A thread that waits for such a place cannot be ended. So a reader uses a thread for it, and looks whether
the place goes on: each use of it counts. The writer has the same rule for its files (`writer.ONE_WRITE`).

Law J2: a reader that gives up fails its task or its job, because answers that it cannot read would be paid for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import pyarrow as pa

from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.storage import Entry, Place

ONE_READ = 120.0
"""Seconds that one use of a place takes at most: a list, or the reading of a file. It is as long as a writer waits."""

T = TypeVar("T")
Item = TypeVar("Item")


class WatchedPlace:
    """A `Place` that counts how often it is used.

    Attributes:
        progress: grows within `ONE_READ` seconds while the place is read, or the place hangs.
    """

    def __init__(self, place: Place) -> None:
        self.shown = place.shown
        self.progress = 0
        self._place = place

    def list(self, directory: str = "") -> list[Entry]:
        self.progress += 1
        return self._place.list(directory)

    def directories(self) -> Sequence[str]:
        self.progress += 1
        return self._place.directories()

    def put(self, name: str, data: bytes) -> None:
        self.progress += 1
        self._place.put(name, data)

    def open(self, name: str) -> pa.NativeFile:
        self.progress += 1
        return self._place.open(name)

    def delete(self, name: str) -> None:
        self.progress += 1
        self._place.delete(name)

    def parts(self) -> Iterator[tuple[str, float]]:
        self.progress += 1
        return self._place.parts()

    def hanging(self) -> JournalError:
        """The error for a place that hangs."""
        return JournalError(
            f"the journal {self.shown} did not answer for {ONE_READ:g} seconds while it was read, and its answers "
            "would be paid for again: check the place, and start the job again"
        )


def ask_place(place: Place, ask: Callable[[WatchedPlace], T]) -> T:
    """The result of a function that reads a place, or its error.

    Raises:
        JournalError: the place hangs.
    """
    watched = WatchedPlace(place)
    asked = _Asked(lambda: ask(watched))
    progress = -1
    while progress != watched.progress:
        progress = watched.progress
        asked.thread.join(ONE_READ)
        if not asked.thread.is_alive():
            return asked.result()
    raise watched.hanging()


def in_parallel(work: Callable[[Item], T], items: Iterable[Item], threads: int) -> list[T]:
    """The results of a function for items, in their order, or its first error. The threads do not hold up the end of
    the process, as those of an executor would if the place hangs."""
    everything = list(items)
    waiting = iter(range(len(everything)))
    results: dict[int, T] = {}

    def some() -> None:
        # The interpreter makes a step of this iterator in one piece.
        for number in waiting:
            results[number] = work(everything[number])

    runs = [_Asked(some) for _ in range(min(threads, len(everything)))]
    for run in runs:
        run.thread.join()
    for run in runs:
        run.result()
    return [results[number] for number in range(len(everything))]


class _Asked(Generic[T]):
    """A function that runs in a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._outcome: T | None = None
        self._error: BaseException | None = None
        self._work = work
        self.thread = threading.Thread(target=self._run, name="asyncio-operator-journal", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Of a function that has ended."""
        if self._error is not None:
            raise self._error
        return self._outcome  # type: ignore[return-value]
