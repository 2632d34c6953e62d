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
from collections.abc import Callable

import pyarrow as pa

from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import StateError, describe_error
from asyncio_operator.journal.answers import AnswerBatch, to_table
from asyncio_operator.journal.files import check_description
from asyncio_operator.journal.format import ANSWERS, MEGABYTE, Description, JournalError, encode, file_name
from asyncio_operator.journal.storage import Place, goes_on

logger = logging.getLogger("asyncio_operator.journal")

FULL_FILE = 16 * MEGABYTE
"""Bytes in memory that are written without waiting: about two megabytes of a file, where a request costs little."""

MOST_WAITING = 64 * MEGABYTE
"""Bytes from which there is no room. A place that takes less than a worker gets holds that worker up, and no more."""

PATIENCE = 60.0
"""Seconds for which a failing write is repeated. Object stores recover from an overload in less."""

ABSENT = 5.0
"""Seconds for which a journal that is not there is looked for: a mounted place may show late what the driver made."""

ONE_WRITE = 60.0
"""Seconds that one attempt to write takes at most, with the repetitions of Arrow's clients. After the patience and this
time without a file that was written or failed, the place hangs, and is given up."""

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR)

_LASTING_WORDS = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
"""In messages of Arrow's S3 client."""


class JournalWriter:
    """Writes the answers of one attempt of a task.

    Args:
        place: of the journal.
        description: of the journal, as `open_journal` gives it.
        label: begins the text of `_run`, such as application, stage, partition and attempt.
        flush_every: seconds that an answer waits at most.
        expire_after: seconds that an answer lives; None: for ever.
        on_room: called in the writer's thread when there is room again after there was none, and when it fails.
        patience: seconds for which a failing write is repeated.
        first_pause: seconds before the first repetition; each further pause is twice as long, up to 5 seconds.
        clock: gives the times in the names of files.
        monotonic: see `clock.monotonic`.
        new_id: returns 32 hexadecimal digits that no other call returns.
        drive: called after each `append` instead of starting a thread; it has to see that `write_due` is called when
            `due_in` says so.

    Attributes:
        run: the text of `_run`; no other writer has it.
    """

    def __init__(
        self,
        place: Place,
        description: Description,
        *,
        label: str = "",
        flush_every: float = 1.0,
        expire_after: float | None = None,
        on_room: Callable[[], None] | None = None,
        patience: float = PATIENCE,
        first_pause: float = 0.1,
        clock: Clock = wall,
        monotonic: Clock = monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        drive: Callable[[JournalWriter], object] | None = None,
    ) -> None:
        self._place = place
        self._description = description
        self._id = new_id()[:16]
        self.run = f"{label}-{self._id}" if label else self._id
        self._flush_every = flush_every
        self._expire_after = expire_after
        self._on_room = on_room
        self._patience = patience
        self._first_pause = first_pause
        self._clock = clock
        self._now = monotonic
        self._drive = drive
        self._changed = threading.Condition()
        # Guarded by `_changed`.
        self._waiting: list[Callable[[], AnswerBatch]] = []
        self._waiting_bytes = 0
        self._writing_bytes = 0
        self._oldest = 0.0
        self._appended = 0
        self._acknowledged = 0
        self._stalled = False
        self._closed = False
        self._aborted = False
        self._error: JournalError | None = None
        self._thread: threading.Thread | None = None
        self._files = 0

    # -- any thread

    def append(self, columns: Callable[[], AnswerBatch], count: int, nbytes: int) -> int:
        """Take answers over; they are written soon. It does not wait.

        Args:
            columns: returns the answers in columns, without those that are not kept. It is called when
                they are written, in the writer's thread.
            count: their number.
            nbytes: about the memory that they take.

        Returns:
            The number of answers that were appended by now. They are all acknowledged when `acknowledged` is as much.

        Raises:
            JournalError: an earlier write has failed for good.
            StateError: the writer is closed.
        """
        with self._changed:
            self.check()
            if self._closed:
                raise StateError("the writer of a journal is closed")
            self._appended += count
            if not self._waiting:
                self._oldest = self._now()
            self._waiting.append(columns)
            self._waiting_bytes += nbytes
            if self._drive is not None:
                self._drive(self)
            elif self._thread is None:
                thread = threading.Thread(target=self._run, name=f"journal {self.run}", daemon=True)
                # If the machine has no thread left, the next answers try again, and `close` writes without one.
                thread.start()
                self._thread = thread
            self._changed.notify_all()
            return self._appended

    @property
    def acknowledged(self) -> int:
        """Answers whose files are whole: the first this many that were appended."""
        return self._acknowledged

    @property
    def has_room(self) -> bool:
        """Whether more answers should be asked for. Those that come all the same are taken.

        While a write is repeated there is no room: what is answered then is lost if the place stays as it is.
        """
        return self.takes_more or self._error is not None

    @property
    def takes_more(self) -> bool:
        """Whether there is room, and no write has failed for good. It is asked before each call."""
        waiting = self._waiting_bytes + self._writing_bytes
        return waiting < MOST_WAITING and not self._stalled and self._error is None

    def close(self, timeout: float | None = None) -> None:
        """Write everything that was appended, and end the thread. Another call does nothing.

        Args:
            timeout: seconds after which the rest is given up; None: as long as the place does not hang.

        Raises:
            JournalError: a write has failed for good, or the time was over.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            self.write_due()
        else:
            seconds = self.hangs_after if timeout is None else timeout
            for _ in goes_on(lambda: not thread.is_alive(), lambda: self.progress if timeout is None else 0):
                thread.join(seconds)
            if thread.is_alive():
                self.abort()
                raise self.hanging(seconds)
        self.check()

    @property
    def hangs_after(self) -> float:
        """Seconds without `progress` after which the place hangs."""
        return self._patience + ONE_WRITE

    @property
    def progress(self) -> int:
        """Files that were begun. While one is written, it grows within `hangs_after` seconds, or the place hangs."""
        return self._files

    def hanging(self, seconds: float) -> JournalError:
        """The error for a place that hangs."""
        return JournalError(
            f"the journal {self._place.shown} did not take the last answers within {seconds:g} seconds. Answers that "
            "are not in a file yet will be asked for again. Check the place"
        )

    def abort(self) -> None:
        """End without writing what waits, and without waiting for a write that runs."""
        with self._changed:
            self._closed = self._aborted = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._changed.notify_all()

    def check(self) -> None:
        """Do nothing, unless a write has failed for good.

        Raises:
            JournalError: it has.
        """
        if self._error is not None:
            raise self._error

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
        return 0.0 if early else max(0.0, self._oldest + self._flush_every - self._now())

    def write_due(self) -> bool:
        """Write what is due. Whether more may follow. Called by one thread at a time."""
        with self._changed:
            if self.due_in() != 0:
                return True
            batches, size, last = self._waiting, self._waiting_bytes, self._appended
            self._waiting, self._waiting_bytes, self._writing_bytes = [], 0, size
        error = self._write(batches, self._acknowledged)
        with self._changed:
            had_room = self.takes_more
            self._writing_bytes, self._stalled = 0, False
            if error is None:
                self._acknowledged = last
            else:
                self._error = error
                self._waiting.clear()
                self._waiting_bytes = 0
            self._changed.notify_all()
        if self._on_room is not None and (error is not None or (not had_room and self.has_room)):
            try:
                self._on_room()
            except Exception as problem:
                # Such as a loop that was closed. The answers are written all the same.
                logger.warning("on_room of the journal %s failed: %s", self._place.shown, describe_error(problem))
        return error is None and not self._aborted

    def _write(self, batches: list[Callable[[], AnswerBatch]], first: int) -> JournalError | None:
        """Make a file of batches. Returns the error that ends the writer, or None.

        Args:
            first: the number of the first answer in its run.
        """
        try:
            tables = []
            for batch in (columns() for columns in batches):
                if len(batch.keys):
                    table = to_table(
                        batch, self._description, run=self.run, first=first, expire_after=self._expire_after
                    )
                    tables.append(table)
                first += len(batch.keys)
            if not tables:
                return None
            data = encode(pa.concat_tables(tables))
        except Exception as error:
            failed = JournalError(f"answers do not fit the journal {self._place.shown}: {describe_error(error)}")
            failed.__cause__ = error
            return failed
        name = file_name(ANSWERS, round(self._clock() * 1000), self._id, self._files)
        self._files += 1
        return self._put(name, data)

    def _put(self, name: str, data: bytes) -> JournalError | None:
        begun, pause = self._now(), self._first_pause
        while True:
            try:
                check_description(self._place, self._description)
                self._place.put(name, data)
                return None
            except Exception as error:
                spent = self._now() - begun
                patience = min(self._patience, ABSENT) if isinstance(error, FileNotFoundError) else self._patience
                if spent + pause > patience or is_lasting(error):
                    failed = JournalError(
                        f"the journal {self._place.shown} cannot be written, after {spent:.1f} seconds "
                        f"({describe_error(error)}): answers would be paid for again, so the task ends; check the "
                        "place, and start the job again: it goes on from the journal"
                    )
                    failed.__cause__ = error
                    return failed
            self._stalled = True
            with self._changed:
                if self._changed.wait_for(lambda: self._aborted, pause):
                    return JournalError(f"the writer of the journal {self._place.shown} was aborted")
            pause = min(2 * pause, 5.0)


def is_lasting(error: Exception) -> bool:
    """Whether a write will fail again until a person changes something."""
    if isinstance(error, JournalError) or not isinstance(error, OSError | pa.ArrowException):
        return True
    return error.errno in _LASTING if getattr(error, "errno", None) else any(w in str(error) for w in _LASTING_WORDS)
