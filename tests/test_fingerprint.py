"""Law L8: when two specifications share what a worker has opened for them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import functools
import importlib
import json
import re
import subprocess
import sys
import textwrap
import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NewType, TypeVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from asyncio_operator.fingerprint import fingerprint
from enrichers import FunctionEnricher, enricher

ROOT = Path(__file__).parents[1]

SOME_GLOBAL = {"url": "http://a"}


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Plain:
    a: Any = 1
    b: Any = "x"


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


class Named(str):
    """A secret that does not show itself."""

    def __repr__(self) -> str:
        return "***"


def from_main(source: str) -> dict[str, Any]:
    """What a notebook would hold after running this."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(textwrap.dedent(source), "<notebook>", "exec", dont_inherit=True), scope)
    return scope


def a_module(source: str) -> types.ModuleType:
    """A module that cannot be imported, so that it travels by value."""
    module = types.ModuleType("made_at_run_time")
    exec(compile(textwrap.dedent(source), "<module>", "exec", dont_inherit=True), vars(module))
    return module


def calling(module: types.ModuleType) -> Any:
    def look(key: Any) -> Any:
        return module.convert(key)

    return look


# -- equal

MAKERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: (1, 1.5, "text", b"bytes", None, True, ..., 2j, -0.0),
    "dataclass": lambda: Plain({"k": [1, 2]}, frozenset({"a", "b"})),
    "nested": lambda: Plain(Plain(Plain(Slotted([1, {2}])))),
    "values": lambda: [dt.date(2020, 1, 1), dt.timedelta(5), Decimal("1.50"), re.compile("a+"), Color.RED],
    "schema": lambda: pa.schema([("a", pa.list_(pa.int64())), ("b", pa.decimal128(5, 2))], {"k": "v"}),
    "function": lambda: lambda k, n=5: k + n,
    "closure": lambda: _adding(5),
    "functions that share a variable": lambda: _sharing([5]),
    "partial": lambda: functools.partial(lambda a, b: (a, b), 1, b={"x": 2}),
    "bound method": lambda: Plain(Slotted(1)).__eq__,
    "builtin": lambda: [len, "a".join, int, OrderedDict, pa.int64],
    "collections": lambda: [OrderedDict(a=1), defaultdict(list, a=[1]), types.SimpleNamespace(a=1)],
    "enricher": lambda: FunctionEnricher(from_main("async def f(k): return {'x': k}")["f"], "x long"),
    "decorated": lambda: enricher("x long")(from_main("async def f(k): return {'x': k}")["f"]),
    "class": lambda: from_main(
        """
        class A:
            url = "a"
            def f(self): return self.url
            @property
            def p(self): return 1
        thing = A()
        """
    )["thing"],
    "class with a base": lambda: from_main(
        """
        import abc, dataclasses
        class Base(abc.ABC):
            @abc.abstractmethod
            def f(self): ...
            @staticmethod
            def s(): return helper()
            @classmethod
            def c(cls): return cls
        @dataclasses.dataclass(frozen=True, slots=True)
        class A(Base):
            a: int = 5
            b: list = dataclasses.field(default_factory=list)
            def f(self): return super().f()
        def helper(): return A
        thing = A()
        """
    )["thing"],
    "enumeration": lambda: from_main("import enum\nclass C(enum.Enum):\n  A = 1\n  B = 2\nthing = C.B")["thing"],
    "recursion": lambda: from_main(
        """
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        """
    )["even"],
    "nested functions": lambda: from_main(
        """
        LIMIT = 3
        async def f(key):
            def g():
                class H:
                    limit = LIMIT
                return [H.limit for _ in range(LIMIT)]
            try:
                return g()
            except ValueError:
                return None
        """
    )["f"],
    "cycle": lambda: _cycle(1),
    "module": lambda: calling(a_module("UNIT = {'m': 1}\ndef convert(k): return UNIT[k], other\ndef other(): pass")),
    "module imported": lambda: [types, dt, from_main("import os.path\ndef f(k): return os.path.join(k)")["f"]],
    "class with members of any kind": lambda: from_main(
        """
        import dataclasses, functools, re, typing
        T = typing.TypeVar("T", bound="Base")
        @dataclasses.dataclass
        class Base(typing.Generic[T]):
            id: int
            limit = None
            def add(n, key): return n + key
            __call__ = functools.partial(add, 5)
            __url__ = "http://a"
        @dataclasses.dataclass
        class A(Base[int]):
            limit = None
            some: typing.Optional[list[T]] = dataclasses.field(default=None, metadata={"unit": "m"})
            pattern: typing.ClassVar[re.Pattern] = re.compile("a+")
            call: typing.Callable[[int], "A"] | None = None
        class Row(typing.NamedTuple):
            a: int = 5
        thing = A(1, Row())
        """
    )["thing"],
    "protocol": lambda: from_main(
        """
        import typing
        @typing.runtime_checkable
        class P(typing.Protocol):
            name: str
            def f(self) -> int: ...
        class A(P):
            __slots__ = ("name",)
            def f(self): return isinstance(self, P)
        thing = A
        """
    )["thing"],
    "dataclass with a cache": lambda: _looked_at(WithCache(5)),
    "method of a partial": lambda: functools.partial(functools.partial(_adding, 5), x=1).__call__,
}


