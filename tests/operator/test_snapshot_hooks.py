"""O10: a snapshot that any hook takes, at any moment, misses nothing that was read and doubles nothing."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    BatchAsyncFunction,
    Batching,
    CircuitBreaker,
    FixedBackoff,
    OperatorSnapshot,
    Retry,
)
from asyncio_operator.trace import Trace
from tests.operator.helpers import collect, virtual

COUNT = 12
REFUSED = 100
"""Added to a result that `if_result` refuses."""


@dataclass
class Probe:
    """A snapshot, with what had been read and emitted when it was taken."""

    hook: str
    snapshot: OperatorSnapshot
    read: int
    emitted: list[int]
    calls: Counter[int]


class Hooks:
    """Takes a snapshot in every hook, while that is switched on."""

    def __init__(self) -> None:
        self.operator: AsyncWaitOperator | None = None
        self.read = 0
        self.emitted: list[int] = []
        self.calls: Counter[int] = Counter()
        self.probes: list[Probe] = []

    def __call__(self, hook: str) -> None:
        if self.operator is not None:
            operator, self.operator = self.operator, None  # a snapshot asks for a representation, too
            snapshot = operator.snapshot()
            self.probes.append(Probe(hook, snapshot, self.read, self.emitted.copy(), self.calls.copy()))
            self.operator = operator


hooks = Hooks()


class Value:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        hooks("repr")
        return f"Value({self.number})"

    def __reduce__(self) -> Any:
        hooks("reduce")
        return Value, (self.number,)


class Key:
    """A key that is hashed and compared in Python."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        hooks("hash")
        return 0

    def __eq__(self, other: object) -> bool:
        hooks("eq")
        return isinstance(other, Key) and self.number == other.number


class ServiceError(Exception):
    @property
    def retryable(self) -> bool:
        hooks("retryable")
        return True

    @property
    def retry_after(self) -> float:
        hooks("retry_after")
        return 0.5


class Function(AsyncFunction[Value, Any]):
    """By number: returns, fails once, fails always, is late, or has a first result that is refused."""

    async def open(self) -> None:
        hooks("open")

    async def invoke(self, value: Value) -> Any:
        hooks("call")
        hooks.calls[value.number] += 1
        try:
            asyncio.get_running_loop().call_soon(hooks, "call_soon")
            asyncio.get_running_loop().call_later(0.3, hooks, "call_later")
            task = asyncio.ensure_future(asyncio.sleep(0.1 * (value.number % 4)))
            task.add_done_callback(lambda _: hooks("done callback"))
            await task
            hooks("call, later")
            return await self.outcome(value.number)
        finally:
            hooks("call, at its end")

    async def outcome(self, number: int) -> Any:
        kind, attempt = number % 5, hooks.calls[number]
        if kind == 2 or (kind == 1 and attempt == 1):
            raise ServiceError
        if kind == 3:
            await asyncio.sleep(100)
        return number + REFUSED if kind == 4 and attempt == 1 else number

    def timeout(self, value: Value) -> Any:
        hooks("timeout")
        return value.number

    async def close(self) -> None:
        hooks("close")


class Sequence(list[Any]):
    """Results that are looked at in Python."""

    def __len__(self) -> int:
        hooks("len")
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        hooks("iter")
        return super().__iter__()


class Many(BatchAsyncFunction[Value, Any]):
    async def invoke_batch(self, values: Any) -> Any:
        one = Function()
        return Sequence(await asyncio.gather(*map(one.invoke, values)))

    def timeout(self, value: Value) -> Any:
        return Function().timeout(value)

    async def open(self) -> None:
        hooks("open")

    async def close(self) -> None:
        hooks("close")


class Flat(Function):
    async def outcome(self, number: int) -> Any:
        return Sequence([await super().outcome(number)])


class Source:
    """Counts what it has given, and takes a snapshot when it is asked for more, and when it is closed."""

    def __init__(self, values: list[Value]) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Value]:
        for value in self.values:
            hooks("next")
            hooks.read += 1
            yield value

    async def in_time(self) -> AsyncIterator[Value]:
        try:
            for value in self.values:
                hooks("next")
                await asyncio.sleep(0.05)
                hooks("next, later")
                hooks.read += 1
                yield value
        finally:
            hooks("aclose")


