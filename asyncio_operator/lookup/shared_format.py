"""The format of answers in a store that workers share. It is never unpickled: others may have written it.

Names. All numbers are big-endian.

    asyncio-operator:cache:1:OWNER:KEY    an answer
    asyncio-operator:lock:1:OWNER:KEY     the key is being looked up again; the value means nothing

OWNER is 32 hexadecimal digits: PBKDF2 with SHA-256 of the fingerprint of the enricher and its columns. Two enrichers
that differ in anything have different owners. The fingerprint depends on passwords of the enricher too. All users of
the store can read the names. The function is slow, so that a short password cannot be found by trying.

KEY is the key as `state.keys` writes it, or, if that is longer than 100 bytes, a zero byte and its BLAKE2b hash of 32
bytes. No key begins with a zero byte.

An answer:

    4 bytes    "AOC1", the format and its version
    8 bytes    of the columns: BLAKE2b of their names and types
    8 bytes    when it was written, in milliseconds since the epoch, by the clock of the store
    the rest   as `state.serializers` writes it: None for a miss, a tuple of values in the order of the columns for a
               row, or a list of such tuples

Law: what is not exactly this, or does not fit the columns, is not an answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from hashlib import blake2b, pbkdf2_hmac
from typing import TYPE_CHECKING, Any

from asyncio_operator.arrow.key_identity import storable
from asyncio_operator.errors import StateError
from asyncio_operator.lookup.answers import AnswerCheck
from asyncio_operator.state.keys import serialize_key
from asyncio_operator.state.serializers import BUILTIN

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"AOC1"

ROUNDS = 50_000
"""Of PBKDF2: 20 ms, once for each enricher in a process."""

LONGEST_KEY = 100
"""Bytes of a key in a name."""

LARGEST = 1 << 20
"""Bytes of an answer. A larger one is not shared: reading it would hold up the answers of all other keys."""

MOST_DIGITS = 1000
"""Of a decimal, before or after the point. Those of Arrow and of Spark have fewer than 100."""

_CONTAINERS = frozenset((list, tuple, set, frozenset))

_HEAD = struct.Struct(">4s8sq")


class DamagedError(Exception):
    """The bytes are no answer. The message says why."""


class Format:
    """Names and bytes of one owner.

    Args:
        owner: see `cache_owner`.
        schema: the columns of the answers.
    """

    def __init__(self, owner: str, schema: pa.Schema) -> None:
        columns = repr([(field.name, str(field.type)) for field in schema])
        name = slow_hash(f"{owner} {columns}")
        self._answers = f"asyncio-operator:cache:1:{name}:".encode()
        self._locks = f"asyncio-operator:lock:1:{name}:".encode()
        self._columns = blake2b(columns.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self._check = AnswerCheck(schema)
        self._names = schema.names

    def name(self, key: Any) -> bytes | None:
        """The name of the answer for a key; None for a key that has no bytes."""
        try:
            written = serialize_key(storable(key))
        except (StateError, RecursionError):
            return None
        if len(written) > LONGEST_KEY:
            written = b"\0" + blake2b(written, digest_size=32).digest()
        return self._answers + written

    def lock_of(self, name: bytes) -> bytes:
        """The name of the lock for the name of an answer."""
        return self._locks + name[len(self._answers) :]

    def write(self, answer: Any, milliseconds: int) -> bytes:
        """The bytes of an answer, as `AnswerCheck` returns it and not in columns, written at a time of the store.

        Raises:
            StateError: a value in it cannot be stored.
        """
        names, values = self._names, answer
        if type(answer) is dict:
            values = tuple(map(answer.get, names))
        elif answer is not None:
            values = [tuple(map(row.get, names)) for row in answer]
        return _HEAD.pack(MAGIC, self._columns, milliseconds) + BUILTIN.serialize(values)

    def read(self, data: bytes) -> tuple[Any, int]:
        """An answer, and when it was written.

        Raises:
            DamagedError: the bytes are no answer with these columns.
        """
        try:
            magic, columns, milliseconds = _HEAD.unpack_from(data)
        except struct.error as error:
            raise DamagedError("the value is too short") from error
        if magic != MAGIC:
            raise DamagedError("it has another format or version")
        if columns != self._columns:
            raise DamagedError("it has other columns")
        try:
            values = BUILTIN.deserialize(data[_HEAD.size :])
            if not _is_sane(values):
                raise DamagedError("it holds a decimal out of all bounds")
            return self._check(self._answer(values)), milliseconds
        except DamagedError:
            raise
        except Exception as error:  # Bytes that others wrote may cause any.
            raise DamagedError("it is damaged") from error

    def _answer(self, values: Any) -> Any:
        if values is None:
            return None
        if type(values) is list:
            return [self._row(row) for row in values]
        return self._row(values)

    def _row(self, values: Any) -> dict[str, Any]:
        if type(values) is not tuple:
            raise DamagedError(f"it holds {type(values).__name__}")
        return dict(zip(self._names, values, strict=True))


def _is_sane(value: Any) -> bool:
    """Whether no decimal in it has so large an exponent that Arrow would need minutes to refuse it."""
    kind = type(value)
    if kind is Decimal:
        return bool(-MOST_DIGITS < value.adjusted() < MOST_DIGITS)
    if kind is dict:
        return all(map(_is_sane, value.values()))
    return all(map(_is_sane, value)) if kind in _CONTAINERS else True


@lru_cache(100)
def slow_hash(owner: str) -> str:
    """The name of an owner in a store."""
    return pbkdf2_hmac("sha256", owner.encode(), b"asyncio-operator:cache", ROUNDS, 16).hex()


def plain_answers(answers: Sequence[Any]) -> list[Any]:
    """Answers as mappings, lists of mappings and None. Those in columns are converted together.

    Raises:
        ValueError: Python cannot hold a value of one in columns.
    """
    in_columns = [answer for answer in answers if hasattr(answer, "table")]
    if not in_columns:
        return list(answers)
    # Imported here: it loads pyarrow, as the maker of such an answer has.
    from asyncio_operator.arrow.column_answers import compacted

    rows = iter(compacted(in_columns).answers())
    return [next(rows) if hasattr(answer, "table") else answer for answer in answers]
