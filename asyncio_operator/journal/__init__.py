"""Answers that are paid for once: a journal of them on a file system or an object store (laws J).

`Journal` says where the journal is and how it is kept. `asyncio_operator.spark.enrich` takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncio_operator.lazy import lazy

if TYPE_CHECKING:
    from asyncio_operator.journal.format import JournalError as JournalError
    from asyncio_operator.journal.options import Journal as Journal


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {"asyncio_operator.journal.format": "JournalError", "asyncio_operator.journal.options": "Journal"},
        needs={"asyncio_operator.journal.format": ("pyarrow", "spark")},
    )
