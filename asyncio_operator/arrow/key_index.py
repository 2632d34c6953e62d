"""Finds rows by their keys, many keys at a time, without a Python object for a key or a row.

`ArrowKeys` are keys that become Python keys only when they are read one by one.

A `KeyIndex` is made once of the keys of a table, and asked many times. It holds the hashes of the keys in order, the
number of the row of each, and where the hashes with the same first bits begin: 14 to 20 bytes for a row. Few hashes
have the same first bits, and every hit is compared with the key itself. A key of one column of integers, dates or times
is its own hash, and needs no comparison; where such keys fill half of their range, a list of the range takes the place
of the hashes.

Law: two keys are the same by the rule of `key_identity`. Equal keys have equal hashes, because hashes are made of
canonical arrays. Different keys may have one hash, and are found all the same. Each of them costs a round of its own;
the hashes of an index begin with a random word, so that many of one hash cannot be prepared.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from asyncio_operator.arrow.column_answers import runs
from asyncio_operator.arrow.key_arrays import (
    Ints,
    canonical_array,
    distinct,
    joint_numbers,
    key_array,
    key_parts,
    key_values,
    numbers_of,
)
from asyncio_operator.arrow.key_fit import fit_keys, fit_values

Words = np.ndarray[Any, np.dtype[np.uint64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_SECRET = np.uint64(int.from_bytes(os.urandom(8)))  # The first word of the hashes of this process.


def match(asked: pa.Array, rows: pa.Array, optional: Collection[int] = ()) -> Ints:
    """For every row the position of its key in `asked`, or -1 if it is not there, or null.

    Args:
        asked: distinct keys. Keys of several columns are structs; their parts are compared in order.
        rows: keys, whose type may be another one, as far as `fit_keys` allows.
        optional: the parts of a key, among several, whose nulls are values.

    Raises:
        TypeError: keys of these two types can never be equal.
    """
    parts = list(map(canonical_array, key_parts(rows)))
    wanted = [fit_keys(part, own.type) for part, own in zip(key_parts(asked), parts, strict=True)]
    needed = [part for i, part in enumerate(parts) if i not in optional]
    if all(map(pa.Array.equals, parts, wanted)) and _complete(needed) is None:
        return np.arange(len(rows))  # a row for each key, in their order
    asked, rows = wanted[0], parts[0]
    if len(parts) > 1:
        both = joint_numbers([pa.concat_arrays(pair) for pair in zip(wanted, parts, strict=True)], optional)
        asked, rows = both[: len(asked)], both[len(asked) :]
    found = pc.index_in(_bits(rows), value_set=_bits(asked), skip_nulls=True).fill_null(-1)
    positions: Ints = found.to_numpy(zero_copy_only=False).astype(np.int64)
    return positions


class KeyIndex:
    """The rows of a table by key.

    Args:
        keys: the key of each row. Keys of several columns are structs. Rows with a null in their key are never found.
    """

    def __init__(self, keys: pa.Array) -> None:
        keys = canonical_array(keys)
        self._type = keys.type
        self._parts = key_parts(keys)
        # Kept for `find`: an index may be pickled, and another process has another word.
        self._secret = _SECRET
        hashes, self._exact = _hashes(self._parts, len(keys), self._secret)
        rows = _complete(self._parts)
        if rows is not None:
            hashes = hashes[rows]
        order = np.argsort(hashes)
        ordered = hashes[order]
        same = ordered[1:] == ordered[:-1]
        if same.any():
            ordered, order, same = self._grouped(hashes, rows)
        self._rows = _small(order if rows is None else rows[order])
        # One place for each key: its hash, and the place of its first row in `_rows`.
        starts = None if not same.any() else np.flatnonzero(np.concatenate([[True], ~same]))
        keyed: Words = ordered if starts is None else ordered[starts]
        self._count = len(keyed)
        self._starts = None if starts is None else _small(np.append(starts, len(ordered)))
        self._dense = None
        if self._exact:
            # Of keys with one row each, the list of their range holds the rows.
            self._dense = _Dense.of(keyed.view(np.int64), self._rows if starts is None else None)
        self._search = _Search(keyed if self._dense is None else keyed[:0])
        if self._dense is not None and starts is None:
            self._rows = self._rows[:0]

    def __len__(self) -> int:
        """The number of keys."""
        return self._count

    def find(self, keys: pa.Array) -> tuple[Ints, Ints]:
        """The rows of keys: the numbers of all rows found, and for each of them the position of its key in `keys`.

        Positions ascend. Several rows of one key are in the order of the table.

        Raises:
            TypeError: keys of this type are never equal to those of the table.
        """
        places = self._places(fit_keys(keys, self._type))
        positions = np.flatnonzero(places >= 0)
        if len(positions) < len(places):
            places = places[positions]
        if self._starts is None:
            return places if self._dense is not None else self._rows[places].astype(np.int64), positions
        starts = self._starts[places].astype(np.int64)
        counts = self._starts[places + 1] - starts
        return self._rows[runs(starts, counts)].astype(np.int64), np.repeat(positions, counts)

    def _places(self, keys: pa.Array) -> Ints:
        """The place of each key, or -1. With `_dense` and one row for each key: the row."""
        parts = key_parts(keys)
        hashes, _ = _hashes(parts, len(keys), self._secret)
        complete = _complete(parts)
        if self._dense is not None:
            places = self._dense.places(hashes.view(np.int64))
            if complete is not None:
                places[np.setdiff1d(np.arange(len(keys)), complete, assume_unique=True)] = -1
            return places
        found = np.full(len(keys), -1, dtype=np.int64)
        asked = np.arange(len(keys)) if complete is None else complete
        hashes = hashes[asked]
        places = self._search.places(hashes)
        while len(asked) and len(self):
            hit = (self._search.hashes[places] == hashes) & (places < len(self))
            asked, hashes, places = asked[hit], hashes[hit], places[hit]
            same = np.ones(len(asked), dtype=bool)
            if not self._exact:
                rows = self._rows[places if self._starts is None else self._starts[places]]
                same = _equal(_taken(self._parts, rows), _taken(parts, asked))
            found[asked[same]] = places[same]
            # The others have met another key of their hash. The next place may have theirs.
            asked, hashes, places = asked[~same], hashes[~same], places[~same] + 1
        return found

    def _grouped(self, hashes: Words, rows: Ints | None) -> tuple[Words, Ints, Mask]:
        """Hashes in order, their order, and whether each has the key before it. Rows of a key stay in their order."""
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        same = ordered[1:] == ordered[:-1]
        if self._exact:
            return ordered, order, same
        numbers = order if rows is None else rows[order]
        pairs = np.flatnonzero(same)
        if _equal(_taken(self._parts, numbers[pairs]), _taken(self._parts, numbers[pairs + 1])).all():
            return ordered, order, same
        # Different keys have one hash.
        _, codes = distinct(self._parts)
        codes = codes if rows is None else codes[rows]
        order = np.lexsort((codes, hashes))
        return hashes[order], order, codes[order][1:] == codes[order][:-1]


class _Dense:
    """The places of integers that fill at least half of their range: a list of the range, instead of a search."""

    def __init__(self, lowest: int, places: Any) -> None:
        self._lowest = lowest
        self._places = places

    @classmethod
    def of(cls, values: Ints, numbers: Ints | None = None) -> _Dense | None:
        """The places of distinct values, or their numbers, if given. None if they are too few for their range."""
        if not len(values):
            return None
        lowest = int(values.min())
        size = int(values.max()) - lowest + 1
        if size > 2 * len(values):
            return None
        # The last place is that of all values outside of the range.
        places = np.full(size + 1, -1, dtype=np.int32 if size < 2**31 else np.int64)
        places[values - lowest] = np.arange(len(values)) if numbers is None else numbers
        return cls(lowest, places)

    def places(self, values: Ints) -> Ints:
        """The place of each value, or -1."""
        # A distance below zero, or one that wraps around, is a large number without its sign.
        distances = np.minimum((values - self._lowest).view(np.uint64), np.uint64(len(self._places) - 1))
        found: Ints = self._places[distances.view(np.int64)].astype(np.int64)
        return found


class _Search:
    """The places of hashes in a list in order. The first bits of a hash lead to the few that may be it; where many have
    the same ones, as integers may, a search by halves follows.
    """

    def __init__(self, hashes: Words) -> None:
        self.hashes: Words = np.append(hashes, np.uint64(2**64 - 1))  # The list, and the largest hash behind it.
        self._lowest = self.hashes[0]
        bits = max(0, len(hashes).bit_length() - 1)
        spread = int(self.hashes[len(hashes) - 1] - self._lowest) if len(hashes) else 0
        self._shift = np.uint64(max(0, spread.bit_length() - bits))
        groups = ((hashes - self._lowest) >> self._shift).view(np.int64)
        sizes = np.bincount(groups, minlength=1 << bits)
        self._firsts = _small(np.append(0, np.cumsum(sizes)))
        self._steps = int(sizes.max()).bit_length()

    def places(self, hashes: Words) -> Ints:
        """The place of each hash, or where it would be: that of the first hash that is not less, of its group."""
        # A distance below zero wraps around, and those behind all groups find nothing.
        groups = np.minimum((hashes - self._lowest) >> self._shift, np.uint64(len(self._firsts) - 1)).view(np.int64)
        places: Ints = self._firsts[groups].astype(np.int64)
        for step in reversed(range(self._steps)):
            # The last place is that of the largest hash.
            ahead = np.minimum(places + ((1 << step) - 1), len(self.hashes) - 1)
            places += (self.hashes[ahead] < hashes).astype(np.int64) << step
        return places


def _complete(parts: Sequence[pa.Array]) -> Ints | None:
    """The rows without a null, or None for all."""
    nulls = [part.is_null().to_numpy(zero_copy_only=False) for part in parts if part.null_count]
    return np.flatnonzero(~np.logical_or.reduce(nulls)) if nulls else None


def _taken(parts: Sequence[pa.Array], rows: Ints) -> list[pa.Array]:
    numbers = pa.array(rows)
    return [part.take(numbers) for part in parts]


def _equal(parts: Sequence[pa.Array], others: Sequence[pa.Array]) -> Mask:
    """Whether keys are equal, key by key. One with a null is equal to none."""
    equal = [pc.equal(_bits(part), _bits(other)) for part, other in zip(parts, others, strict=True)]
    every: Mask = np.logical_and.reduce([one.fill_null(False).to_numpy(zero_copy_only=False) for one in equal])
    return every


def _same(keys: pa.Array, others: pa.Array) -> Mask:
    """Whether keys are equal, key by key. A null part is a value. A key that is null as a whole is equal to none."""
    if not any(part.null_count for part in key_parts(keys)):
        return _equal(key_parts(keys), key_parts(others))
    pairs = zip(key_parts(keys), key_parts(others), strict=True)
    equal = [pc.coalesce(pc.equal(*map(_bits, pair)), pc.and_(*[part.is_null() for part in pair])) for pair in pairs]
    tests = [one.to_numpy(zero_copy_only=False) for one in (keys.is_valid(), others.is_valid(), *equal)]
    return np.logical_and.reduce(tests)  # type: ignore[no-any-return]


def _bits(array: pa.Array) -> pa.Array:
    """Floats as their bits: a NaN is not equal to itself. Nulls without a type in one, in which Arrow compares them."""
    if kinds.is_floating(array.type):
        return array.view(f"int{array.type.bit_width}")
    return array.cast(pa.bool_()) if kinds.is_null(array.type) else array


def _small(numbers: Ints) -> Any:
    """The numbers in 32 bits if they fit."""
    return numbers.astype(np.int32) if not len(numbers) or numbers.max() < 2**31 else numbers


class ArrowKeys(Sequence[Any]):
    """The keys of an array, as of `distinct`, which become Python keys only when they are read."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    @cached_property
    def hashes(self) -> Words:
        """A well-mixed number for each key: equal for equal keys of one type, and hardly ever for others; see `same`.
        Keys that are null have any. Another process has others, so that many of one hash cannot be prepared."""
        hashes, _ = _hashes(key_parts(canonical_array(self.array)), len(self), _SECRET)
        return _mixed(np.zeros(len(self), dtype=np.uint64), hashes)

    @cached_property
    def names(self) -> list[int]:
        """The same as Python's."""
        return self.hashes.tolist()  # type: ignore[no-any-return]

    def like(self, keys: Sequence[Any]) -> ArrowKeys:
        """Other keys of the same type, as Python has them, in Arrow."""
        kind = self.array.type
        if not kinds.is_struct(kind):
            return type(self)(fit_values(keys, kind))
        return type(self)(key_array([fit_values([key[i] for key in keys], part.type) for i, part in enumerate(kind)]))

    def fitted(self, kind: pa.DataType) -> ArrowKeys:
        """The same keys in another type, null where that cannot hold them exactly: others would be equal there."""
        if self.array.type == kind:
            return self
        none = pa.nulls(len(self), kind)
        try:
            array = fit_keys(self.array, kind)
            exact = _same(fit_keys(array, self.array.type), self.array)
        except TypeError:  # Keys of these types are never equal.
            return type(self)(none)
        return type(self)(pc.if_else(pa.array(exact), array, none))

    def at(self, places: Ints | Sequence[int]) -> ArrowKeys:
        """The keys at these places."""
        if type(places) is range:
            return self[places.start : places.stop]  # type: ignore[no-any-return]
        numbers = np.asarray(places, np.int64)
        return self._with(self.array.take(pa.array(numbers)), numbers)

    def gathered(self, places: Sequence[int]) -> Sequence[int]:
        """The places about in the order of their keys, where that costs next to nothing: of whole numbers, dates and
        times, and of keys that begin with one."""
        first = key_parts(self.array)[0]
        if kinds.is_integer(first.type) or kinds.is_temporal(first.type):
            numbers, size = numbers_of(first.take(pa.array(places, pa.int64())))
            if (numbers[1:] < numbers[:-1]).any():
                # By 16 bits, whose sort takes a tenth of the time of an exact one.
                order = np.argsort((numbers * (65_535 / size)).astype(np.uint16), kind="stable")
                return np.asarray(places)[order].tolist()  # type: ignore[no-any-return]
        return places

    def copied(self) -> ArrowKeys:
        """The same keys in memory of their own: a part of a batch would keep all of its columns."""
        return self._with(pa.concat_arrays([self.array, self.array[:0]]), slice(None))

    def joined(self, others: Sequence[ArrowKeys]) -> ArrowKeys:
        """These keys and those of others of the same type."""
        every = [self, *others]
        keys = type(self)(pa.concat_arrays([one.array for one in every]))
        if all("hashes" in vars(one) for one in every):
            keys.hashes = np.concatenate([one.hashes for one in every])
        return keys

    def same(self, places: Ints | Sequence[int], others: ArrowKeys, other_places: Ints | Sequence[int]) -> Mask:
        """Whether the keys at places are those of others at theirs."""
        kind = self.array.type
        if kinds.is_integer(kind) and others.array.type == kind and not self.array.null_count + others.array.null_count:
            # Arrow would take, and copy, both of them first.
            mine, theirs = self.array.to_numpy(), others.array.to_numpy()
            return mine[np.asarray(places)] == theirs[np.asarray(other_places)]  # type: ignore[no-any-return]
        return _same(self.at(places).array, others.at(other_places).array)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._with(self.array[place], place)
        return next(iter(ArrowKeys(self.array.slice(place % len(self), 1))))

    def _with(self, array: pa.Array, places: Any) -> ArrowKeys:
        """The keys at some places. They have their hashes, if these are known."""
        keys = type(self)(array)
        if "hashes" in vars(self):
            keys.hashes = self.hashes[places]
        return keys

    def __iter__(self) -> Iterator[Any]:
        parts = list(map(key_values, key_parts(self.array)))
        return zip(*parts, strict=True) if len(parts) > 1 else iter(parts[0])


