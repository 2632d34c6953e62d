"""The keys of a batch, as a task finds them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pytest

from asyncio_operator.lookup.key_batch import KeyBatch
from asyncio_operator.spark.worker.rows import Enrichment, Layout


def key_batch(batch: pa.RecordBatch, positions: Iterable[int], optional: tuple[int, ...] = ()) -> KeyBatch:
    """The distinct keys of a batch, whose key columns are at these positions."""
    layout = Layout(tuple(positions), pa.schema([]), optional=optional)
    return Enrichment(layout, lambda *_: pytest.fail("no answer is read")).keys_of(batch)
