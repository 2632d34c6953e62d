"""Writes answers as they come: one writer for one attempt of a task, with a thread of its own.

`append` only adds to a list, so that an event loop may call it. The thread makes a file of what waits when the oldest
of it is `flush_every` old, or when it is enough for a file. An answer is acknowledged when its file is whole under its
name. What waits is bounded: `has_room` says when to stop asking. A write that fails is repeated, each time with the
same bytes under the same name, until `patience` is over; then the writer has failed, and so must its task, because its
answers would be paid for again.

Law J2: a kill costs the answers that were not acknowledged, which came less than `flush_every` and one write before.
"""

from __future__ import annotations

import errno
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import KW_ONLY, dataclass
from typing import Any

import pyarrow as pa

from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.journal.answers import AnswerBatch, to_table
from asyncio_operator.journal.files import check_description
from asyncio_operator.journal.format import ANSWERS, MEGABYTE, Description, JournalError, encode, file_name
from asyncio_operator.journal.storage import Place, beside, goes_on

logger = logging.getLogger("asyncio_operator.journal")

FULL_FILE = 16 * MEGABYTE
"""Bytes in memory that are written without waiting: about two megabytes of a file, where a request costs little."""

MOST_WAITING = 64 * MEGABYTE
"""Bytes from which there is no room. A place that takes less than a worker gets holds that worker up, and no more."""

PATIENCE = 60.0  # Seconds for which a failing write is repeated. Object stores recover from an overload in less.

ABSENT = 5.0
"""Seconds for which a journal that is not there is looked for: a mounted place may show late what the driver made."""

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR)

_LASTING_WORDS = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
"""In messages of Arrow's S3 client."""


