"""G of the part that asks coordinators for the runs of a process, on virtual time."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import time
from math import inf
from typing import Any

import pytest

from asyncio_operator import (
    AsyncFunction,
    AsyncWaitOperator,
    Budget,
    BudgetExceeded,
    ConfigurationError,
    CoordinatorError,
    Limit,
    StateError,
)
from asyncio_operator.enricher import hint, settle
from asyncio_operator.errors import EnricherError
from asyncio_operator.lookup import Lookup
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.coordinators.addresses import LocalCoordinator, States, coordinator_of
from asyncio_operator.quota.share import LONGEST_ASK, Reservation, Share, shares
from asyncio_operator.quota.terms import Json
from asyncio_operator.quota.usage import Hint
from asyncio_operator.testing import FakeEnricher
from tests.operator.attempts import stop
from tests.operator.helpers import REAL_LOOPS, collect, collect_timed, collect_until, now, others, run_on, same, virtual
from tests.quota.helpers import most_in_a_window


class Coordinator:
    """A budget in memory, whose messages, and answers (`back`), may take time, get lost, or never end.

    Attributes:
        messages: (time, message) of all that were sent.
        most: messages that were ever on their way at once.
        closed: when it was closed.
    """

    shown = "redis://cache.test/3"

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.back = 0.0
        self.error: BaseException | None = None
        self.deaf = False
        self.messages: list[tuple[float, Json]] = []
        self.running = self.most = 0
        self.closed: list[float] = []
        self._local = LocalCoordinator(States(answer, now), "b")

    async def ask(self, message: Json) -> Json:
        self.messages.append((now(), message))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            if self.deaf:
                await asyncio.sleep(1e6)
            if self.error is not None:
                raise self.error
            reply = await self._local.ask(message)
            await asyncio.sleep(self.back)
            return reply
        finally:
            self.running -= 1

    async def close(self) -> None:
        self.closed.append(now())


class Run:
    """Starts calls of one weight one after the other, as soon as it may, as a run does."""

    def __init__(self, of: Share | Reservation, seconds: float = 0.0, **weights: float) -> None:
        self.weights = {"calls": 1.0, "keys": 1.0, **weights}
        self.seconds = seconds
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self._news = asyncio.Event()
        self.allowance = of if isinstance(of, Reservation) else Reservation(lambda: of)
        self.seat: Any = self.allowance.join(self._news.set, self.errors.append)

    async def start(self, settled: dict[str, float] | None = None) -> None:
        """One call."""
        while True:
            at = self.seat.take(self.weights, now())
            if at <= now():
                break
            self._news.clear()
            try:
                async with asyncio.timeout(None if at == inf else at - now()):
                    await self._news.wait()
            except TimeoutError:
                pass
        started = now()
        self.times.append(started)
        await asyncio.sleep(self.seconds)
        self.seat.returned(self.weights, settled, started, now())

    async def calls(self, count: int) -> None:
        for _ in range(count):
            await self.start()


def budget(*limits: Limit, name: str = "b", **options: Any) -> Budget:
    return Budget(name, *limits, **options)


# -- messages


@virtual
async def test_G7_one_message_is_on_its_way_at_a_time_and_none_while_nothing_runs():
    coordinator = Coordinator(0.03)
    share = Share(budget(Limit(100, per=1.0), in_flight=20), coordinator, 0.0)
    runs = [Run(share, 0.05) for _ in range(4)]
    await asyncio.gather(*[run.calls(60) for run in runs])
    assert coordinator.most == 1
    assert most_in_a_window(sorted(at for run in runs for at in run.times), 1.0) <= 100
    for run in runs:
        run.seat.leave()
    await asyncio.sleep(10)
    sent = len(coordinator.messages)
    await asyncio.sleep(1000)
    assert len(coordinator.messages) == sent
    assert not others()


@pytest.mark.parametrize("seconds", [0.0, 0.04, 0.2, 0.45])
@virtual
async def test_G2_what_a_reply_brings_is_taken_before_the_next_message_gives_it_back(seconds):
    share = Share(budget(Limit(10, unit="tokens"), in_flight=1), Coordinator(seconds), 0.0)
    run = Run(share, tokens=3.0)
    await asyncio.wait_for(run.start(), 20)
    assert now() <= 2 * seconds + 0.05
    run.seat.leave()


@virtual
async def test_G2_what_the_last_run_did_not_use_is_soon_there_for_others():
    coordinator = Coordinator()
    share, other = [Share(budget(Limit(100, per=60.0)), coordinator, 0.0) for _ in range(2)]
    first = Run(share)
    await first.calls(10)
    first.seat.leave()
    # The loop of the first may end now.
    await share.settled()
    assert share.over
    second = Run(other)
    began = now()
    await second.calls(90)
    assert now() - began < 5
    second.seat.leave()


@virtual
async def test_G8_a_call_that_waits_for_its_window_asks_no_more_often_because_a_sum_is_left():
    sent = []
    for spend in (None, {"usd": 100.0}):
        coordinator, began = Coordinator(0.002), now()
        run = Run(Share(budget(Limit(20, per=10.0), spend=spend), coordinator, 0.0))
        await run.calls(30)
        assert now() - began < 10.1
        run.seat.leave()
        sent.append(len(coordinator.messages))
    assert sent[1] < 1.1 * sent[0]


@virtual
async def test_G8_the_connection_is_closed_when_nothing_has_run_for_some_time():
    coordinator = Coordinator()
    share = Share(budget(Limit(100, per=1.0)), coordinator, 60.0)
    for _ in range(3):
        run = Run(share)
        await run.calls(10)
        run.seat.leave()
        await asyncio.sleep(40)
    assert not share.over
    await asyncio.sleep(30)
    assert share.over
    assert len(coordinator.closed) == 1
    assert 60 <= coordinator.closed[0] - 80 <= 63


def open_shares() -> int:
    return sum(not share.over for share in shares.open.values())


@virtual
async def test_G8_equal_budgets_have_one_share_and_others_their_own():
    one, same, other = Budget("x", Limit(5)), Budget("x", Limit(5)), Budget("y", Limit(5))
    seats = [shares.allowance(spec).join(lambda: None, lambda error: None) for spec in (one, same, other)]
    assert open_shares() == 2
    for seat in seats:
        seat.leave()


# -- runs that wait


class Weighs(AsyncFunction):
    """Counts its calls, each of one weight."""

    def __init__(self, **weights: float) -> None:
        self.weights = weights
        self.calls = 0

    def weigh(self, values: Any) -> dict[str, float]:
        return self.weights

    async def invoke(self, value: int) -> int:
        self.calls += 1
        await asyncio.sleep(0.1)
        return value


async def at_once(limits: list[Limit], functions: list[Weighs], seconds: float) -> list[int]:
    """The calls of runs that have work all the time."""
    before = [function.calls for function in functions]
    spec = budget(*limits, name=f"turns {id(limits)}")
    runs = [
        asyncio.ensure_future(collect(AsyncWaitOperator(function, budget=spec, capacity=200).process(range(100_000))))
        for function in functions
    ]
    await asyncio.sleep(seconds)
    for run in runs:
        run.cancel()
    await asyncio.wait(runs)
    return [function.calls - count for function, count in zip(functions, before, strict=True)]


@virtual
async def test_G3_runs_that_wait_get_equal_parts_of_the_units_whatever_their_calls_weigh():
    """The light one, for which there is always enough, does not keep the heavy one from starting, nor the reverse."""
    light, heavy = await at_once([Limit(100, per=10.0, unit="tokens")], [Weighs(tokens=1.0), Weighs(tokens=10.0)], 200)
    assert light + 10 * heavy >= 0.97 * 2000
    assert light == pytest.approx(1000, rel=0.1)
    assert 10 * heavy == pytest.approx(1000, rel=0.1)


@virtual
async def test_G3_what_limits_a_call_most_counts_where_there_are_several_limits():
    """Short texts are limited by their calls, long ones by their tokens: each gets the same part of what limits it."""
    limits = [Limit(100, per=10.0), Limit(10_000, per=10.0, unit="tokens")]
    short, long = await at_once(limits, [Weighs(tokens=10.0), Weighs(tokens=500.0)], 200)
    assert short / 100 == pytest.approx(long * 500 / 10_000, rel=0.15)
    assert short + long >= 0.95 * 2000 or 10 * short + 500 * long >= 0.9 * 200_000


@virtual
async def test_G3_to_ask_takes_no_turn_from_the_run_that_asks():
    share = Share(budget(Limit(100, per=1.0)), Coordinator(), 0.0)
    asking, other = runs = Run(share), Run(share)
    await asyncio.gather(asking.calls(20), other.calls(20))
    began = now()
    assert [asking.seat.next_start(asking.weights, began) for _ in range(30)] == [began] * 30
    await asyncio.gather(asking.calls(100), other.calls(100))
    first, second = [sum(began <= at < began + 1.0 for at in run.times) for run in runs]
    assert abs(first - second) <= 10
    for run in runs:
        run.seat.leave()


@virtual
async def test_G3_a_run_that_does_not_take_its_turn_holds_up_no_other():
    share = Share(budget(Limit(10, per=10.0)), Coordinator(), 0.0)
    absent, run = Run(share), Run(share)
    await run.calls(10)
    # It asks, and then its elements end: it never asks again.
    assert absent.seat.next_start(absent.weights, now()) > now()
    await run.calls(25)
    assert now() <= 31
    for one in (absent, run):
        one.seat.leave()


# -- what goes wrong


@virtual
async def test_G7_starts_end_within_a_second_when_the_coordinator_is_gone_and_go_on_when_it_is_back():
    coordinator = Coordinator()
    # Of slots a run always has enough: it is the end of their lease that stops it.
    share = Share(budget(in_flight=5, patience=30.0), coordinator, 0.0)
    run = Run(share, 0.01)
    task = asyncio.ensure_future(run.calls(10_000))
    await asyncio.sleep(5)
    coordinator.error = CoordinatorError("redis://cache.test/3: connection refused")
    await asyncio.sleep(20)
    assert 5 <= run.times[-1] <= 6
    coordinator.error = None
    await asyncio.sleep(1)
    assert run.times[-1] > 25
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    run.seat.leave()


@virtual
async def test_G7_answers_that_always_come_after_their_permits_have_ended_are_no_answers():
    coordinator = Coordinator()
    coordinator.back = 1.2
    share = Share(budget(Limit(10), name="quota", patience=7.5), coordinator, 0.0)
    run = Run(share)
    with pytest.raises(
        CoordinatorError, match=r"no answer in time for 7\.5 s from redis://cache.test/3: .* took 1\.2 s"
    ):
        await run.start()
    assert now() == pytest.approx(7.5, abs=0.01)
    coordinator.back = 0.1
    await asyncio.sleep(1)
    await run.start()
    run.seat.leave()


@pytest.mark.parametrize("how", ["error", "deaf", "other"])
@virtual
async def test_G7_after_patience_the_calls_that_wait_fail_and_the_error_names_the_coordinator(how):
    coordinator = Coordinator()
    coordinator.deaf = how == "deaf"
    coordinator.error = {
        "error": CoordinatorError("redis://cache.test/3: connection refused"),
        "deaf": None,
        "other": ZeroDivisionError("a fault of the coordinator"),
    }[how]
    share = Share(budget(Limit(10), name="quota", patience=7.5), coordinator, 0.0)
    runs = [Run(share), Run(share)]
    outcomes = await asyncio.gather(*[run.start() for run in runs], return_exceptions=True)
    assert now() == pytest.approx(7.5, abs=0.01)
    for error in outcomes:
        assert isinstance(error, CoordinatorError)
        assert "under the budget 'quota', because there is no answer in time for 7.5 s from" in str(error)
        assert coordinator.deaf or "redis://cache.test/3" in str(error)
    # Later calls fail at once, until it answers again.
    with pytest.raises(CoordinatorError):
        await runs[0].start()
    assert now() == pytest.approx(7.5, abs=0.01)
    coordinator.error, coordinator.deaf = None, False
    await asyncio.sleep(LONGEST_ASK + 1)
    await runs[0].start()
    for run in runs:
        run.seat.leave()


@pytest.mark.parametrize("address", ["redis://:hunter2@h:x/0", "redis://:hunter2@h/d", "postgresql://u:hunter2@h:x/d"])
@virtual
async def test_G7_an_address_that_cannot_be_read_is_a_wrong_value_and_not_shown(address):
    spec = Budget("a wrong address", Limit(10), coordinator=address)

    async def look_up() -> None:
        async with Lookup(FakeEnricher({1: {"x": 1}}), budget=spec) as lookup:
            await lookup.get(1)

    for use in (look_up(), collect(AsyncWaitOperator(asyncio.sleep, budget=spec).process([0])), stated(spec)):
        with pytest.raises(ConfigurationError, match=r"^coordinator \(not shown") as caught:
            await use
        assert "hunter2" not in str(caught.value)
    assert now() < 0.5


async def stated(spec: Budget) -> Any:
    return spec.statistics()


@virtual
async def test_G7_a_function_that_gives_no_address_is_an_error_at_once():
    def address() -> str:
        raise KeyError

    spec = Budget("a wrong function", Limit(10), coordinator=address)
    run = Run(Share(spec, coordinator_of(spec), 0.0))
    with pytest.raises(CoordinatorError, match=r"the function .*address raised KeyError"):
        await run.start()
    assert now() < 0.5
    run.seat.leave()


@virtual
async def test_G4_a_unit_that_nothing_weighs_is_logged_once(caplog):
    spec = budget(Limit(1000.0, 60.0, "tokens"), name="nothing weighs")
    for _ in range(2):
        await collect(AsyncWaitOperator(same, budget=spec).process(range(2)))
        async with Lookup(FakeEnricher({1: {"x": 1}}), budget=spec):
            pass
    said = [record.message for record in caplog.records]
    assert [text.partition(" weighs ")[0] for text in said] == ["same", "FakeEnricher(1 keys, x)"]
    assert all("'nothing weighs' limits tokens" in text for text in said)


@pytest.mark.parametrize("in_flight", [None, 5])
@virtual
async def test_G1_a_run_whose_calls_last_long_keeps_the_name(in_flight):
    coordinator = Coordinator()
    first = Run(Share(budget(Limit(10, per=1.0), in_flight=in_flight), coordinator, 0.0), 30.0)
    call = asyncio.ensure_future(first.calls(2))
    await asyncio.sleep(29)
    second = Run(Share(budget(Limit(20, per=1.0)), coordinator, 0.0))
    waiting = asyncio.ensure_future(second.start())
    await asyncio.sleep(0.1)
    assert [type(error) for error in second.errors] == [ConfigurationError]
    waiting.cancel()
    await asyncio.wait([call, waiting])
    assert not first.errors
    # While calls run and nothing else happens, a message is sent every two seconds.
    assert in_flight or len([at for at, _ in coordinator.messages if 5 < at < 25]) <= 10
    for run in (first, second):
        run.seat.leave()
    await asyncio.sleep(10)
    assert not others()


@virtual
async def test_G7_a_function_that_cancels_all_tasks_stops_no_grants():
    coordinator = Coordinator(0.5)
    run = Run(Share(budget(Limit(10, per=5.0)), coordinator, 0.0))
    waiting = asyncio.ensure_future(run.start())
    await asyncio.sleep(0.1)
    for task in others() - {waiting}:
        task.cancel()
    await waiting
    assert run.times
    run.seat.leave()


# -- budgets of operators and lookups


@virtual
async def test_G1_operators_and_lookups_of_a_process_share_a_budget():
    starts: list[float] = []

    async def call(value: int) -> int:
        starts.append(now())
        await asyncio.sleep(0.01)
        return value

    spec = Budget("shared", Limit(10, per=5.0), in_flight=4)
    operators = [AsyncWaitOperator(call, budget=spec) for _ in range(2)]
    fake = FakeEnricher({key: {"x": key} for key in range(20)}, latency=0.01)

    async def ask() -> None:
        async with Lookup(fake, budget=spec) as lookup:
            for key in range(20):
                assert await lookup.get(key) == {"x": key}
                starts.append(now())

    await asyncio.gather(*[collect(operator.process(range(20))) for operator in operators], ask())
    assert most_in_a_window(sorted(starts), 4.98) <= 10
    assert 25 <= now() <= 27
    figures = spec.statistics().units
    assert figures["calls"].allowed == 10
    assert figures["in_flight"].allowed == 4


@virtual
async def test_G5_answers_that_no_limit_hears_of_let_calls_start_after_a_pause():
    started = {}

    async def call(value):
        started[value] = now()
        await asyncio.sleep(0.01)
        if value == 400:
            raise EnricherError("later", retry_after=1.0)
        return value

    budget = Budget("a pause", Limit(1000, per=10.0))
    await collect(AsyncWaitOperator(call, capacity=5, on_error="skip", budget=budget).process(range(500)))
    # Not as if those before were still to be answered: then no call would start for two seconds more.
    assert 0.95 < started[410] - started[400] < 1.2


@virtual
async def test_G6_a_spend_limit_ends_the_run_before_it_is_passed():
    class Paid(AsyncFunction[Any, Any]):
        def weigh(self, values):
            return {"usd": 0.25 * len(values)}

        async def invoke(self, value):
            await asyncio.sleep(0.1)
            settle({"usd": 0.5})
            return value

    got: list[Any] = []
    operator = AsyncWaitOperator(Paid(), budget=Budget("money", spend={"usd": 5.0}), on_error="skip", capacity=1)
    with pytest.raises(BudgetExceeded, match="spend limit 5 usd, already spent 5 usd") as raised:
        await collect_until(operator.process(range(100)), got)
    # The tenth call ends the run at the moment of its result, before that leaves.
    assert got == list(range(9))
    assert (raised.value.unit, raised.value.limit, raised.value.spent) == ("usd", 5.0, 5.0)


@virtual
async def test_G7_a_run_of_an_operator_fails_whatever_on_error_says(monkeypatch):
    coordinator = Coordinator()
    coordinator.error = CoordinatorError("redis://cache.test/3: connection refused")
    spec = Budget("gone", Limit(10), patience=3.0)
    share = Share(spec, coordinator, 0.0)
    monkeypatch.setattr(shares, "allowance", lambda budget: Reservation(lambda: share))

    async def call(value: int) -> int:
        return value

    with pytest.raises(CoordinatorError, match="connection refused"):
        await collect(AsyncWaitOperator(call, budget=spec, on_error="skip").process(range(10)))
    assert now() == 3
    await asyncio.sleep(100)
    assert share.over


@virtual
async def test_G5_a_hint_of_one_run_holds_back_all():
    async def call(value: int) -> int:
        if value == 0:
            hint(retry_after=20)
        return value

    spec = Budget("hinted", Limit(1000, per=1.0))
    first = AsyncWaitOperator(call, budget=spec, capacity=1)
    assert await collect(first.process([0])) == [0]
    assert await collect_timed(AsyncWaitOperator(call, budget=spec).process([1])) == [(1, 20)]


@pytest.mark.parametrize(
    "said",
    [
        {"limits": {"calls": Hint(limit=0)}},
        {"limits": {"calls": Hint(remaining=-1)}},
        {"limits": {"calls": Hint(remaining=0, reset_after=4000)}},
        {"limits": {"calls": Hint(remaining=float("nan"))}},
        {"retry_after": -1.0},
        {"retry_after": 4000.0},
        {"retry_after": float("inf")},
    ],
)
def test_G5_hints_that_cannot_be_right_are_ignored_and_logged_once(said, caplog):
    @virtual
    async def check():
        run = Run(Share(budget(Limit(10, per=1.0)), Coordinator(), 0.0))
        await run.start()
        for _ in range(3):
            run.seat.share.hint(said.get("limits", {}), said.get("retry_after"), now())
        await run.calls(9)
        assert now() < 1
        run.seat.leave()

    with caplog.at_level(logging.WARNING, "asyncio_operator"):
        check()
    assert len([one for one in caplog.records if "ignores what its source says" in one.message]) == 1


@virtual
async def test_G5_a_hint_for_a_limit_per_day_may_be_hours_long():
    run = Run(Share(budget(Limit(10, per=86_400.0)), Coordinator(), 0.0))
    await run.start()
    run.seat.share.hint({"calls": Hint(limit=10, remaining=0, reset_after=7200)}, None, now())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.start(), 10)
    run.seat.leave()


@virtual
async def test_G8_a_run_whose_first_call_comes_after_the_share_was_closed_gets_another_one():
    spec = Budget("late", Limit(10))
    first, second = shares.allowance(spec), shares.allowance(spec)
    first.join(lambda: None, lambda error: None).leave()
    await asyncio.sleep(10)
    run = Run(second)
    await asyncio.wait_for(run.calls(3), 10)
    run.seat.leave()


@virtual
async def test_G8_a_call_that_returns_while_the_share_rests_is_still_reported():
    coordinator = Coordinator(0.5)
    share = Share(budget(Limit(10, unit="tokens"), in_flight=1), coordinator, 60.0)
    run = Run(Reservation(lambda: share), tokens=3.0)
    start = asyncio.ensure_future(run.start())
    await asyncio.sleep(5)
    await start
    started = run.times[0]
    share.permits.started(run.weights, started)
    run.seat.leave()
    # The call ignored its cancellation: the run has left it behind. It holds its slot until it returns.
    await asyncio.sleep(59.8)
    assert not share.over
    run.seat.returned(run.weights, {"tokens": 9.0}, started, now())
    await asyncio.sleep(5)
    assert not share.over
    assert share.permits.ask_at(now()) == inf
    await asyncio.sleep(65)
    assert share.over
    assert len(coordinator.closed) == 1


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.3, 1.0, 1.5])
def test_O8_a_loop_may_end_at_any_moment_of_an_exchange(moment, caplog):
    coordinator = Coordinator(0.5)

    @virtual
    async def check():
        share = Share(budget(Limit(10)), coordinator, 0.0)
        run = Run(share, 0.1)
        calls = asyncio.ensure_future(run.calls(3))
        await asyncio.sleep(moment)
        calls.cancel()
        run.seat.leave()

    check()
    assert caplog.records == []
    assert len(coordinator.closed) <= 1


def test_G8_a_forked_child_has_no_share_of_its_parent():
    async def main() -> int:
        seat = shares.allowance(Budget("forked", Limit(10))).join(lambda: None, lambda error: None)
        child = os.fork()
        if not child:
            os._exit(open_shares())
        assert open_shares() == 1
        seat.leave()
        return child

    _, status = os.waitpid(asyncio.run(main()), 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("loop_factory", REAL_LOOPS)
def test_G2_on_real_loops(loop_factory):
    starts: list[float] = []

    async def call(value: int) -> int:
        starts.append(time.monotonic())
        return value

    async def main() -> None:
        spec = Budget("real", Limit(20, per=0.25), in_flight=5)
        assert await collect(AsyncWaitOperator(call, budget=spec).process(range(70))) == list(range(70))

    began = time.monotonic()
    run_on(loop_factory, main())
    # A busy machine may run a call late, and so near to later ones; no machine runs one before its time.
    for number, at in enumerate(starts):
        assert at - began >= 0.25 * (number // 20) - 0.005
    assert starts[-1] - began < 5


@pytest.mark.parametrize("turns", range(30))
@virtual
async def test_G1_a_run_that_is_closed_at_any_turn_gives_everything_back(turns):
    """Between any two turns of the loop: soon afterwards the coordinator has no slot and no amount of it."""

    class Paid(AsyncFunction[Any, Any]):
        def weigh(self, values):
            return {"usd": 1.0}

        async def invoke(self, value):
            await asyncio.sleep(value % 3)
            settle({"usd": 0.5})
            await asyncio.sleep(0)
            return value

    spec = Budget(f"turns {turns}", Limit(4, per=2.0), in_flight=2, spend={"usd": 100.0})
    run = AsyncWaitOperator(Paid(), budget=spec, capacity=3).process(range(12))
    reading = asyncio.ensure_future(collect(run))
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.sleep(turns // 8)
    await stop(run, reading)
    try:
        figures = spec.statistics().units
    except StateError:
        # It was closed before its first call.
        return
    assert (figures["in_flight"].used, figures["calls"].reserved, figures["usd"].reserved) == (0, 0, 0)
    assert figures["usd"].used <= 12


def test_O8_a_loop_that_ends_while_a_run_under_a_budget_is_open_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async def call(value: int) -> int:
            await asyncio.sleep(0.01)
            return value

        budget = Budget("a loop that ends", in_flight=2)
        outputs = AsyncWaitOperator(call, mode="ordered", budget=budget).process(range(10))
        assert await anext(outputs) == 0

    asyncio.run(main())
    assert "never awaited" not in capfd.readouterr().err


@virtual
async def test_G6_calls_that_only_settle_end_when_all_is_spent():
    calls = []

    async def call(value):
        calls.append(value)
        settle({"usd": 0.02})

    budget = Budget("only spent", Limit(1000), spend={"usd": 0.05})
    with pytest.raises(BudgetExceeded, match="usd"):
        await collect(AsyncWaitOperator(call, capacity=1, budget=budget).process(range(10)))
    assert calls == [0, 1, 2]


def beside(own: Budget, other: Budget) -> Budget:
    """A budget with the rate limit of a job beside it, as the driver makes it."""
    made = copy.copy(own)
    object.__setattr__(made, "beside", other)
    return made


@virtual
async def test_G13_a_call_under_a_budget_and_a_rate_limit_waits_for_both():
    both = beside(budget(Limit(3, 10.0), name="own"), budget(Limit(2, 4.0), name="rate"))
    outputs = await collect_timed(AsyncWaitOperator(same, budget=both).process(range(6)))
    times = [time for _, time in outputs]
    assert [value for value, _ in outputs] == [*range(6)]
    assert most_in_a_window(times, 10.0) == 3
    assert most_in_a_window(times, 4.0) == 2
    assert times[-1] < 15


@virtual
async def test_G13_a_call_that_can_never_start_fails_at_once_where_the_rate_is_used_up():
    both = beside(budget(Limit(10.0, 1.0, "tokens"), name="own"), budget(Limit(1, 100.0), name="rate"))
    run = Run(shares.allowance(both), tokens=1.0)
    await run.start()
    with pytest.raises(BudgetExceeded, match="it can never start"):
        run.seat.take({"tokens": 20.0}, now())
    assert now() < 2
    run.seat.leave()
