"""What a journal keeps and where: only the options, and nothing that acts on them.

`flush_every` is one second by default: a kill then costs at most about one second of paid answers, and a worker writes
at most 3,600 files an hour, which compaction makes few. There is no default expiry: how old an answer may be is a
decision that only the user can make. Misses are kept, because a miss was paid for like any other answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from asyncio_operator.checks import Duration, flag, lasting
from asyncio_operator.errors import ConfigurationError, describe
from asyncio_operator.journal.locations import LOCAL, Location, locate


@dataclass(frozen=True, slots=True)
class Journal:
    """Answers of an enricher, kept in files that outlive the job and are used again.

    Attributes:
        path: of a directory: local or mounted, ``s3://``, ``gs://`` or ``hdfs://``. Relative ones become absolute.
        identity: the name of what was asked, such as ``"customers-v2"``; None for the enricher's class and
            configuration. A journal is used only by enrichers of its identity.
        flush_every: seconds (or a timedelta) after which an answer is written at the latest.
        expire_after: seconds (or a timedelta) after which an answer is no longer used; None for never. It is stored
            with each answer, and shortens the life of those that are there.
        keep_missing: whether a miss is stored, and used.

    Raises:
        ConfigurationError: a value has the wrong type or range.
    """

    path: str | Path
    identity: str | None = None
    flush_every: Duration = 1.0
    expire_after: Duration | None = None
    keep_missing: bool = True

    def __post_init__(self) -> None:
        place = locate(self.path)
        object.__setattr__(self, "path", place.path if place.kind == LOCAL else str(self.path))
        if self.identity is not None and not (isinstance(self.identity, str) and self.identity.strip()):
            raise ConfigurationError(
                f"identity is {describe(self.identity)}; it must be a text, such as 'customers-v2', or None"
            )
        object.__setattr__(self, "flush_every", lasting("flush_every", self.flush_every))
        if self.expire_after is not None:
            object.__setattr__(self, "expire_after", lasting("expire_after", self.expire_after))
        flag("keep_missing", self.keep_missing)

    @property
    def location(self) -> Location:
        """What the path means to Spark and to Arrow."""
        return locate(self.path)
