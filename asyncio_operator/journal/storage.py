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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from asyncio_operator.errors import ConfigurationError, describe_error
from asyncio_operator.journal.format import JournalError
from asyncio_operator.journal.options import GS, HDFS, LOCAL, S3, Location


class Entry(NamedTuple):
    """A file of a listing: its name and its size in bytes."""

    name: str
    size: int


class Place(Protocol):
    """A directory of a journal. Any thread may use it. Names may have one directory in them, as in "_journal/x".

    Every method raises OSError if the place does not answer, and FileNotFoundError if a file is not there.

    Attributes:
        shown: names it in messages.
    """

    shown: str

    def list(self, directory: str = "") -> list[Entry]:
        """The files whose names do not begin with a point. An absent directory is empty. It may lag behind."""
        ...

    def directories(self) -> Sequence[str]:
        """The names of the directories in it, without those that begin with a point."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a file. It is whole, and stays, when this returns; otherwise it is whole or absent."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """A file to read from, at any position."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file. An absent one is no error."""
        ...

    def parts(self) -> Iterator[tuple[str, float]]:
        """What killed writers have left beside the files: names, and when they were written, in seconds since the
        epoch. Writers that live have such files too."""
        ...


class Disk:
    """The calls of the operating system that a `LocalPlace` makes, so that a model of a disk can take their place."""

    def write(self, path: str, data: bytes) -> None:
        """Write a new file, and sync it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with memoryview(data) as left:
                done = 0
                while done < len(left):
                    done += os.write(descriptor, left[done:])
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: str, to: str) -> None:
        """Give a file another name, in the same directory."""
        os.rename(path, to)

    def sync_directory(self, path: str) -> None:
        """Make what was renamed in it stay."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it, if they are absent."""
        if not os.path.isdir(path):
            above = os.path.dirname(path)
            self.make_directory(above)
            with suppress(FileExistsError):
                os.mkdir(path)
            self.sync_directory(above)

    def list(self, path: str) -> list[Entry]:
        """The files in a directory."""
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        entries.append(Entry(entry.name, entry.stat().st_size))
        return entries

    def directories(self, path: str) -> Sequence[str]:
        """The names of the directories in a directory."""
        with os.scandir(path) as found:
            return [entry.name for entry in found if entry.is_dir()]

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since the epoch."""
        return os.stat(path).st_mtime

    def open(self, path: str) -> pa.NativeFile:
        """A file to read."""
        return pa.OSFile(path)

    def delete(self, path: str) -> None:
        """Delete a file."""
        os.unlink(path)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Mounted object stores and some network file systems cannot sync a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise


class LocalPlace:
    """A directory of this machine, or one that is mounted: synced files, made visible by a rename.

    Args:
        path: absolute. The directory need not exist.
        disk: the calls of the operating system.
    """

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.shown = path
        self._path = path
        self._disk = disk or Disk()

    def list(self, directory: str = "") -> list[Entry]:
        try:
            found = self._disk.list(os.path.join(self._path, directory))
        except FileNotFoundError:
            return []
        return [entry for entry in found if not entry.name.startswith(".")]

    def directories(self) -> Sequence[str]:
        try:
            return _visible(self._disk.directories(self._path))
        except FileNotFoundError:
            return []

    def put(self, name: str, data: bytes) -> None:
        directory, base = os.path.split(os.path.join(self._path, name))
        part = os.path.join(directory, f".{base}.{uuid.uuid4().hex[:8]}.part")
        try:
            try:
                self._disk.write(part, data)
            except FileNotFoundError:
                self._disk.make_directory(directory)
                self._disk.write(part, data)
            self._disk.rename(part, os.path.join(directory, base))
        except OSError:
            # On a full disk the parts of all attempts would take the room that a person makes.
            with suppress(OSError):
                self._disk.delete(part)
            raise
        self._disk.sync_directory(directory)

    def open(self, name: str) -> pa.NativeFile:
        return self._disk.open(os.path.join(self._path, name))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.delete(os.path.join(self._path, name))

    def parts(self) -> Iterator[tuple[str, float]]:
        with suppress(FileNotFoundError):
            for entry in self._disk.list(self._path):
                if _is_part(entry.name):
                    with suppress(FileNotFoundError):
                        yield entry.name, self._disk.modified(os.path.join(self._path, entry.name))


class RemotePlace:
    """A directory on one of Arrow's file systems.

    Args:
        connect: makes the file system; called at the first use.
        path: of the directory, as the file system names it.
        shown: names it in messages.
        renames: whether files become visible by a rename. Otherwise a put is atomic.
    """

    def __init__(self, connect: Callable[[], pafs.FileSystem], path: str, shown: str, *, renames: bool) -> None:
        self.shown = shown
        self._connect = connect
        self._path = path
        self._renames = renames
        self._connected: pafs.FileSystem | None = None

    @property
    def _files(self) -> pafs.FileSystem:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def list(self, directory: str = "") -> list[Entry]:
        where = f"{self._path}/{directory}".rstrip("/")
        found = self._files.get_file_info(pafs.FileSelector(where, allow_not_found=True))
        files = [Entry(one.base_name, one.size) for one in found if one.type == pafs.FileType.File]
        return [entry for entry in files if not entry.name.startswith(".")]

    def directories(self) -> Sequence[str]:
        found = self._files.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        return _visible(one.base_name for one in found if one.type == pafs.FileType.Directory)

    def put(self, name: str, data: bytes) -> None:
        path = f"{self._path}/{name}"
        if not self._renames:
            self._write(path, data)
            return
        directory, _, base = path.rpartition("/")
        part = f"{directory}/.{base}.{uuid.uuid4().hex[:8]}.part"
        self._files.create_dir(directory)
        try:
            self._write(part, data)
            self._files.move(part, path)
        except OSError:
            with suppress(OSError):
                self._files.delete_file(part)
            raise

    def _write(self, path: str, data: bytes) -> None:
        # All bytes are there before the first is sent: a stream that is left in the middle would be closed, and
        # closing it makes what was sent visible.
        file = self._files.open_output_stream(path)
        file.write(data)
        file.close()

    def open(self, name: str) -> pa.NativeFile:
        return self._files.open_input_file(f"{self._path}/{name}")

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self._path}/{name}")

    def parts(self) -> Iterator[tuple[str, float]]:
        if self._renames:
            for one in self._files.get_file_info(pafs.FileSelector(self._path, allow_not_found=True)):
                if one.type == pafs.FileType.File and _is_part(one.base_name):
                    yield one.base_name, one.mtime_ns / 1e9


def _visible(names: Iterable[str]) -> Sequence[str]:
    return [name for name in names if not name.startswith(".")]


def _is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(".part")


def open_place(location: Location) -> Place:
    """The place of a location. Nothing is asked of it yet."""
    if location.kind == LOCAL:
        return LocalPlace(location.path)
    connect = {S3: _s3, GS: _gs, HDFS: _hdfs}[location.kind]
    return RemotePlace(lambda: connect(location), location.path, str(location), renames=location.kind == HDFS)


def _s3(location: Location) -> pafs.FileSystem:
    def make(kind: Callable[..., pafs.FileSystem]) -> pafs.FileSystem:
        try:
            # A file of one part is then one request.
            return kind(allow_delayed_open=True, **location.options)
        except TypeError:  # Arrow 18 does not have it.
            return kind(**location.options)

    return _made("S3FileSystem", location, make)


def _gs(location: Location) -> pafs.FileSystem:
    return _made("GcsFileSystem", location, lambda kind: kind())


def _hdfs(location: Location) -> pafs.FileSystem:
    host, _, port = location.authority.partition(":")
    return _made("HadoopFileSystem", location, lambda kind: kind(host or "default", int(port or 0)))


_NEEDS = {
    S3: "check the region, and the credentials in the environment (AWS_ACCESS_KEY_ID) or of the machine's role",
    GS: "check GOOGLE_APPLICATION_CREDENTIALS, or the service account of the machine",
    HDFS: "it needs libhdfs: set JAVA_HOME, HADOOP_HOME (or ARROW_LIBHDFS_DIR), and CLASSPATH to what "
    "`hadoop classpath --glob` prints, on the driver and on every executor, as with spark.executorEnv.CLASSPATH",
}


def _made(name: str, location: Location, make: Callable[[Any], pafs.FileSystem]) -> pafs.FileSystem:
    kind = getattr(pafs, name, None)
    if kind is None:
        raise ConfigurationError(
            f"the journal {location} needs pyarrow.fs.{name}, which this build of pyarrow {pa.__version__} does not "
            "have: install pyarrow from its wheels, or use another place"
        )
    try:
        return make(kind)
    except Exception as error:
        # Arrow's message for HDFS has a line for each place where it has looked.
        first = describe_error(error).partition("\n")[0]
        raise JournalError(f"the journal {location} cannot be reached ({first}); {_NEEDS[location.kind]}") from error


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
    asked = beside(lambda: ask(watched))
    for _ in goes_on(asked.done, lambda: watched.progress):
        wait([asked], ONE_READ)
    if not asked.done():
        raise watched.hanging()
    return asked.result()


def start_thread(work: Callable[[], None], name: str) -> None:
    """Do work on a thread of its own, which does not hold up the end of the process, as that of an executor would."""
    threading.Thread(target=work, name=name, daemon=True).start()


def beside(work: Callable[[], T], start: Callable[[Callable[[], None], str], None] = start_thread) -> Future[T]:
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

    start(run, "asyncio-operator-journal")
    return done


def goes_on(is_done: Callable[[], bool], progress: Callable[[], int]) -> Iterator[None]:
    """Yields when the caller should wait: until all is done, or there was no progress in one wait."""
    before = -1
    while not is_done() and before != progress():
        before = progress()
        yield


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