def instead(value: Value, *error: Any) -> int:
    hooks("on_error" if error else "on_timeout")
    return value.number


def key(value: Value) -> Key:
    hooks("key")
    return Key(value.number % 3)


def refused(result: Any) -> bool:
    hooks("if_result")
    return result >= REFUSED if isinstance(result, int) else result[0] >= REFUSED


def clock() -> float:
    hooks("clock")
    return asyncio.get_running_loop().time()


RETRY = {"retry": Retry(max_attempts=3, backoff=FixedBackoff(0.2), if_result=refused)}
BREAKER = {"circuit_breaker": CircuitBreaker(failure_ratio=1.0, minimum_calls=1000), "clock": clock}

WAYS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], set[str]]] = {
    "plain": (Function, dict, {"timeout"}),
    "managed": (
        Function,
        lambda: {**RETRY, **BREAKER, "on_timeout": instead, "trace": Trace()},
        {"on_timeout", "if_result", "retryable", "retry_after", "clock"},
    ),
    "batched": (
        Many,
        lambda: {**RETRY, "batching": Batching(max_size=3, linger=0.1)},
        {"timeout", "if_result", "retryable", "retry_after", "len"},
    ),
    "flattened": (Flat, lambda: {"flatten": True}, {"timeout", "iter"}),
    "flattened, managed": (Flat, lambda: {"flatten": True, **RETRY}, {"timeout", "iter", "if_result"}),
}
MODES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ordered": ({"mode": "ordered"}, set()),
    "unordered": ({"mode": "unordered"}, set()),
    "key_ordered": ({"mode": "key_ordered", "key": key}, {"key", "hash", "eq"}),
}
ALWAYS = {"open", "close", "call", "call, later", "call, at its end", "next", "on_error"}
ALWAYS |= {"call_soon", "call_later", "done callback", "reduce"}


@pytest.mark.parametrize(("buffer", "asynchronous"), [(2, True), (100, False)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O10_a_snapshot_that_a_hook_takes_is_right(way, mode, buffer, asynchronous):
    make, options, expected = WAYS[way]

    def operator() -> AsyncWaitOperator:
        more: dict[str, Any] = {
            "timeout": 3.0,
            "on_error": instead if "flattened" not in way else lambda *call: [instead(*call)],
        }
        if "flattened" in way:
            more["on_timeout"] = lambda value: [Function().timeout(value)]
        return AsyncWaitOperator(make(), capacity=3, buffer=buffer, **MODES[mode][0], **more, **options())

    values = [Value(number) for number in range(COUNT)]
    source = Source(values)
    hooks.__init__()  # type: ignore[misc]
    hooks.operator = operator()
    outputs = hooks.operator.process(source.in_time() if asynchronous else source)
    async for output in outputs:
        hooks.emitted.append(output % REFUSED)
        hooks("consumer")
        pickle.dumps(hooks.probes[-1].snapshot)
    hooks.operator = None
    probes = hooks.probes
    expected = expected | MODES[mode][1] | ALWAYS | ({"next, later", "aclose"} if asynchronous else set())
    assert expected <= {probe.hook for probe in probes}

    for probe in probes:
        inside = [value.number for value, _ in probe.snapshot.elements]
        assert sorted(inside + probe.emitted) == list(range(probe.read)), probe.hook
        assert mode != "ordered" or inside == sorted(inside), probe.hook
        assert all(used <= probe.calls[value.number] for value, used in probe.snapshot.elements), probe.hook

    hooks.calls = Counter(dict.fromkeys(range(COUNT), 5))
    for probe in probes[:: max(1, len(probes) // 20)]:
        again = await collect(operator().process(values[probe.read :], restore=probe.snapshot))
        assert sorted(probe.emitted + again) == list(range(COUNT)), probe.hook
        assert mode != "ordered" or again == sorted(again), probe.hook
