"""The elements in flight of an operator, as a part of a checkpoint: state, timers and elements of one moment.

They are one segment, of the first key group of the backend, in the built-in serialisation:

    {"format": 1, "elements": [[element, attempts], ...], "collected": [element, ...]}
    element: [value] or [value, timestamp] for a record, [timestamp, None, None] for a watermark; a value is bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from asyncio_operator.elements import OperatorSnapshot, Record, Watermark
from asyncio_operator.errors import ConfigurationError, StateError, describe
from asyncio_operator.state.key_groups import KeyGroupRange
from asyncio_operator.state.serializers import BUILTIN, Serializer, check_serializer

ELEMENTS_FORMAT = 1


class InFlightElements:
    """Give it to `checkpoint` and `restore_checkpoint` among the services.

    Args:
        snapshot: what `operator.snapshot()` gave; None for one that is restored.
        serializer: of the values of the elements; None is the built-in one.

    Attributes:
        snapshot: the elements, after a restore those of the checkpoint: for ``operator.process(restore=)``.

    Raises:
        ConfigurationError: one of them has another type.
    """

    checkpoint_kind: ClassVar[str] = "elements"

    def __init__(self, snapshot: OperatorSnapshot | None = None, *, serializer: Serializer | None = None) -> None:
        if snapshot is not None and not isinstance(snapshot, OperatorSnapshot):
            raise ConfigurationError(f"snapshot is {describe(snapshot)}; it must be what operator.snapshot() gave")
        self.snapshot = OperatorSnapshot() if snapshot is None else snapshot
        self._serializer = check_serializer("serializer", serializer)

    @property
    def state_backend(self) -> None:
        """None: no backend keeps the elements."""
        return None

    def checkpoint_groups(self, key_groups: KeyGroupRange, max_parallelism: int) -> dict[int, bytes]:
        """The elements, by the first key group; empty without elements.

        Raises:
            StateError: the serialiser refuses a value.
        """
        elements = [[self._written(element), attempts] for element, attempts in self.snapshot.elements]
        collected = [self._written(record) for record in self.snapshot.collected]
        if not elements and not collected:
            return {}
        body = {"format": ELEMENTS_FORMAT, "elements": elements, "collected": collected}
        return {key_groups.start: BUILTIN.serialize(body)}

    def prepare_restore(
        self, key_groups: KeyGroupRange, max_parallelism: int, groups: Mapping[int, bytes]
    ) -> Callable[[], None]:
        if self.snapshot != OperatorSnapshot():
            raise StateError(f"{self!r} has elements already: restore a checkpoint into InFlightElements()")
        found = [self._parsed(data) for _, data in sorted(groups.items())]
        marked = any(type(element) is Watermark for each in found for element, _ in each.elements)
        if len(found) > 1 and marked:
            raise StateError(
                f"the checkpoints hold elements of {len(found)} operators, with watermarks: those of one would make "
                "records of the others late: give each operator the checkpoint of one"
            )
        whole = OperatorSnapshot(
            tuple(pair for each in found for pair in each.elements),
            tuple(record for each in found for record in each.collected),
        )

        def restore() -> None:
            self.snapshot = whole

        return restore

    def _written(self, element: Any) -> list[Any]:
        if type(element) is Watermark:
            return [element.timestamp, None, None]
        if type(element) is Record:
            return [self._serializer.serialize(element.value), element.timestamp]
        return [self._serializer.serialize(element)]

    def _read(self, parts: list[Any]) -> Any:
        if len(parts) == 3:
            return Watermark(parts[0])
        value = self._serializer.deserialize(parts[0])
        return Record(value, parts[1]) if len(parts) == 2 else value

    def _parsed(self, data: bytes) -> OperatorSnapshot:
        try:
            body = BUILTIN.deserialize(data)
            if body["format"] != ELEMENTS_FORMAT:
                raise StateError(f"elements of format {describe(body['format'])}, this version reads {ELEMENTS_FORMAT}")
            return OperatorSnapshot(
                tuple((self._read(parts), int(attempts)) for parts, attempts in body["elements"]),
                tuple(self._read(parts) for parts in body["collected"]),
            )
        except (LookupError, TypeError, ValueError, StateError) as error:
            raise StateError(f"{describe(data)} does not hold elements of an operator: {error}") from error

    def __repr__(self) -> str:
        return f"<InFlightElements, {len(self.snapshot.elements)} of them>"