# -- hashes


def _hashes(parts: Sequence[pa.Array], length: int, start: np.uint64) -> tuple[Words, bool]:
    """A hash of each key, and whether different keys have different hashes. Keys that are null have any hash.

    Hashes begin with the word `start`, except those of keys that are their own hash.
    """
    words = [_words(part) for part in parts]
    if len(words) == 1 and words[0] is not None and len(words[0]) == 1:
        return words[0][0], True
    hashes: Words = np.full(length, start)
    for part, own in zip(parts, words, strict=True):
        before = hashes
        if own is None:
            hashes = _with_bytes(hashes, part)
        else:
            for word in own:
                hashes = _mixed(hashes, word)
        if part.null_count:
            # Whatever bytes are there. No value has this word, but by chance.
            nulls = part.is_null().to_numpy(zero_copy_only=False)
            hashes = np.where(nulls, _mixed(before, np.full(length, _SECRET)), hashes)
    return hashes, False


def _words(array: pa.Array) -> list[Words] | None:
    """The values as words of 64 bits, or None for values of several lengths."""
    kind = array.type
    if kinds.is_decimal(kind):
        size = array.type.bit_width // 64
        if not len(array):
            return [np.zeros(0, dtype=np.uint64)] * size
        words = np.frombuffer(array.buffers()[1], np.uint64, (array.offset + len(array)) * size)[array.offset * size :]
        return list(words.reshape(-1, size).T)
    if kinds.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif kinds.is_interval(kind) or not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_temporal(kind)):
        return None
    array = array.view(f"int{array.type.bit_width}").cast(pa.int64())
    return [(array.fill_null(0) if array.null_count else array).to_numpy().view(np.uint64)]


