"""The manifest of a checkpoint: the file CHECKPOINT, as `checkpoint_format` describes it.

Its checksum finds damage, but not a change that was made on purpose. So everything in it is checked against one
description when it is read, and no other module checks its types again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from asyncio_operator.errors import StateError, describe
from asyncio_operator.state.descriptors import QUEUE
from asyncio_operator.state.key_groups import MAX_PARALLELISM
from asyncio_operator.state.layout import FORMAT_VERSION

CHECKPOINT_FORMAT = 1
MANIFEST = "CHECKPOINT"

_HEAD = re.compile(rb"asyncio-operator checkpoint (\d{1,9}) ([0-9a-f]{8})")

Shape = Callable[[Any], bool]
"""Whether a value of JSON is what it has to be."""


def _natural(below: int) -> Shape:
    return lambda value: type(value) is int and 0 <= value < below


def _of(kind: type) -> Shape:
    return lambda value: type(value) is kind


def _one_of(*words: str) -> Shape:
    return lambda value: type(value) is str and value in words


def _items(*shapes: Shape) -> Shape:
    return lambda value: (
        type(value) is list
        and len(value) == len(shapes)
        and all(shape(item) for shape, item in zip(shapes, value, strict=True))
    )


def _each(shape: Shape) -> Shape:
    return lambda value: type(value) is list and all(map(shape, value))


def _object(**shapes: Shape) -> Shape:
    return lambda value: type(value) is dict and all(name in value and shapes[name](value[name]) for name in shapes)


def _map(key: Shape, shape: Shape) -> Shape:
    return lambda value: type(value) is dict and all(key(name) and shape(item) for name, item in value.items())


def _name(value: Any) -> bool:
    return (
        type(value) is str and value != "" and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)
    )


def _group(value: Any) -> bool:
    return re.fullmatch("0|[1-9][0-9]{0,4}", value) is not None


_SIZE = _natural(1 << 62)
_SEGMENT = _items(_SIZE, _SIZE, _natural(1 << 32))
_SEGMENTS = _map(_group, _SEGMENT)
_FIXED = _object(**{"value serialiser": _of(str)})
_KEYED = _object(**{"value serialiser": _of(str), "key serialiser": _of(str)})


def _state_meta(value: Any) -> bool:
    kinds = _one_of("value", "list", "map", "reducing", "aggregating", QUEUE)
    whole = _object(kind=kinds, serializers=_map(_of(str), _of(str)), ttl=_of(bool))(value)
    return whole and (_KEYED if value["kind"] == "map" else _FIXED)(value["serializers"])


_ROWS = _object(
    kind=_one_of("rows"), layout=_SIZE, sequence=_SIZE, states=_map(_name, _state_meta), segments=_map(_name, _SEGMENTS)
)
_ROCKSDB = _object(kind=_one_of("rocksdb"))

_MANIFEST = _object(
    max_parallelism=_natural(MAX_PARALLELISM + 1),
    key_groups=_items(_natural(MAX_PARALLELISM), _natural(MAX_PARALLELISM)),
    state=lambda value: _ROWS(value) or _ROCKSDB(value),
    services=_each(_object(kind=_of(str), segments=_SEGMENTS)),
    files=_map(_name, _SIZE),
)


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest, which makes a directory a checkpoint, with the sizes of all other files."""
    files = {str(file.relative_to(path)): file.stat().st_size for file in sorted(path.rglob("*")) if file.is_file()}
    body = json.dumps({**manifest, "files": files}, indent=1).encode()
    head = b"asyncio-operator checkpoint %d %08x\n" % (CHECKPOINT_FORMAT, crc32(body))
    (path / MANIFEST).write_bytes(head + body)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint at `path`: every part is there, of its type and within its bounds.

    Raises:
        StateError: there is none, or it is damaged, or of another version.
    """
    head, _, body = _read(path).partition(b"\n")
    found = _HEAD.fullmatch(head)
    if found is None:
        raise damaged(path, f"{MANIFEST} begins with {describe(head)}")
    if int(found[1]) != CHECKPOINT_FORMAT:
        raise _other_version(path, f"format {int(found[1])}", CHECKPOINT_FORMAT)
    if crc32(body) != int(found[2], 16):
        raise damaged(path, f"{MANIFEST} is not what was written")
    try:
        manifest = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} is not JSON") from error
    if not _MANIFEST(manifest):
        raise damaged(path, f"{MANIFEST} does not have the fields of a checkpoint, or not their types")
    start, end = manifest["key_groups"]
    if not start <= end < manifest["max_parallelism"]:
        raise damaged(path, f"{MANIFEST} has the key groups {start} to {end} of {manifest['max_parallelism']}")
    if (layout := manifest["state"].get("layout", FORMAT_VERSION)) != FORMAT_VERSION:
        raise _other_version(path, f"state of format {layout}", FORMAT_VERSION)
    return dict(manifest)


def damaged(path: Path, what: str) -> StateError:
    """The error for a checkpoint whose files have changed since they were written."""
    return StateError(f"the checkpoint {path} is damaged: {what}; restore another one")


def _other_version(path: Path, has: str, known: int) -> StateError:
    return StateError(
        f"the checkpoint {path} has {has}, this version reads {known}: restore it with the version that wrote it"
    )


def _read(path: Path) -> bytes:
    try:
        return (path / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if not path.exists():
            raise StateError(f"there is no checkpoint at {path}: correct the path") from None
        raise StateError(
            f"{path} is not a checkpoint, or was never completed: it has no file {MANIFEST}; restore another one"
        ) from None
    except OSError as error:
        raise StateError(
            f"the checkpoint {path} cannot be read: remove the cause, or restore another one ({error})"
        ) from error
