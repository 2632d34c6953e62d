"""Whole files on a file system or an object store: the only module of a journal that opens anything.

A `Place` writes a file whole or not at all. Where there is a rename (local disks, HDFS), the bytes go into a name that
readers ignore, and the rename makes them visible; on local disks the file is synced before the rename and its directory
after it. On object stores a put is atomic, and there is no rename. `docs/journal-format.md` has the laws.

A place may hang, such as a network file system whose server is gone, and a thread that waits for it cannot be ended. So
work on a place is done `beside` its caller, in a thread of its own, and the caller waits only as long as the work goes
on (`goes_on`). Law J2: a reader or writer that gives up fails its task or its job, because answers that it cannot read
or write would be paid for again.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from asyncio_operator.errors import ConfigurationError, describe_error
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.options import GS, HDFS, LOCAL, S3, Location

HANGS_AFTER = 120.0
"""Seconds that one use of a place takes at most, with the repetitions of Arrow's clients: a list, a write, or the
reading of a file. A place that is not used again for so long hangs, and is given up."""


class Entry(NamedTuple):
    """A file of a listing, or a directory: its name, its size in bytes, and when it was last written, in seconds since
    the epoch."""

    name: str
    size: int
    modified: float = 0.0
    is_directory: bool = False


class ArrowFiles:
    """The calls of a file system that a `Place` makes, so that a model of a disk can take their place. `connect` makes
    the file system at the first use. If it `renames`, files become visible by a rename; otherwise a write is atomic."""

    def __init__(self, connect: Callable[[], pafs.FileSystem], *, renames: bool) -> None:
        self._connect = connect
        self.renames = renames

    @cached_property
    def _files(self) -> pafs.FileSystem:
        return self._connect()

    def write(self, path: str, data: bytes) -> None:
        """Write a new file."""
        # All bytes are there before the first is sent: a stream that is left in the middle would be closed, and
        # closing it makes what was sent visible.
        file = self._files.open_output_stream(path)
        file.write(data)
        file.close()

    def rename(self, path: str, to: str) -> None:
        """Give a file another name in the same directory, and make it stay."""
        self._files.move(path, to)

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they are absent."""
        self._files.create_dir(path)

    def list(self, path: str) -> list[Entry]:
        """What is in a directory; nothing if it is absent."""
        found = self._files.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [
            Entry(one.base_name, one.size or 0, (one.mtime_ns or 0) / 1e9, one.type == pafs.FileType.Directory)
            for one in found
        ]

    def open(self, path: str) -> pa.NativeFile:
        """A file to read."""
        return self._files.open_input_file(path)

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._files.delete_file(path)


class Disk(ArrowFiles):
    """A disk of this machine, or one that is mounted: what is written is synced, which Arrow does not do."""

    def __init__(self) -> None:
        super().__init__(pafs.LocalFileSystem, renames=True)

    def write(self, path: str, data: bytes) -> None:
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            _sync(file.fileno())

    def rename(self, path: str, to: str) -> None:
        os.rename(path, to)
        _sync_directory(os.path.dirname(to))

    def make_directory(self, path: str) -> None:
        if not os.path.isdir(path):
            above = os.path.dirname(path)
            self.make_directory(above)
            with suppress(FileExistsError):
                os.mkdir(path)
            _sync_directory(above)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Mounted object stores and some network file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


class Place:
    """A directory of a journal. Any thread may use it. Names may have one directory in them, as in "_journal/x".

    Every method raises OSError if the place does not answer, and FileNotFoundError if a file is not there.
    """

    def __init__(self, path: str, files: ArrowFiles | None = None, shown: str | None = None) -> None:
        self.shown = shown or path  # Names it in messages.
        self.progress = 0  # Grows within `HANGS_AFTER` seconds while the place is used, or the place hangs.
        self._path = path  # As the files name it: on a disk it is absolute. The directory need not exist.
        self._files = files or Disk()  # What it is on: without one a disk of this machine, or one that is mounted.

    def list(self, directory: str = "") -> list[Entry]:
        """The files whose names do not begin with a point. An absent directory is empty. It may lag behind."""
        return [one for one in self._entries(directory) if not one.is_directory and not one.name.startswith(".")]

    def directories(self) -> Iterable[str]:
        """The names of the directories in it, without those that begin with a point."""
        return [one.name for one in self._entries() if one.is_directory and not one.name.startswith(".")]

    def parts(self) -> Iterable[Entry]:
        """What killed writers have left beside the files. Writers that live have such files too."""
        if not self._files.renames:
            return []
        return [one for one in self._entries() if one.name.startswith(".") and one.name.endswith(".part")]

    def _entries(self, directory: str = "") -> Iterable[Entry]:
        self.progress += 1
        return self._files.list(f"{self._path}/{directory}".rstrip("/"))

    def put(self, name: str, data: bytes) -> None:
        """Write a file. It is whole, and stays, when this returns; otherwise it is whole or absent."""
        self.progress += 1
        files, path = self._files, f"{self._path}/{name}"
        if not files.renames:
            files.write(path, data)
            return
        directory, _, base = path.rpartition("/")
        part = f"{directory}/.{base}.{uuid.uuid4().hex[:8]}.part"
        try:
            try:
                files.write(part, data)
            except FileNotFoundError:
                files.make_directory(directory)
                files.write(part, data)
            files.rename(part, path)
        except OSError:
            # On a full disk the parts of all attempts would take the room that a person makes.
            with suppress(OSError):
                files.delete(part)
            raise

    def open(self, name: str) -> pa.NativeFile:
        """A file to read from, at any position."""
        self.progress += 1
        return self._files.open(f"{self._path}/{name}")

    def delete(self, name: str) -> None:
        """Delete a file. An absent one is no error."""
        self.progress += 1
        with suppress(FileNotFoundError):
            self._files.delete(f"{self._path}/{name}")

    def hanging(self, seconds: float) -> JournalError:
        """The error for a place that did not go on for these seconds."""
        return JournalError(
            f"the journal {self.shown} did not answer for {seconds:g} seconds: its answers, and those that are not in "
            "a file yet, would be paid for again; check the place, and start the job again"
        )


