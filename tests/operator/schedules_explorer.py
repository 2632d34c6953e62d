"""Runs a schedule, part by part, and holds it against the model and the laws after every turn of the loop."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    BatchAsyncFunction,
    FunctionError,
    OperatorSnapshot,
    Watermark,
)
from asyncio_operator.testing import VirtualTimeLoop
from asyncio_operator.trace import Trace
from tests.operator.schedules import Part, Schedule
from tests.operator.schedules_laws import Laws, number_of
from tests.operator.schedules_model import ERRORS, BusyError, HookError, InputError, LawError, law, result_of

GRACE = 1000.0
MOST_TURNS = 20_000


def nothing() -> None:
    pass


class SteppingLoop(VirtualTimeLoop):
    """Calls `turned` after every turn, and `resting` when nothing is left to do until time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.turned: Callable[[], None] = nothing
        self.resting: Callable[[], None] = nothing
        self.heard: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.heard.append(context))

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self.turned()

    def _jump(self, timeout: float | None) -> bool:
        self.resting()
        return super()._jump(timeout)

    def timers(self) -> list[asyncio.TimerHandle]:
        return [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


class Explorer(Laws):
    """One part."""

    def __init__(self, schedule: Schedule, part: Part, restore: OperatorSnapshot | None, position: int) -> None:
        super().__init__(schedule, part, restore, position)
        self.loop: SteppingLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        self.snapshot: OperatorSnapshot | None = None
        self.moments = 0
        for element, attempts in () if restore is None else restore.elements:
            self.admit(number_of(element), attempts, since=inf)

    def admit(self, number: int, attempts: int, since: float) -> None:
        self.order.append(number)
        script = self.schedule.scripts[number]
        if script is None:
            self.watermarks += 1
        else:
            self.model.admit(number, script, attempts, since)

    # -- the function

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.check(self.running == 0, "O9: closed while calls run")
        self.closed += 1

    async def call(self, numbers: list[int]) -> list[Any]:
        self.moment()
        now = self.now()
        try:
            self.check_call(numbers, now)
            copy = self.operator.metrics.hedged > self.copies
            if copy:
                self.check_copy(numbers, now)
                seconds, ending = self.model.copy(numbers, now)
            else:
                seconds, ending = self.model.begin(numbers, now, self.operator.metrics.retries)
        except LawError as error:
            self.broken = self.broken or error
            raise
        fate = self.model.fates[numbers[0]]
        act = fate.act_of_copy if copy else fate.act
        self.running += 1
        self.calling.update(numbers)
        self.starts.append(now)
        call = len(self.starts)
        self.note_limits(call, numbers, seconds)
        try:
            await wait(seconds, act.inside)
        except asyncio.CancelledError:
            del self.uncut[call]
            match act.when_cancelled:
                case "ends":
                    raise
                case "cleans up":
                    await asyncio.sleep(2)
                    raise
                case "fails":
                    raise ConnectionError from None
            await asyncio.sleep(2)
        finally:
            self.uncut.pop(call, None)
            if self.running == self.capacity:
                self.free_since = self.now()
            self.running -= 1
            self.calling.subtract(numbers)
            self.returned.update(dict.fromkeys(numbers, self.now()))
            self.note_failure(numbers)
        if ending == "cancelled":
            raise asyncio.CancelledError
        if ending == "busy":
            self.calm_until = self.now() + BusyError.retry_after
        if ending in ERRORS:
            raise ERRORS[ending](numbers)
        results = [self.result(number, copy) for number in numbers]
        return results[1:] if ending == "short" and self.options.batching else results

    def result(self, number: int, copy: bool) -> Any:
        fate = self.model.fates[number]
        act = fate.act_of_copy if copy else fate.act
        return result_of(number, act.ending, act.outputs, self.options.flatten)

    def on_timeout(self, number: int) -> Any:
        self.moment()
        self.check_timeout(number)
        if self.options.on_timeout == "raise":
            raise HookError
        return [(number, "late")] if self.options.flatten else (number, "late")

    def key_of(self, number: int) -> int:
        self.moment()
        return self.key(number)

    def unsatisfied(self, result: Any) -> bool:
        self.moment()
        assert self.options.retry is not None
        return self.options.retry.unsatisfied(result)

    def on_error(self, number: int, error: BaseException) -> Any:
        self.moment()
        if self.options.on_error == "raise":
            raise HookError
        output = number, type(error).__name__
        return [output] if self.options.flatten else output

    # -- the input

    def asked(self) -> None:
        """The input is asked for its next element."""
        self.moment()
        self.check(self.running < self.capacity, "O1: read ahead of a free slot")
        inside = self.operator.metrics.buffered + self.watermarks
        self.check(inside < self.options.buffer, "O1: read with the buffer full")

    def next_element(self) -> Any:
        number = self.position
        self.position += 1
        self.read.add(number)
        self.admit(number, 0, self.now())
        return self.element(number)

    def over(self) -> bool:
        self.asked()
        if self.position < len(self.schedule.scripts):
            return False
        if self.schedule.input_error:
            self.input_failed = True
            raise InputError
        return True

    def sync_input(self) -> Iterator[Any]:
        while not self.over():
            yield self.next_element()

    async def async_input(self) -> AsyncIterator[Any]:
        assert self.schedule.gaps is not None
        while not self.over():
            gap = self.schedule.gaps[self.position]
            try:
                if gap:
                    await asyncio.sleep(int(gap))
            except asyncio.CancelledError:
                if not self.schedule.input_swallows:
                    raise
            yield self.next_element()

    # -- the run

    async def run(self) -> None:
        options, schedule, retry = self.options, self.schedule, self.options.retry
        self.operator = AsyncWaitOperator(
            function_of(self),
            mode=options.mode,
            key=self.key_of if options.mode == "key_ordered" else None,
            capacity=options.capacity,
            buffer=options.buffer,
            timeout=options.timeout,
            attempt_timeout=options.attempt_timeout,
            retry=retry and replace(retry, if_result=retry.if_result and self.unsatisfied),
            on_error=options.on_error if options.on_error in ("fail", "skip") else self.on_error,
            on_timeout=self.on_timeout if options.timeout and options.on_timeout in ("hook", "raise") else None,
            flatten=options.flatten,
            batching=options.batching,
            rate_limit=options.rate_limit,
            circuit_breaker=options.circuit_breaker,
            hedge=options.hedge,
            trace=Trace() if options.traced else None,
            grace_period=GRACE,
        )
        elements = self.sync_input() if schedule.gaps is None else self.async_input()
        self.outputs = self.operator.process(elements, self.restore)
        self.consumer = self.loop.create_task(self.consume())
        self.loop.turned, self.loop.resting = self.after_turn, self.at_rest
        failure: BaseException | None = None
        await asyncio.wait([self.consumer])
        self.closed_in = min(self.closed_in, self.turns)
        try:
            await self.outputs.aclose()
        except (FunctionError, InputError) as error:
            failure = error
        self.loop.turned = self.loop.resting = nothing
        if not self.consumer.cancelled():
            failure = self.consumer.exception() or failure
        self.check_end(failure, self.loop.timers())

    async def consume(self) -> None:
        pauses, close_after = self.schedule.pauses, self.part.close_after
        while close_after is None or len(self.got) < close_after:
            self.started = self.waiting = True
            try:
                output = await anext(self.outputs)
            except StopAsyncIteration:
                return
            finally:
                self.waiting = False
            self.got.append(output)
            self.given[number_of(output)] += 1
            self.watermarks -= isinstance(output, Watermark)
            self.check_output(number_of(output))
            pause = pauses[len(self.got) % len(pauses)]
            if pause:
                await asyncio.sleep(int(pause))
        self.stopping = True
        self.closed_in = self.turns
        await self.outputs.aclose()

    def after_turn(self) -> None:
        self.turns += 1
        self.moment()
        if self.turns == self.part.cancel_after and not self.stopping:
            self.stopping = True
            # It is cancelled within the next turn.
            self.closed_in = self.turns + 1 if self.waiting else inf
            self.consumer.cancel()
        law(self.turns < MOST_TURNS, "the run does not end")
        if self.broken is not None:
            raise self.broken

    def moment(self) -> None:
        """A turn has ended, or the operator has called a hook, which may take a snapshot too."""
        self.moments += 1
        if self.moments != self.part.snapshot_after or not self.started:
            return
        self.snapshot = pickle.loads(pickle.dumps(self.operator.snapshot()))
        self.read_before_snapshot = self.position
        try:
            self.check_snapshot(self.snapshot)
        except LawError as error:
            self.broken = self.broken or error


async def wait(seconds: float, inside: str) -> None:
    if seconds == 0:
        return
    sleep = asyncio.sleep(seconds if seconds >= 1 else 0)
    match inside:
        case "lane":
            await sleep
        case "task":
            await asyncio.create_task(sleep)
        case _:
            async with asyncio.TaskGroup() as group:
                group.create_task(sleep)


def function_of(explorer: Explorer) -> AsyncFunction[int, Any]:
    """What the operator is to call."""
    function: AsyncFunction[int, Any]
    if explorer.options.batching is None:
        function = AsyncFunction()

        async def invoke(number: int) -> Any:
            return (await explorer.call([number]))[0]

        function.invoke = invoke  # type: ignore[method-assign,assignment]
    else:
        function = BatchAsyncFunction()
        function.invoke_batch = explorer.call  # type: ignore[method-assign,assignment]
    function.open = explorer.open  # type: ignore[method-assign]
    function.close = explorer.close  # type: ignore[method-assign]
    if explorer.options.on_timeout == "method":
        function.timeout = explorer.on_timeout  # type: ignore[method-assign,assignment]
    return function


def explore(schedule: Schedule) -> None:
    """Run it.

    Raises:
        LawError: the operator broke a law.
    """

    async def main() -> None:
        restore: OperatorSnapshot | None = None
        position = 0
        for part in schedule.parts:
            explorer = Explorer(schedule, part, restore, position)
            try:
                async with asyncio.timeout(20 * GRACE):
                    await explorer.run()
            except TimeoutError:
                raise LawError("O5: the run does not end") from None
            if explorer.snapshot is None:
                return
            restore, position = explorer.snapshot, explorer.read_before_snapshot

    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        loop: SteppingLoop = runner.get_loop()  # type: ignore[assignment]
        try:
            runner.run(main())
        finally:
            loop.turned = loop.resting = nothing
        law(not loop.heard, f"the loop heard of {loop.heard}")
