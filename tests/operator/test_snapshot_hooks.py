"""O10: a snapshot that any hook takes, at any moment, misses nothing that was read and doubles nothing."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import FrameType
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
    """Takes a snapshot whenever a function of this file is entered, or goes on, while there is an operator."""

    def __init__(self) -> None:
        self.operator: AsyncWaitOperator | None = None
        self.read = 0
        self.emitted: list[int] = []
        self.calls: Counter[int] = Counter()
        self.probes: list[Probe] = []

    def look(self, frame: FrameType, event: str, _: object) -> None:
        # Python calls no profiler while one runs: what the snapshot itself calls is no hook.
        if event == "call" and frame.f_code.co_filename == __file__ and self.operator is not None:
            snapshot = self.operator.snapshot()
            name = frame.f_code.co_qualname
            self.probes.append(Probe(name, snapshot, self.read, self.emitted.copy(), self.calls.copy()))


hooks = Hooks()


class Value:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Value({self.number})"

    def __reduce__(self) -> Any:
        return Value, (self.number,)


class Key(Value):
    """A key that is hashed and compared in Python."""

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


class ServiceError(Exception):
    @property
    def retryable(self) -> bool:
        return True

    @property
    def retry_after(self) -> float:
        return 0.5


def tick(*_: Any) -> None:
    """A callback of the loop."""


class Function(AsyncFunction[Value, Any]):
    """By number: returns, fails once, fails always, is late, or has a first result that is refused."""

    async def open(self) -> None:
        pass

    async def invoke(self, value: Value) -> Any:
        hooks.calls[value.number] += 1
        asyncio.get_running_loop().call_soon(tick)
        asyncio.get_running_loop().call_later(0.3, tick)
        task = asyncio.ensure_future(asyncio.sleep(0.1 * (value.number % 4)))
        task.add_done_callback(tick)
        await task
        return await self.outcome(value.number)

    async def outcome(self, number: int) -> Any:
        kind, attempt = number % 5, hooks.calls[number]
        if kind == 2 or (kind == 1 and attempt == 1):
            raise ServiceError
        if kind == 3:
            await asyncio.sleep(100)
        return number + REFUSED if kind == 4 and attempt == 1 else number

    def timeout(self, value: Value) -> Any:
        return value.number

    async def close(self) -> None:
        pass


class Sequence(list[Any]):
    """Results that are looked at in Python."""

    def __len__(self) -> int:
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()


class Many(BatchAsyncFunction[Value, Any]):
    async def invoke_batch(self, values: Any) -> Any:
        return Sequence(await asyncio.gather(*map(Function().invoke, values)))

    def timeout(self, value: Value) -> Any:
        return value.number


class Flat(Function):
    async def outcome(self, number: int) -> Any:
        return Sequence([await super().outcome(number)])

    def timeout(self, value: Value) -> Any:
        return [value.number]


def source_of(values: list[Value]) -> Iterator[Value]:
    for value in values:
        hooks.read += 1
        yield value


async def in_time(values: list[Value]) -> AsyncIterator[Value]:
    for value in values:
        await asyncio.sleep(0.05)
        hooks.read += 1
        yield value


def instead(value: Value, *_: Any) -> int:
    return value.number


def key(value: Value) -> Key:
    return Key(value.number % 3)


def refused(result: Any) -> bool:
    return result >= REFUSED if isinstance(result, int) else result[0] >= REFUSED


def clock() -> float:
    return asyncio.get_running_loop().time()


RETRY = {"retry": Retry(max_attempts=3, backoff=FixedBackoff(0.2), if_result=refused)}
BREAKER = {"circuit_breaker": CircuitBreaker(failure_ratio=1.0, minimum_calls=1000), "clock": clock}

WAYS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], set[str]]] = {
    "plain": (Function, dict, {"Function.timeout"}),
    "managed": (
        Function,
        lambda: {**RETRY, **BREAKER, "on_timeout": instead, "trace": Trace()},
        {"instead", "refused", "ServiceError.retryable", "ServiceError.retry_after", "clock"},
    ),
    "batched": (
        Many,
        lambda: {**RETRY, "batching": Batching(max_size=3, linger=0.1)},
        {"Many.timeout", "refused", "ServiceError.retryable", "ServiceError.retry_after", "Sequence.__len__"},
    ),
    "flattened": (Flat, lambda: {"flatten": True, **RETRY}, {"Flat.timeout", "Sequence.__iter__", "refused"}),
}
MODES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ordered": ({"mode": "ordered"}, set()),
    "unordered": ({"mode": "unordered"}, set()),
    "key_ordered": ({"mode": "key_ordered", "key": key}, {"key", "Key.__hash__", "Key.__eq__"}),
}
ALWAYS = {"Function.invoke", "instead", "tick", "Value.__reduce__", "taken"}


def taken(output: int) -> None:
    """The consumer has got an output."""


@pytest.mark.parametrize(("buffer", "elements"), [(2, in_time), (100, source_of)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@virtual
async def test_O10_a_snapshot_that_a_hook_takes_is_right(way, mode, buffer, elements):
    make, options, expected = WAYS[way]

    def operator() -> AsyncWaitOperator:
        on_error = instead if way != "flattened" else lambda *call: [instead(*call)]
        more: dict[str, Any] = {"timeout": 3.0, "on_error": on_error, **MODES[mode][0], **options()}
        return AsyncWaitOperator(make(), capacity=3, buffer=buffer, **more)

    values = [Value(number) for number in range(COUNT)]
    hooks.__init__()  # type: ignore[misc]
    hooks.operator = operator()
    sys.setprofile(hooks.look)
    try:
        async for output in hooks.operator.process(elements(values)):
            hooks.emitted.append(output % REFUSED)
            taken(output)
            pickle.dumps(hooks.probes[-1].snapshot)
    finally:
        sys.setprofile(None)
    probes = hooks.probes
    assert expected | MODES[mode][1] | ALWAYS | {elements.__name__} <= {probe.hook for probe in probes}

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
