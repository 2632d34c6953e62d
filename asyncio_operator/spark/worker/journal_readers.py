"""The reader of a journal in this process: answers of the files that came since a task's input was listed.

Tasks of one journal and one plan use it one after the other, and the next one gets the keys that were read.

Law: a task sees all files that existed when it began. It looks for later ones in at most 2 % of its time.
"""

from __future__ import annotations

import threading

import pyarrow as pa

from asyncio_operator.arrow.column_answers import ColumnAnswers
from asyncio_operator.clock import Clock, monotonic, wall
from asyncio_operator.errors import describe_error
from asyncio_operator.journal.files import Seen
from asyncio_operator.journal.format import Description, JournalError
from asyncio_operator.journal.later_answers import JournalReader
from asyncio_operator.journal.locations import Location
from asyncio_operator.journal.storage import open_place
from asyncio_operator.journal.watched import WatchedPlace

LIST_AGAIN = 1.0
"""Seconds after which a task looks for new files at the earliest."""

MOST_LISTING = 50
"""It looks after this many times the time that the last look took: looking takes at most 2 % of a task."""

FEWEST, MOST = 10, 10_000
"""Keys of one question."""

AHEAD = 0.5
"""Seconds for which the keys of one question last: files that come later have answers for the others. If questions take
long they are for more keys, so that they take at most about 4 % of a task."""


class LaterAnswers:
    """The answers of the files that came since a listing, for the tasks of this process.

    Any thread may call it. Reading waits for another reading.

    The arguments are those of `JournalReader`, and the clocks of the process.

    Attributes:
        place: what the reader reads.
        most: the number of keys that the next question should ask for.
    """

    def __init__(
        self,
        location: Location,
        description: Description,
        since: Seen,
        expire_after: float | None,
        keep_missing: bool,
        wall: Clock = wall,
        monotonic: Clock = monotonic,
    ) -> None:
        self._now = monotonic
        self.place = WatchedPlace(open_place(location))
        self.most = FEWEST
        # Answers and the time in which they came: the pace of the task. And the seconds of the last question.
        self._done = 0.0
        self._since = monotonic()
        self._took = 0.0
        self._reader = JournalReader(
            self.place, description, since=since, expire_after=expire_after, keep_missing=keep_missing, clock=wall
        )
        self._lock = threading.Lock()
        self._next = 0.0
        self.has_files = False

    def begin(self) -> None:
        """A task begins: it has to see the files that existed when it began."""
        self._next = 0.0
        self._since, self._done = self._now(), 0.0

    def count(self, answers: int) -> None:
        """The task got answers of calls, or of this. Called on the loop."""
        self._done += answers

    def pace(self) -> None:
        """Set `most`, before a question. Called on the loop."""
        lasted, ahead = self._now() - self._since, max(AHEAD, AHEAD * MOST_LISTING * self._took)
        if lasted > 0 and self._done:
            self.most = min(max(FEWEST, round(ahead * self._done / lasted)), MOST)
        if lasted > 4 * ahead:
            # The pace of long ago counts less and less.
            self._since += lasted / 2
            self._done /= 2

    def is_due(self) -> bool:
        """Whether there may be files that were not listed yet."""
        return self._now() >= self._next

    def read(self, keys: pa.Array) -> ColumnAnswers:
        """The answers of keys.

        Raises:
            JournalError: the place does not answer.
        """
        with self._lock:
            begun, is_due = self._now(), self.is_due()
            try:
                if is_due:
                    self.has_files = self._reader.refresh() > 0
                listed = self._now()
                read = self._reader.read(keys)
                self._took = self._now() - listed
                return read
            except (OSError, pa.ArrowException) as error:
                raise JournalError(
                    f"the journal {self.place.shown} cannot be read ({describe_error(error)}): its answers would be "
                    "paid for again, so the task ends; check the place, and start the job again"
                ) from error
            finally:
                if is_due:
                    now = self._now()
                    self._next = now + max(LIST_AGAIN, MOST_LISTING * (now - begun))
