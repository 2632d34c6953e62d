"""When two specifications are the same: equal class, equal fields, functions with equal code and captured values.

A worker shares clients between specifications with the same fingerprint, so a fingerprint must be equal for a copy that
travelled by pickle, in another process too, and differ for anything that could make another client. What cannot be
compared is taken for unique: the price is a second client, never a wrong one.

An object is what its pickle would hold, taken apart by ``__reduce_ex__``. A function or class that can be imported is
its name; one that cannot (of ``__main__``, local, a lambda, decorated) travels by value, so it is its code, with the
globals that it names. Objects that can hold themselves are numbered as they are met, and come a second time as their
number.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import sys
import types
import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)

_GLOBAL_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")


def fingerprint(value: object, by_value: Collection[str] = ()) -> str:
    """A digest that is equal for equal specifications. It reveals nothing of what went in, secrets included.

    Args:
        by_value: modules that can be imported here but travel by value all the same.
    """
    digest = hashlib.sha256()
    try:
        for part in _Walk(by_value).parts(value):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    except RecursionError:
        digest.update(_unique())
    return digest.hexdigest()


def _unique() -> bytes:
    return uuid.uuid4().bytes


class _Walk:
    """A walk over one specification, as byte strings that tell it from any other."""

    def __init__(self, by_value: Collection[str]) -> None:
        self._by_value = by_value
        # With the object itself, because the address of one that is gone may be given to another.
        self._seen: dict[int, tuple[int, Any]] = {}

    def parts(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        if kind in _PLAIN:
            yield f"{kind.__name__}:{value!r}".encode("utf-8", "surrogatepass")
        elif kind is tuple:
            # Whether equal tuples are one object is up to the compiler, and to pickle.
            yield from self._sequence("tuple", value)
        elif id(value) in self._seen:
            yield f"seen:{self._seen[id(value)][0]}".encode()
        else:
            self._seen[id(value)] = (len(self._seen), value)
            yield from self._taken_apart(value)

    def _taken_apart(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        if kind is list:
            yield from self._sequence("list", value)
        elif kind is dict:
            yield from self._items("dict", value)
        elif kind is set or kind is frozenset:
            yield f"{kind.__name__}:{len(value)}".encode()
            yield from sorted(fingerprint(item, self._by_value).encode() for item in value)
        elif isinstance(value, types.ModuleType):
            yield f"module:{value.__name__}".encode()
        elif isinstance(value, type):
            yield from self._class(value)
        elif kind is types.FunctionType:
            yield from self._function(value)
        elif kind is types.CodeType:
            yield from self._code(value)
        elif kind is types.CellType:
            yield from self._sequence("cell", (value.cell_contents,) if _filled(value) else ())
        elif isinstance(value, staticmethod | classmethod):
            yield from self._sequence(kind.__name__, (value.__func__,))
        elif isinstance(value, property):
            yield from self._sequence("property", (value.fget, value.fset, value.fdel))
        else:
            yield from self._object(value)

    def _sequence(self, name: str, values: Collection[Any]) -> Iterator[bytes]:
        yield f"{name}:{len(values)}".encode()
        for value in values:
            yield from self.parts(value)

    def _items(self, name: str, values: dict[Any, Any]) -> Iterator[bytes]:
        yield f"{name}:{len(values)}".encode()
        for key in sorted(values, key=_order):
            yield from self.parts(key)
            yield from self.parts(values[key])

    def _class(self, cls: type) -> Iterator[bytes]:
        if self._can_be_imported(cls):
            yield f"class:{cls.__module__}.{cls.__qualname__}".encode()
            return
        own = {name: member for name, member in vars(cls).items() if _is_written(name, member)}
        yield f"class:{cls.__qualname__}".encode()
        yield from self._sequence("bases", (type(cls), *cls.__bases__))
        yield from self._items("members", own)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        if self._can_be_imported(function):
            yield f"function:{function.__module__}.{function.__qualname__}".encode()
            yield from self.parts(function.__code__)
            return
        yield from self._sequence(
            "function",
            (
                function.__code__,
                function.__defaults__,
                function.__kwdefaults__,
                function.__closure__,
                function.__dict__,
            ),
        )
        scope = function.__globals__
        yield from self._items("globals", {name: scope[name] for name in _names(function.__code__) if name in scope})

    def _code(self, code: types.CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield code.co_exceptiontable
        counts = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        yield from self._sequence("code", (*counts, *names, code.co_consts))

    def _object(self, value: Any) -> Iterator[bytes]:
        try:
            reducer = copyreg.dispatch_table.get(type(value))
            reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        except Exception:
            yield _unique()
            return
        if isinstance(reduced, str):
            yield f"global:{getattr(value, '__module__', None)}.{reduced}".encode()
        else:
            yield from self._sequence("object", [list(p) if isinstance(p, Iterator) else p for p in reduced])

    def _can_be_imported(self, thing: Any) -> bool:
        """Whether pickle sends its name."""
        module = thing.__module__
        if module is None or module == "__main__" or any(f"{module}.".startswith(f"{m}.") for m in self._by_value):
            return False
        found: Any = sys.modules.get(module)
        for name in thing.__qualname__.split("."):
            found = getattr(found, name, None)
        return found is thing


def _is_written(name: str, member: Any) -> bool:
    """Whether a class has this member because somebody wrote it, and not because Python keeps its books there."""
    if isinstance(member, types.FunctionType | staticmethod | classmethod | property):
        return True
    books = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
    return not books and name != "_abc_impl" and not (name[:2] == name[-2:] == "__")


def _order(key: Any) -> tuple[str, str]:
    """What puts the keys of equal dictionaries into one order."""
    return ("", key) if type(key) is str else (type(key).__name__, fingerprint(key))


def _names(code: types.CodeType) -> Iterable[str]:
    """The globals that a function looks up, also from within the functions it defines."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL_NAMES}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_names(constant))
    return names


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