_FIRST_BYTES: Words = np.array([(1 << 8 * size) - 1 for size in range(8)] + [2**64 - 1], dtype=np.uint64)
"""Masks for the first bytes of a word in memory, by their number."""


def _with_bytes(hashes: Words, array: pa.Array) -> Words:
    """The hashes, with those of texts or bytes mixed in: 8 bytes at a time, of all values that are as long."""
    large = kinds.is_large_string(array.type) or kinds.is_large_binary(array.type)
    if not large and not (kinds.is_string(array.type) or kinds.is_binary(array.type)):
        array, large = array.cast(pa.large_binary()), True
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return _mixed(hashes, np.zeros(len(array), dtype=np.uint64))
    bounds = np.frombuffer(offsets, np.int64 if large else np.int32, array.offset + len(array) + 1)[array.offset :]
    ends = bounds.astype(np.int64) - int(bounds[0])
    # Eight bytes more, so that a word may be read at every byte.
    values = np.concatenate([np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]], np.zeros(8, dtype=np.uint8)])
    word_at: Words = np.ndarray((len(values) - 7,), np.dtype("<u8"), values, 0, (1,))
    at, left = ends[:-1], np.diff(ends)
    hashes = _mixed(hashes, left.astype(np.uint64))
    longer = np.arange(len(hashes))
    while True:
        kept = left > 0
        if not kept.all():
            longer, at, left = longer[kept], at[kept], left[kept]
        if not len(longer):
            return hashes
        words = word_at[at] & _FIRST_BYTES[np.minimum(left, 8)]
        if len(longer) == len(hashes):
            hashes = _mixed(hashes, words)
        else:
            hashes[longer] = _mixed(hashes[longer], words)
        at, left = at + 8, left - 8


def _mixed(hashes: Words, words: Words) -> Words:
    """The hashes with one more word of each key; after the finalizer of SplitMix64."""
    mixed = (hashes ^ words) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(29)
    return mixed