@dataclasses.dataclass(frozen=True)
class WithCache:
    a: int

    @functools.cached_property
    def doubled(self) -> int:
        return self.a * 2


def _looked_at(value: WithCache) -> WithCache:
    assert value.doubled
    return value


def _adding(n: int) -> Any:
    return lambda k: k + n


def _sharing(n: list[int]) -> Any:
    return (lambda k: k + n), (lambda k: n + k)


def _cycle(n: int) -> Any:
    a: list[Any] = [n]
    b = {"a": a, "self": Plain(a)}
    a.append(b)
    return Plain(a, b)


@pytest.mark.parametrize("name", MAKERS)
def test_L8_specifications_made_apart_are_equal(name: str) -> None:
    assert fingerprint(MAKERS[name]()) == fingerprint(MAKERS[name]())


def test_L8_a_copy_that_travelled_is_equal_in_another_process() -> None:
    values = {name: make() for name, make in MAKERS.items()}
    program = (
        "import pickle, sys; from asyncio_operator.fingerprint import fingerprint; "
        "print(*(fingerprint(pickle.loads(value)) for value in pickle.load(sys.stdin.buffer)))"
    )
    sent = cloudpickle.dumps([cloudpickle.dumps(value) for value in values.values()])
    run = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, cwd=ROOT, check=True)
    told = dict(zip(values, run.stdout.decode().split(), strict=True))
    assert told == {name: fingerprint(value) for name, value in values.items()}


def test_the_order_in_which_a_dictionary_or_a_set_was_filled_does_not_matter() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({1: 1, "1": 2, (1,): 3}) == fingerprint({(1,): 3, "1": 2, 1: 1})
    assert fingerprint(set("abcdefgh")) == fingerprint(set("hgfedcba"))


def test_functions_are_equal_by_what_they_do_and_not_by_name() -> None:
    made = from_main("def f(k): return k + 1\ndef g(k): return k + 1")
    assert fingerprint(made["f"]) == fingerprint(made["g"])


# -- different


def different(first: Any, second: Any) -> bool:
    return fingerprint(first) != fingerprint(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        ("a", b"a"),
        (None, "None"),
        ((1, 2), [1, 2]),
        ([[1], 2], [[1, 2]]),
        ((1, (2, 3)), ((1, 2), 3)),
        ({1}, frozenset({1})),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, OrderedDict(a=1)),
        (defaultdict(list), defaultdict(int)),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (Plain(1), Plain(2)),
        (Plain(1), Slotted(1)),
        (Slotted(1), Slotted(2)),
        (Named("secret"), Named("other")),
        (Named("secret"), "secret"),
        (Color.RED, Color.BLUE),
        (re.compile("a"), re.compile("a", re.IGNORECASE)),
        (pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int32())])),
        (pa.schema([("a", pa.int64())]), pa.schema([("b", pa.int64())])),
        (functools.partial(int, 1), functools.partial(int, 2)),
        (functools.partial(int, 1), functools.partial(float, 1)),
        (Plain(1).__eq__, Plain(2).__eq__),
        (len, max),
        (int, float),
        (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    ],
)
def test_L8_different_values_are_different(first: Any, second: Any) -> None:
    assert different(first, second)
    assert different(Plain(first), Plain(second))
    assert different([first, second], [second, first])