@dataclass(eq=False)
class JournalWriter:
    """Writes the answers of one attempt of a task."""

    place: Place
    description: Description  # As `open_journal` gives it.
    _: KW_ONLY
    # Makes columns of what was appended, without answers that are not kept, in the writer's thread.
    columns: Callable[[list[Any]], Iterable[AnswerBatch]] = iter
    label: str = ""  # Begins the text of `_run`, such as application, stage, partition and attempt.
    flush_every: float = 1.0  # Seconds that an answer waits at most.
    expire_after: float | None = None  # Seconds that an answer lives; None: for ever.
    # Called in the writer's thread when there is room again after there was none, and when it fails.
    on_room: Callable[[], object] | None = None
    patience: float = PATIENCE  # Seconds for which a failing write is repeated.
    # Seconds before the first repetition; each further pause is twice as long, up to 5 seconds.
    first_pause: float = 0.1
    clock: Clock = wall  # As the next two: see `WorkerProcess`. Files have times in their names.
    monotonic: Clock = monotonic
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    # Called after each `append` instead of starting a thread; sees that `write_due` is called when `due_in` says.
    drive: Callable[[JournalWriter], object] | None = None

    def __post_init__(self) -> None:
        self._id = self.new_id()[:16]
        # The text of `_run`; no other writer has it.
        self.run = f"{self.label}-{self._id}" if self.label else self._id
        # Entered for each call: a condition takes twice as long as its lock.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # Guarded by the lock.
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._writing_bytes = 0
        self._oldest = 0.0
        self._appended = 0
        self.acknowledged = 0  # Answers whose files are whole: the first this many that were appended.
        self._stalled = False
        self._closed = False
        self._aborted = False
        self.error: JournalError | None = None  # Of a write that has failed for good; None so far.
        self._ended: Future[None] | None = None
        self._files = 0

    # -- any thread

    def append(self, answers: Sequence[Any], count: int, nbytes: int) -> int:
        """Take answers over, as `columns` takes them; they are written soon. It does not wait. `count` is their number,
        `nbytes` about the memory that they take. Returns the number of answers that were appended by now; they are all
        acknowledged when `acknowledged` is as much. JournalError if an earlier write has failed for good; StateError if
        the writer is closed."""
        with self._lock:
            self.check()
            if self._closed:
                raise StateError("the writer of a journal is closed")
            self._appended += count
            is_first = not self._waiting
            if is_first:
                self._oldest = self.monotonic()
            self._waiting += answers
            self._waiting_bytes += nbytes
            if self.drive is not None:
                self.drive(self)
            elif self._ended is None:
                # If the machine has no thread left, the next answers try again, and `close` writes without one.
                self._ended = beside(self._run, name=f"journal {self.run}")
            elif is_first or self._waiting_bytes >= FULL_FILE:
                self._changed.notify_all()
            return self._appended

    @property
    def has_room(self) -> bool:
        """Whether more answers should be asked for. It is asked before each call. Those that come all the same are
        taken, until a write has failed for good.

        While a write is repeated there is no room: what is answered then is lost if the place stays as it is.
        """
        waiting = self._waiting_bytes + self._writing_bytes
        return waiting < MOST_WAITING and not self._stalled and self.error is None

    def close(self, timeout: float | None = None) -> None:
        """Write everything that was appended, and end the thread. Another call does nothing. After `timeout` seconds
        the rest is given up; None: as long as the place does not hang. JournalError if a write has failed for good, or
        the time was over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ended = self._ended
        if ended is None:
            self.write_due()
        else:
            try:
                for seconds in goes_on(ended.done, self.place) if timeout is None else [timeout]:
                    wait([ended], seconds)
                if not ended.done():
                    raise self.place.hanging(seconds)
            except JournalError:
                # Nothing waits for the write that runs, and what waits behind it is not written.
                with self._changed:
                    self._aborted = True
                    self._waiting.clear()
                    self._waiting_bytes = 0
                    self._changed.notify_all()
                raise
            ended.result()
        self.check()

    def check(self) -> None:
        """Raise the error of a write that has failed for good."""
        if self.error is not None:
            raise self.error

    # -- the writer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while (left := self.due_in()) is None or left > 0:
                    if self._closed and not self._waiting:
                        return
                    # A condition cannot wait for all of the seconds that `flush_every` may have.
                    self._changed.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
            if not self.write_due():
                return

    def due_in(self) -> float | None:
        """Seconds until `write_due` has something to write, 0 for now; None: that is not known before a change."""
        if not self._waiting:
            return None
        early = self._closed or self._waiting_bytes >= FULL_FILE
        return 0.0 if early else max(0.0, self._oldest + self.flush_every - self.monotonic())

    def write_due(self) -> bool:
        """Write what is due. Whether more may follow. Called by one thread at a time."""
        with self._changed:
            if self.due_in() != 0:
                return True
            answers, size, last = self._waiting, self._waiting_bytes, self._appended
            self._waiting, self._waiting_bytes, self._writing_bytes = [], 0, size
        error = self._write(answers, self.acknowledged)
        with self._changed:
            had_room = self.has_room
            self._writing_bytes, self._stalled = 0, False
            if error is None:
                self.acknowledged = last
            else:
                self.error = error
                self._waiting.clear()
                self._waiting_bytes = 0
            self._changed.notify_all()
        if self.on_room is not None and (error is not None or (not had_room and self.has_room)):
            try:
                self.on_room()
            except Exception as problem:
                # Such as a loop that was closed. The answers are written all the same.
                logger.warning("on_room of the journal %s failed: %s", self.place.shown, describe_error(problem))
        return error is None and not self._aborted

    def _write(self, answers: list[Any], first: int) -> JournalError | None:
        """Make a file of answers, whose first one has this number in its run, and put it into its place, again and
        again while that fails. Returns the error that ends the writer, or None."""
        try:
            tables = []
            for batch in self.columns(answers):
                if len(batch.keys):
                    table = to_table(batch, self.description, run=self.run, first=first, expire_after=self.expire_after)
                    tables.append(table)
                first += len(batch.keys)
            if not tables:
                return None
            data = encode(pa.concat_tables(tables))
        except Exception as error:
            failed = JournalError(f"answers do not fit the journal {self.place.shown}: {describe_error(error)}")
            failed.__cause__ = error
            return failed
        name = file_name(ANSWERS, round(self.clock() * 1000), self._id, self._files)
        self._files += 1
        begun, pause = self.monotonic(), self.first_pause
        while True:
            try:
                check_description(self.place, self.description)
                self.place.put(name, data)
                return None
            except Exception as error:
                spent = self.monotonic() - begun
                patience = min(self.patience, ABSENT) if isinstance(error, FileNotFoundError) else self.patience
                if spent + pause > patience or is_lasting(error):
                    failed = JournalError(
                        f"the journal {self.place.shown} cannot be written, after {spent:.1f} seconds "
                        f"({describe_error(error)}): answers would be paid for again, so the task ends; check the "
                        "place, and start the job again: it goes on from the journal"
                    )
                    failed.__cause__ = error
                    return failed
            self._stalled = True
            with self._changed:
                if self._changed.wait_for(lambda: self._aborted, pause):
                    return JournalError(f"the writer of the journal {self.place.shown} was aborted")
            pause = min(2 * pause, 5.0)


def is_lasting(error: Exception) -> bool:
    """Whether a write will fail again until a person changes something."""
    if isinstance(error, JournalError) or not isinstance(error, OSError | pa.ArrowException):
        return True
    return error.errno in _LASTING if getattr(error, "errno", None) else any(w in str(error) for w in _LASTING_WORDS)
