"""Keys that stay in Arrow until they are read one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator.arrow.key_arrays import Ints, key_values, python_keys
from asyncio_operator.arrow.key_index import Mask, equal_keys, key_hashes


class ArrowKeys(Sequence[Any]):
    """The keys of an array, as of `distinct`, which become Python keys only when they are read."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    @cached_property
    def names(self) -> list[int]:
        """A number for each key: equal for equal keys of one type, and hardly ever for others; see `same`."""
        names: list[int] = key_hashes(self.array).tolist()
        return names

    def at(self, places: Ints | Sequence[int]) -> ArrowKeys:
        """The keys at these places."""
        return type(self)(self.array.take(pa.array(places, pa.int64())))

    def copied(self) -> ArrowKeys:
        """The same keys in memory of their own: a part of a batch would keep all of its columns."""
        return self._with(self.at(np.arange(len(self))).array, slice(None))

    def joined(self, others: Sequence[ArrowKeys]) -> ArrowKeys:
        """These keys and those of others of the same type."""
        return type(self)(pa.concat_arrays([self.array, *(other.array for other in others)]))

    def same(self, places: Ints | Sequence[int], others: ArrowKeys, other_places: Ints | Sequence[int]) -> Mask:
        """Whether the keys at places are those of others at theirs."""
        return equal_keys(self.at(places).array, others.at(other_places).array)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._with(self.array[place], place)
        return next(iter(ArrowKeys(self.array.slice(place % len(self), 1))))

    def _with(self, array: pa.Array, place: slice) -> ArrowKeys:
        """A slice of the keys. It has their numbers, if they are known."""
        keys = type(self)(array)
        if "names" in vars(self):
            keys.names = self.names[place]
        return keys

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(python_keys(self.array))
        except (ValueError, OverflowError):
            if not kinds.is_struct(self.array.type):
                return iter(key_values(self.array))
            return iter(list(zip(*map(key_values, self.array.flatten()), strict=True)))