FUNCTIONS = {
    "code": ("def f(k): return k + %", "1", "2"),
    "names": ("def f(k): return k.%", "a", "b"),
    "order of arguments": ("def f(%): return a", "a, b", "b, a"),
    "keywords only": ("def f(a, %=1): return a", "b", "*, b"),
    "defaults": ("def f(k, n=%): return n", "1", "2"),
    "keyword defaults": ("def f(k, *, n=%): return n", "1", "2"),
    "kind": ("% f(k): return k", "async def", "def"),
    "exceptions caught": ("def f(k):\n  %\n    k()\n  except ValueError: pass", "try:\n    k()", "k()\n  try:"),
    "closures": ("def g(n):\n  def f(k): return n\n  return f\nf = g(%)", "1", "2"),
    "globals": ("N = %\ndef f(k): return N", "1", "2"),
    "globals of nested functions": ("N = %\ndef f(k): return [lambda: N]", "1", "2"),
    "globals that hide a builtin": ("id = %\ndef f(k): return id", "1", "2"),
    "functions called": ("def g(): return %\ndef f(k): return g()", "1", "2"),
    "functions called far away": ("def f(k): return g()\ndef g(): return h()\ndef h(): return f, %", "1", "2"),
    "attributes": ("def f(k): return f.n\nf.n = %", "1", "2"),
    "class attributes": ("class A: url = '%'\nf = A()", "a", "b"),
    "methods": ("class A:\n  def g(self): return %\nf = A()", "1", "2"),
    "properties": ("class A:\n  @property\n  def g(self): return %\nf = A()", "1", "2"),
    "static methods": ("class A:\n  @staticmethod\n  def g(): return %\nf = A()", "1", "2"),
    "bases": ("class B:\n  def g(self): return %\nclass A(B): pass\nf = A()", "1", "2"),
    "lambdas": ("f = lambda k: k % 1", "+", "-"),
    "modules": ("import % as m\ndef f(k): return m", "json", "math"),
    "dunder members": ("class A: __url__ = '%'\nf = A()", "a", "b"),
    "dunder members that are called": (
        "import functools\nclass A: __call__ = functools.partial(max, %)\nf = A()",
        "1",
        "2",
    ),
    "members that hide those of a base": ("class B: n = 1\nclass C(B): n = 2\nclass A(C): %\nf = A()", "n = 1", "pass"),
    "annotations": ("class A: n: %\nf = A()", "int", "str"),
    "type variables": ("import typing\nT = typing.TypeVar('T', bound=%)\ndef f(k): return T", "int", "str"),
    "new types": ("import typing\nT = typing.NewType('T', %)\ndef f(k): return T", "int", "str"),
    "functions with a cache": ("import functools\n@functools.lru_cache\ndef f(k): return %", "1", "2"),
    "sizes of a cache": ("import functools\n@functools.lru_cache(%)\ndef f(k): return 1", "5", "6"),
    "functions with a cache called": (
        "import functools\n@functools.cache\ndef g(k): return n\nn = %\ndef f(k): return g(k)",
        "1",
        "2",
    ),
    "default values of fields": ("import dataclasses\n@dataclasses.dataclass\nclass A:\n  n: int = %\nf = A", "1", "2"),
}
"""By what differs: a source, and the two texts that replace its %."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_L8_functions_and_classes_that_travel_by_value_differ_in_all_that_travels(name: str) -> None:
    source, one, other = FUNCTIONS[name]
    first, same, second = (from_main(source.replace("%", part))["f"] for part in (one, one, other))
    assert different(first, second)
    assert not different(first, same)


def test_L8_an_attribute_is_no_global() -> None:
    sources = "url = 1\ndef f(k): return k.url", "url = 2\ndef f(k): return k.url"
    first, second = (from_main(source)["f"] for source in sources)
    assert not different(first, second)


def test_L8_a_function_behind_a_decorator_travels_by_value_with_its_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(DECORATED)
    assert fingerprint(DECORATED) == before
    monkeypatch.setitem(SOME_GLOBAL, "url", "http://b")
    assert fingerprint(DECORATED) != before


@enricher("x string")
async def DECORATED(key: Any) -> Any:
    return {"x": SOME_GLOBAL["url"]}


async def by_name(key: Any) -> Any:
    return {"x": SOME_GLOBAL["url"]}


def test_L8_what_can_be_imported_is_its_name_unless_its_module_travels_by_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    modules = {__name__.partition(".")[0]}
    by_reference, by_value = fingerprint(by_name), fingerprint(by_name, modules)
    monkeypatch.setitem(SOME_GLOBAL, "url", "http://b")
    assert fingerprint(by_name) == by_reference
    assert fingerprint(by_name, modules) != by_value
    assert fingerprint(by_name, {"test"}) == by_reference


def test_L8_a_module_that_cannot_be_imported_is_its_members() -> None:
    first, same, other = (a_module(f"def convert(k): return unit()\ndef unit(): return {n}") for n in (1, 1, 2))
    assert not different(first, same)
    assert not different(calling(first), calling(same))
    assert different(first, other)
    assert different(calling(first), calling(other))


def test_L8_a_module_that_travels_by_value_is_its_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "travelling_by_value.py"
    path.write_text("import functools, re\n@functools.cache\ndef convert(k): return UNIT\nUNIT = 'm'\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(path.stem)
    monkeypatch.setitem(sys.modules, path.stem, module)
    look, modules = calling(module), {path.stem}
    by_name, by_value, cached = fingerprint(look), fingerprint(look, modules), fingerprint(module.convert, modules)
    assert fingerprint(look, modules) == by_value
    monkeypatch.setattr(module, "UNIT", "km")
    assert fingerprint(look) == by_name
    assert fingerprint(look, modules) != by_value
    assert fingerprint(module.convert, modules) != cached


def test_L8_a_registered_module_is_equal_after_the_journey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "registered_by_value.py"
    path.write_text("import json\nclass A:\n  n: int = 1\ndef convert(k): return A, json, other(k)\ndef other(k): ...")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(path.stem)
    monkeypatch.setitem(sys.modules, path.stem, module)
    cloudpickle.register_pickle_by_value(module)
    try:
        copy = cloudpickle.loads(cloudpickle.dumps(calling(module)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    before = fingerprint(calling(module), {path.stem})
    monkeypatch.delitem(sys.modules, path.stem)  # another process has not imported it
    assert fingerprint(copy) == before


def test_L8_a_module_replaced_is_another() -> None:
    assert different(calling(types.ModuleType("json")), calling(json))


@functools.lru_cache
def cached(key: Any) -> Any:
    return key


T = TypeVar("T")
Id = NewType("Id", int)


def test_L8_a_wrapper_that_can_be_imported_is_its_name() -> None:
    for thing in (cached, T, Id, len, NotImplemented, pa.int64, TypeVar("T")):
        assert not different(thing, thing)
    assert not different(cached, cloudpickle.loads(cloudpickle.dumps(cached)))


def test_L8_addresses_that_are_given_again_do_not_make_different_things_equal() -> None:
    class Fresh:
        def __init__(self, n: int) -> None:
            self.n = n

        def __getstate__(self) -> Any:
            return {"n": [self.n]}

    assert different([Fresh(i) for i in range(50)], [Fresh(0) for i in range(50)])
    assert not different([Fresh(i) for i in range(50)], [Fresh(i) for i in range(50)])


# -- unique


class CalledLikeAGlobal:
    """It tells pickle the name of something else."""

    def __reduce__(self) -> str:
        return "SOME_GLOBAL"


@pytest.mark.parametrize(
    "make", [threading.Lock, lambda: (i for i in range(3)), lambda: sys.stdout.buffer, CalledLikeAGlobal]
)
def test_what_cannot_be_compared_is_unique(make: Callable[[], Any]) -> None:
    thing = make()
    assert different(Plain(thing), Plain(thing))


def test_what_is_too_deep_is_unique() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert different(deep, deep)


def test_what_holds_itself_through_a_set_is_unique_at_once() -> None:
    class Node:
        def __init__(self, others: set[Any]) -> None:
            self.others = others

    nodes: set[Any] = set()
    nodes.update(Node(nodes) for _ in range(3))
    assert different(nodes, nodes)


class Broken:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("no")


class BrokenLater:
    def __reduce__(self) -> Any:
        return (list, (), None, (1 // 0 for _ in range(1)))


class Module(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "make", [Broken, BrokenLater, lambda: Module("m"), lambda: types.MappingProxyType({1: Broken()})]
)
def test_an_object_that_refuses_is_unique_and_no_error(make: Callable[[], Any]) -> None:
    thing = make()
    assert different(thing, thing)
    assert different([{1: (thing,)}], [{1: (thing,)}])


# -- secrets, properties


def test_a_secret_is_not_in_the_fingerprint() -> None:
    digest = fingerprint(Plain("postgresql://bob:s3cret@host/db"))
    assert re.fullmatch("[0-9a-f]{64}", digest)
    assert "s3cret" not in digest
    assert b"s3cret".hex() not in digest


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_L8_values_share_a_fingerprint_exactly_if_they_are_equal_in_value_and_type(first: Any, second: Any) -> None:
    assert fingerprint(first) == fingerprint(cloudpickle.loads(cloudpickle.dumps(first)))
    assert (fingerprint(first) == fingerprint(second)) == (_typed(first) == _typed(second))


def _typed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return (type(value), [_typed(v) for v in value])
    if isinstance(value, dict):
        return (dict, {k: _typed(v) for k, v in value.items()})
    return (type(value), repr(value))