def open_place(location: Location) -> Place:
    """The place of a location. Nothing is asked of it yet."""
    if location.kind == LOCAL:
        return Place(location.path)
    files = ArrowFiles(lambda: _connect(location), renames=location.kind == HDFS)
    return Place(location.path, files, str(location))


_NEEDS = {
    S3: "check the region, and the credentials in the environment (AWS_ACCESS_KEY_ID) or of the machine's role",
    GS: "check GOOGLE_APPLICATION_CREDENTIALS, or the service account of the machine",
    HDFS: "it needs libhdfs: set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR), and CLASSPATH to what "
    "`hadoop classpath --glob` prints, on the driver and on every executor, as with spark.executorEnv.CLASSPATH",
}


_CLIENTS = {S3: "S3FileSystem", GS: "GcsFileSystem", HDFS: "HadoopFileSystem"}


def _connect(location: Location) -> pafs.FileSystem:
    name = _CLIENTS[location.kind]
    client = getattr(pafs, name, None)
    if client is None:
        raise ConfigurationError(
            f"the journal {location} needs pyarrow.fs.{name}, which this build of pyarrow {pa.__version__} does not "
            "have: install pyarrow from its wheels, or use another place"
        )
    try:
        if location.kind == HDFS:
            host, _, port = location.authority.partition(":")
            return client(host or "default", int(port or 0))
        if location.kind == S3:
            with suppress(TypeError):  # Arrow 18 does not have it: a file of one part is then one request.
                return client(allow_delayed_open=True, **location.options)
        return client(**location.options)
    except Exception as error:
        # Arrow's message for HDFS has a line for each place where it has looked.
        first = describe_error(error).partition("\n")[0]
        raise JournalError(f"the journal {location} cannot be reached ({first}); {_NEEDS[location.kind]}") from error


T = TypeVar("T")
Item = TypeVar("Item")


def start_thread(work: Callable[[], None], name: str) -> None:
    """Do work on a thread of its own, which does not hold up the end of the process, as that of an executor would."""
    threading.Thread(target=work, name=name, daemon=True).start()


def beside(
    work: Callable[[], T],
    start: Callable[[Callable[[], None], str], None] = start_thread,
    name: str = "asyncio-operator-journal",
) -> Future[T]:
    """The result of a function that uses a place, which runs on a thread of its own, or as `start` starts it."""
    done: Future[T] = Future()
    # It cannot be cancelled.
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    start(run, name)
    return done


def goes_on(done: Callable[[], bool], place: Place) -> Iterator[float]:
    """Yields the seconds to wait for, again and again, until all is done. Raises JournalError if the place hangs."""
    before = -1
    while not done():
        if before == place.progress:
            raise place.hanging(HANGS_AFTER)
        before = place.progress
        yield HANGS_AFTER


def ask_place(place: Place, ask: Callable[[Place], T]) -> T:
    """The result of a function that reads a place, or its error. Raises JournalError if the place hangs."""
    asked = beside(lambda: ask(place))
    for seconds in goes_on(asked.done, place):
        wait([asked], seconds)
    return asked.result()


def in_parallel(work: Callable[[Item], T], items: Iterable[Item], threads: int) -> list[T]:
    """The results of a function for items, in their order, or its first error."""
    everything = list(items)
    waiting = iter(range(len(everything)))
    results: dict[int, T] = {}

    def some() -> None:
        # The interpreter makes a step of this iterator in one piece.
        for number in waiting:
            results[number] = work(everything[number])

    runs = [beside(some) for _ in range(min(threads, len(everything)))]
    wait(runs)
    for run in runs:
        run.result()
    return [results[number] for number in range(len(everything))]
