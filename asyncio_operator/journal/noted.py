"""Answers as a task notes them: Python keys, with mappings or rows of tables. The writer makes columns of them.

An answer whose key the journal's columns cannot hold is left out: no row of the source can have such a key, so it cost
nothing to find that out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncio_operator.arrow.columns import collected
from asyncio_operator.arrow.key_arrays import key_array
from asyncio_operator.arrow.key_fit import fit_values
from asyncio_operator.journal.answers import AnswerBatch, key_parts, weights_array
from asyncio_operator.journal.format import Description

Noted = tuple[Any, Any, float, int | None, float | None, Mapping[str, float] | None]
"""An answer that has come: its canonical key; the answer, checked (a mapping, a list of mappings, `ColumnAnswers`, or
None for a miss); the time in seconds since the epoch; the calls that it took, and seconds of the last of them, or None
if a cache had it; and what it weighed beside its calls, by unit, or None. A class would cost as much as all the rest of
noting it."""


class NotedAnswers:
    """Some answers, one at least; see `NewAnswers`.

    Args:
        nbytes: about the memory of them.
    """

    def __init__(self, noted: Sequence[Noted], description: Description, nbytes: int) -> None:
        self.nbytes = nbytes
        self._noted = noted
        self._description = description

    def __len__(self) -> int:
        return len(self._noted)

    def batch(self) -> AnswerBatch:
        keys = self._keys([one[0] for one in self._noted])
        fits = np.logical_and.reduce([part.is_valid().to_numpy(zero_copy_only=False) for part in key_parts(keys)])
        some = [one for one, is_key in zip(self._noted, fits.tolist(), strict=True) if is_key]
        _, answers, times, attempts, latencies, weights = zip(*some, strict=True) if some else [()] * 6
        return AnswerBatch(
            keys.filter(pa.array(fits)),
            collected(answers, self._description.answers),
            np.array(times, np.float64),
            pa.array(attempts, pa.int32()),
            # None becomes NaN, and then null.
            pa.array(np.array(latencies, np.float64) * 1000, from_pandas=True),
            weights_array(weights) if any(weights) else None,
        )

    def _keys(self, keys: Sequence[Any]) -> pa.Array:
        kinds = self._description.keys.types
        parts = [keys] if len(kinds) == 1 else zip(*keys, strict=True)
        return key_array([fit_values(values, kind) for values, kind in zip(parts, kinds, strict=True)])
