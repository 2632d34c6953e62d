"""When two specifications are the same: equal class, equal fields, functions with equal code and captured values.

A worker shares clients between specifications with the same fingerprint, so a fingerprint must be equal for a copy that
travelled by pickle, in another process too, and differ for anything that could make another client. What cannot be
compared is taken for unique: the price is a second client, never a wrong one.
"""

from __future__ import annotations

import builtins
import functools
import hashlib
import pickle
import types
import uuid
from collections.abc import Iterable
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)


def fingerprint(value: object) -> str:
    """A digest that is equal for equal specifications. It reveals nothing of what went in, secrets included."""
    digest = hashlib.sha256()
    for part in _parts(value, {}):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, int]) -> Iterable[bytes]:
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__}:{value!r}".encode("utf-8", "surrogatepass")
        return
    if id(value) in seen:
        yield f"seen:{seen[id(value)]}".encode()
        return
    seen[id(value)] = len(seen)
    match value:
        case types.ModuleType():
            yield f"module:{value.__name__}".encode()
        case type():
            yield f"class:{value.__module__}.{value.__qualname__}".encode()
            if _by_value(value):
                yield from _dict({k: v for k, v in vars(value).items() if callable(v)}, seen)
        case types.FunctionType():
            yield f"function:{value.__module__}.{value.__qualname__}".encode()
            yield from _function(value, seen)
        case types.CodeType():
            yield value.co_code
            yield from _sequence((value.co_consts, value.co_names, value.co_freevars), seen)
        case types.MethodType():
            yield from _sequence((value.__func__, value.__self__), seen)
        case types.CellType():
            yield from _sequence((value.cell_contents,) if _filled(value) else (), seen)
        case functools.partial():
            yield from _sequence((value.func, value.args, value.keywords), seen)
        case staticmethod() | classmethod() | property():
            yield from _sequence(getattr(value, "fget", None) or value.__func__, seen)  # type: ignore[union-attr]
        case dict():
            yield from _dict(value, seen)
        case list() | tuple():
            yield type(value).__name__.encode()
            yield from _sequence(value, seen)
        case set() | frozenset():
            yield type(value).__name__.encode()
            yield from sorted(fingerprint(item).encode() for item in value)
        case _:
            yield from _object(value, seen)


def _sequence(values: Any, seen: dict[int, int]) -> Iterable[bytes]:
    values = values if isinstance(values, list | tuple) else (values,)
    yield str(len(values)).encode()
    for value in values:
        yield from _parts(value, seen)


def _dict(values: dict[Any, Any], seen: dict[int, int]) -> Iterable[bytes]:
    yield f"dict:{len(values)}".encode()
    for key, value in values.items():
        yield from _parts(key, seen)
        yield from _parts(value, seen)


def _function(function: types.FunctionType, seen: dict[int, int]) -> Iterable[bytes]:
    yield from _parts(function.__code__, seen)
    yield from _sequence((function.__defaults__, function.__kwdefaults__, function.__closure__), seen)
    if _by_value(function):
        for name in _names(function.__code__):
            if name in function.__globals__ and not hasattr(builtins, name):
                yield name.encode()
                yield from _parts(function.__globals__[name], seen)


def _names(code: types.CodeType) -> list[str]:
    """The names that a function looks up, also from within the functions it defines."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_names(constant))
    return sorted(names)


def _object(value: Any, seen: dict[int, int]) -> Iterable[bytes]:
    cls = type(value)
    yield from _parts(cls, seen)
    state = value.__getstate__() if hasattr(value, "__dict__") or hasattr(cls, "__slots__") else None
    if state is not None and not _has_own_pickling(cls):
        yield from _parts(state, seen)
        return
    try:
        yield pickle.dumps(value, protocol=4)
    except Exception:
        yield uuid.uuid4().bytes


def _has_own_pickling(cls: type) -> bool:
    return any("__reduce__" in vars(c) or "__reduce_ex__" in vars(c) for c in cls.__mro__[:-1])


def _by_value(thing: Any) -> bool:
    """Whether pickling would send the thing itself and not its name: it cannot be imported elsewhere."""
    return thing.__module__ == "__main__" or "<locals>" in thing.__qualname__ or "<lambda>" in thing.__qualname__


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
