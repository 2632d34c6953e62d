"""Where a run's elements come from: one protocol over ordinary and asynchronous iterables.

An input is asked in two steps: `ready` waits until there may be something, and iterating gives what is there now and
stops, without waiting. Nothing is read that was not asked for, and an iterable is never closed: it belongs to the user,
who may go on reading it after the run. Its errors pass through unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from asyncio_operator.errors import ConfigurationError


@runtime_checkable
class Input(Protocol):
    """A source of elements. One reader at a time."""

    instant: bool
    """Whether iterating takes no time worth measuring."""

    async def ready(self) -> bool:
        """Wait until iterating may give something; False at the end."""

    def has_some(self) -> bool:
        """Whether iterating may give something now, without waiting; False also at the end."""

    def read_ahead(self) -> list[Any]:
        """What was read of the source and not yet given by iterating."""

    def __iter__(self) -> Iterator[Any]:
        """What is there now. The reader may stop half-way and iterate again later."""

    def exhausted(self) -> None:
        """The reader iterated to the end of what was there."""


class SyncInput:
    """An ordinary iterable, read on the loop: what it blocks, it blocks for all."""

    instant = False

    def __init__(self, elements: Iterable[Any]) -> None:
        self._elements = iter(elements)
        self._ended = False

    async def ready(self) -> bool:
        return not self._ended

    def has_some(self) -> bool:
        return not self._ended

    def read_ahead(self) -> list[Any]:
        return []

    def __iter__(self) -> Iterator[Any]:
        return self._elements

    def exhausted(self) -> None:
        self._ended = True


class AsyncInput:
    """An asynchronous iterable, read one element at a time."""

    instant = True

    def __init__(self, elements: AsyncIterable[Any]) -> None:
        self._elements: AsyncIterator[Any] = aiter(elements)
        self._next: list[Any] = []

    async def ready(self) -> bool:
        if not self._next:
            try:
                self._next.append(await anext(self._elements))
            except StopAsyncIteration:
                return False
        return True

    def has_some(self) -> bool:
        return bool(self._next)

    def read_ahead(self) -> list[Any]:
        return list(self._next)

    def __iter__(self) -> Iterator[Any]:
        while self._next:
            yield self._next.pop()

    def exhausted(self) -> None:
        """There may be more later."""


def as_input(elements: Any) -> Input:
    """The input for whatever iterable a user hands in.

    Raises:
        ConfigurationError: it is not iterable.
    """
    if isinstance(elements, Input):
        return elements
    if isinstance(elements, AsyncIterable):
        return AsyncInput(elements)
    if isinstance(elements, Iterable):
        return SyncInput(elements)
    raise ConfigurationError(
        f"elements is of type {type(elements).__name__}; it must be an iterable or an asynchronous iterable"
    )
