"""When two specifications are the same: equal class, equal fields, functions with equal code and captured values.

A worker shares clients between specifications with the same fingerprint. So a copy that was pickled and sent to another
process must have an equal fingerprint, and any difference that could make another client must give another fingerprint.
A value that cannot be compared counts as unique: this costs a second client, but never gives a wrong one.

An object is compared by what its pickle would hold, as ``__reduce_ex__`` gives it. A module, function or class that can
be imported is compared by its name. One that cannot be imported (from ``__main__``, local, a lambda, decorated, made at
run time) is pickled by value, so it is compared by its members, or by its code with the globals that the code names.
This is also done for wrappers such as that of ``functools.lru_cache``, which pickle knows only by name. Objects that
can contain themselves are numbered; the second time one is met, its number is used.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import pickle
import sys
import types
import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NewType, TypeVar

_NOTHING = object()

_PLAIN = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)

_GLOBAL_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")

# Attributes that Python itself writes into a module, and into a class.
_MODULE_ATTRIBUTES = {"__builtins__", "__cached__", "__loader__", "__spec__", "__warningregistry__"}
_CLASS_ATTRIBUTES = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"),
    *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__type_params__"),
    *("__slotnames__", "__annotations_cache__"),
}


def fingerprint(value: object, by_value: Collection[str] = ()) -> str:
    """A digest that is equal for equal specifications. It reveals nothing of its input, secrets included.

    Args:
        by_value: modules that can be imported here, but are pickled by value all the same.
    """
    try:
        return _digest(value, by_value)
    except Exception:  # A value may refuse to be pickled in any way, or be nested too deeply.
        return hashlib.sha256(uuid.uuid4().bytes).hexdigest()


def _digest(value: object, by_value: Collection[str]) -> str:
    digest = hashlib.sha256()
    for part in _Walk(by_value).parts(value):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


class _Walk:
    """A walk over one specification. It yields byte strings that distinguish it from any other."""

    def __init__(self, by_value: Collection[str]) -> None:
        self._by_value = by_value
        # The object is kept too: the id of a deleted object may be used again.
        self._seen: dict[int, tuple[int, Any]] = {}

    def parts(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        if kind in _PLAIN:
            yield f"{kind.__name__}:{value!r}".encode("utf-8", "surrogatepass")
        elif kind is tuple:
            # Not numbered: the compiler and pickle decide whether equal tuples are one object.
            yield from self._sequence("tuple", value)
        elif kind is types.CellType:
            # Not numbered: functions that share a variable have one cell, and their copies a cell each.
            try:
                content: tuple[Any, ...] = (value.cell_contents,)
            except ValueError:
                content = ()
            yield from self._sequence("cell", content)
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
            yield from sorted(_digest(item, self._by_value).encode() for item in value)
        elif kind is types.MappingProxyType:
            yield from self._items("proxy", dict(value))
        elif isinstance(value, types.ModuleType):
            yield f"module:{value.__name__}".encode()
            if not self._can_be_imported(value, value.__name__, ""):
                members = {name: member for name, member in vars(value).items() if name not in _MODULE_ATTRIBUTES}
                yield from self._items("members", members)
        elif isinstance(value, type):
            yield from self._class(value)
        elif kind is types.FunctionType:
            yield from self._function(value)
        elif kind is types.CodeType:
            yield value.co_code
            yield value.co_exceptiontable
            counts = (value.co_flags, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
            names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
            yield from self._sequence("code", (*counts, *names, value.co_consts))
        elif isinstance(value, staticmethod | classmethod):
            yield from self._sequence(kind.__name__, (value.__func__,))
        elif isinstance(value, property):
            yield from self._sequence("property", (value.fget, value.fset, value.fdel))
        elif isinstance(value, TypeVar):
            yield from self._sequence("type variable", (value.__name__, value.__bound__, value.__constraints__))
        else:
            yield from self._object(value)

    def _sequence(self, name: str, values: Collection[Any]) -> Iterator[bytes]:
        yield f"{name}:{len(values)}".encode()
        for value in values:
            yield from self.parts(value)

    def _items(self, name: str, values: dict[Any, Any]) -> Iterator[bytes]:
        yield f"{name}:{len(values)}".encode()
        # Equal dictionaries may have their keys in different orders, and a copy often has.
        for key in sorted(values, key=self._order):
            yield from self.parts(key)
            yield from self.parts(values[key])

    def _order(self, key: Any) -> tuple[str, str]:
        """Sorts the keys of equal dictionaries into the same order."""
        return ("", key) if type(key) is str else (type(key).__name__, _digest(key, self._by_value))

    def _class(self, cls: type) -> Iterator[bytes]:
        if self._can_be_imported(cls, cls.__module__, cls.__qualname__):
            yield f"class:{cls.__module__}.{cls.__qualname__}".encode()
            return
        own = {name: member for name, member in vars(cls).items() if _is_written(cls, name, member)}
        yield f"class:{cls.__qualname__}".encode()
        yield from self._sequence("bases", (type(cls), *cls.__bases__))
        yield from self._items("members", own)

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        if self._can_be_imported(function, function.__module__, function.__qualname__):
            yield f"function:{function.__module__}.{function.__qualname__}".encode()
            # With its code, because a module may be edited and loaded again under the same name.
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

    def _object(self, value: Any) -> Iterator[bytes]:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):
            module = pickle.whichmodule(value, reduced)  # type: ignore[attr-defined]
            state = getattr(value, "__dict__", {})
            if self._can_be_imported(value, module, reduced):
                yield f"global:{module}.{reduced}".encode()
            elif "__wrapped__" in state or isinstance(value, NewType):
                yield from self._sequence("wrapper", (type(value), state))
            else:
                yield uuid.uuid4().bytes
        else:
            # An iterator is used up by reading, and has no digest of its own: only its items count.
            yield from self._sequence("object", [list(p) if isinstance(p, Iterator) else p for p in reduced])

    def _can_be_imported(self, thing: Any, module: str | None, name: str) -> bool:
        """Whether another process would import this object by this name; an empty name means the module itself."""
        if module is None or module == "__main__" or any(f"{module}.".startswith(f"{m}.") for m in self._by_value):
            return False
        found: Any = sys.modules.get(module)
        for step in name.split(".") if name else ():
            found = getattr(found, step, None)
        return found is thing


def _is_written(cls: type, name: str, member: Any) -> bool:
    """Whether the class body defines this member, and Python did not add it by itself."""
    if name in _CLASS_ATTRIBUTES or isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    if name == "__annotations__" and not member:  # Python creates it when it is first read.
        return False
    if name == "__subclasshook__" and getattr(member, "__module__", None) == "typing":  # That of every protocol.
        return False
    # A member that a base has too, as the same object, is not pickled: the copy inherits it.
    inherited = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), _NOTHING)
    return inherited is not member


def _names(code: types.CodeType) -> Iterable[str]:
    """The names of globals that a function uses, also inside of functions that it defines."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL_NAMES}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(_names(constant))
    return names
