"""A worker and its coordinator: what is granted, started and reported, in every order of messages."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from asyncio_operator import Budget, BudgetExceeded, ConfigurationError, Limit
from asyncio_operator.checks import seconds
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.resources import Permit, Stock
from asyncio_operator.quota.spec import definition
from asyncio_operator.quota.usage import ONE, Hint
from tests.quota.helpers import Cluster, Coordinator, ask, call, exchange, may_start, most_in_a_window


def granted(budget: Budget, calls: int, now: float = 0.0) -> tuple[Coordinator, Permits]:
    """A coordinator, and a worker that may start at least `calls` calls."""
    coordinator, permits = Coordinator(), Permits(budget, "w")
    while sum(stock.held() for stock in permits._stocks) < calls:
        permits.next_start({}, now)
        for stock in permits._stocks:
            stock.starved = True
        exchange(coordinator, permits, now)
    return coordinator, permits


def start(permits: Permits, now: float, calls: int = 1, returns: bool = True) -> None:
    for _ in range(calls):
        assert may_start(permits, now)
        permits.started({}, now)
        if returns:
            permits.returned({}, None, now, now)


@pytest.mark.parametrize("budget", [Budget("b", Limit(100)), Budget("b", in_flight=5), Budget("b", spend={"usd": 5})])
def test_G7_nothing_starts_without_a_grant_nor_after_its_end(budget: Budget) -> None:
    coordinator, permits = Coordinator(), Permits(budget, "w")
    assert not may_start(permits, 0.0, {"usd": 1.0})
    exchange(coordinator, permits, 0.0)
    assert may_start(permits, 0.0, {"usd": 1.0})
    assert may_start(permits, 0.99, {"usd": 1.0})
    assert permits.next_start({"usd": 1.0}, 1.01) == math.inf


def test_G2_a_call_that_was_not_let_start_leaves_nothing_to_report() -> None:
    coordinator, permits = granted(Budget("b", Limit(100, unit="tokens"), spend={"usd": 1.0}), 1)
    # Sums have rounding errors: what a call has taken of its tokens, and given back, is not exactly the same.
    for tokens in (number / 97 for number in range(1, 150)):
        assert may_start(permits, 0.1, {"tokens": 1.0})
        assert permits.take({"tokens": tokens, "usd": 0.999}, 0.1) > 0.1
    exchange(coordinator, permits, 0.2)
    assert may_start(permits, 0.2, {"tokens": 1.0})


def test_G7_a_reply_to_an_earlier_message_is_not_used() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(100)), "w")
    permits.next_start({}, 0.0)
    late = coordinator.ask(permits.message(0.0), 0.0)
    permits.lost(0.1)
    permits.next_start({}, 0.1)
    message = permits.message(0.3)
    assert not permits.answered(late, 0.0, 0.3)
    assert permits.next_start({}, 0.3) == math.inf
    assert permits.answered(coordinator.ask(message, 0.3), 0.3, 0.3)
    assert may_start(permits, 0.3)


def test_G2_calls_that_start_while_a_message_is_on_its_way_are_reported_with_the_next() -> None:
    budget = Budget("b", Limit(10, 1.0))
    coordinator, permits = granted(budget, 10)
    start(permits, 0.05, 4)
    message = permits.message(0.1)
    start(permits, 0.1, 4)
    assert permits.answered(coordinator.ask(message, 0.1), 0.1, 0.1)
    assert coordinator.statistics(budget, 0.1)["units"]["calls"]["used"] == 4
    exchange(coordinator, permits, 0.2)
    assert coordinator.statistics(budget, 0.2)["units"]["calls"]["used"] == 8
    permits.rest()
    exchange(coordinator, permits, 0.3)
    assert [coordinator.statistics(budget, now)["units"]["calls"]["used"] for now in (1.04, 1.06, 1.11)] == [8, 4, 0]


def test_G2_a_report_whose_reply_was_lost_is_applied_once() -> None:
    budget = Budget("b", Limit(10, 1.0))
    coordinator, permits = granted(budget, 10)
    start(permits, 0.1, 4)
    coordinator.ask(permits.message(0.1), 0.1)
    permits.lost(0.2)
    start(permits, 0.2, 2)
    message = permits.message(0.3)
    assert [number for number, _ in message["reports"]][-2:] == [message["seq"] - 1, message["seq"]]
    assert permits.answered(coordinator.ask(message, 0.3), 0.3, 0.3)
    assert coordinator.statistics(budget, 0.3)["units"]["calls"]["used"] == 6
    permits.rest()
    last = permits.message(0.35)
    assert {number for number, _ in last["reports"]} <= {last["seq"]}
    coordinator.ask(last, 0.35)
    # All is counted where it started, and gone a second later.
    assert [coordinator.statistics(budget, now)["units"]["calls"]["used"] for now in (1.09, 1.11, 1.21)] == [6, 2, 0]


def test_G2_what_a_lost_reply_has_granted_is_counted_until_its_lease_and_window_have_ended() -> None:
    budget = Budget("b", Limit(10, 2.0))
    coordinator, permits = Coordinator(), Permits(budget, "w")
    permits.next_start({}, 0.0)
    for stock in permits._stocks:
        stock.call = 10
    coordinator.ask(permits.message(0.0), 0.0)
    other = Permits(budget, "v")
    for now in (0.5, 1.0, 2.0, 2.9):
        ask(coordinator, other, now)
        assert not may_start(other, now), now
    exchange(coordinator, other, 3.01)
    assert may_start(other, 3.01)


@pytest.mark.parametrize("limit", [Limit(100, 2.0), Limit(10, 10.0, burst=50)], ids=repr)
def test_G2_after_a_coordinator_has_lost_its_state_a_window_passes_without_starts(limit: Limit) -> None:
    cluster, per = Cluster(Budget("b", limit), workers=2, step=0.02), seconds(limit.per)
    cluster.run(3.0)
    cluster.coordinator.text = "null"
    cluster.run(per + 4.0)
    assert most_in_a_window(cluster.all_starts, per) <= limit.rate + (limit.burst or 0)
    assert cluster.all_starts[-1] > 3.0 + per


@pytest.mark.parametrize("knows", [None, [1]], ids=["all", "not the first to ask"])
def test_G2_an_older_state_that_comes_back_is_noticed(knows: list[int] | None) -> None:
    cluster = Cluster(Budget("b", Limit(100, 2.0)), workers=2)
    cluster.run(0.5)
    old = cluster.coordinator.text
    cluster.run(2.6, busy=knows)
    cluster.coordinator.text = old
    cluster.run(6.0)
    assert most_in_a_window(cluster.all_starts, 2.0) <= 100
    assert cluster.all_starts[-1] > 8.0


def test_G6_what_was_spent_is_lost_with_the_state_and_that_is_an_error() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", spend={"usd": 1.0}), "w")
    exchange(coordinator, permits, 0.0)
    coordinator.text = "null"
    with pytest.raises(ConfigurationError, match="the budget 'b': its coordinator has lost its state"):
        exchange(coordinator, permits, 1.0)


def test_G6_what_would_pass_a_spend_limit_is_refused() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", spend={"usd": 1.0}), "w")
    for _ in range(2):
        ask(coordinator, permits, 0.0, {"usd": 0.4})
        assert may_start(permits, 0.0, {"usd": 0.4})
        call(permits, 0.0, {"usd": 0.4}, {"usd": 0.5})
    with pytest.raises(
        BudgetExceeded, match="spend limit 1 usd, already spent 1 usd, and the next call needs"
    ) as caught:
        permits.next_start({"usd": 0.4}, 0.0)
    assert (caught.value.unit, caught.value.limit, caught.value.spent) == ("usd", 1.0, 1.0)


def test_G10_a_refused_call_counts_once() -> None:
    budget = Budget("b", Limit(10.0, 1.0, "tokens"))
    coordinator, permits = Coordinator(), Permits(budget, "w")
    with pytest.raises(BudgetExceeded):
        permits.next_start({"tokens": 11.0}, 0.0)
    coordinator.ask(permits.message(0.0), 0.0)
    permits.lost(0.1)
    for now in (0.2, 0.4):
        ask(coordinator, permits, now, {"tokens": 1.0})
    assert coordinator.statistics(budget, 0.4)["units"]["tokens"]["refused"] == 1


def test_G6_a_call_waits_while_other_calls_may_turn_out_cheaper() -> None:
    budget = Budget("b", spend={"usd": 1.0})
    coordinator, first, second = Coordinator(), Permits(budget, "v"), Permits(budget, "w")
    ask(coordinator, first, 0.0, {"usd": 0.7})
    first.started({"usd": 0.7}, 0.0)
    for now in (0.1, 0.2):
        ask(coordinator, second, now, {"usd": 0.6})
        exchange(coordinator, first, now)
    first.returned({"usd": 0.7}, {"usd": 0.1}, 0.0, 0.3)
    exchange(coordinator, first, 0.3)
    ask(coordinator, second, 0.4, {"usd": 0.6})
    assert may_start(second, 0.4, {"usd": 0.6})


def test_G6_two_workers_that_hold_a_part_of_what_a_call_needs_do_not_wait_for_each_other() -> None:
    budget = Budget("b", spend={"usd": 1.0})
    coordinator, first, second = Coordinator(), Permits(budget, "v"), Permits(budget, "w")
    for permits in (first, second):
        ask(coordinator, permits, 0.0, {"usd": 0.5})
        # A cheaper call starts instead, so a part stays with the worker.
        assert may_start(permits, 0.0, {"usd": 0.2})
        call(permits, 0.0, {"usd": 0.2})
    started = False
    for now in (0.1, 0.2, 0.3):
        for permits in (first, second):
            started = started or may_start(permits, now, {"usd": 0.6})
            exchange(coordinator, permits, now)
    assert started


def test_G6_what_a_dead_worker_held_counts_as_spent_until_it_comes_back() -> None:
    budget = Budget("b", spend={"usd": 1.0})
    coordinator, dead, other = Coordinator(), Permits(budget, "v"), Permits(budget, "w")
    ask(coordinator, dead, 0.0, {"usd": 0.7})
    dead.started({"usd": 0.7}, 0.0)
    for moment in range(1, 11):
        exchange(coordinator, other, float(moment))
    assert coordinator.statistics(budget, 10.0)["units"]["usd"]["used"] == 0.7
    with pytest.raises(BudgetExceeded):
        other.next_start({"usd": 0.4}, 10.0)
    dead.returned({"usd": 0.7}, {"usd": 0.2}, 0.0, 11.0)
    exchange(coordinator, dead, 11.0)
    assert coordinator.statistics(budget, 11.0)["units"]["usd"]["used"] == 0.2


def test_G6_a_call_that_no_window_can_hold_is_refused_at_once() -> None:
    permits = Permits(Budget("b", Limit(1000.0, 60.0, "tokens", burst=50.0)), "w")
    with pytest.raises(BudgetExceeded, match=r"allows 1050 tokens in 60 s, and one call needs 1051") as caught:
        permits.next_start({"tokens": 1051.0}, 0.0)
    assert (caught.value.unit, caught.value.limit) == ("tokens", 1050.0)
    assert permits.misfit({"tokens": 1050.0}) is None


def test_G1_one_name_with_other_limits_is_an_error_while_calls_of_a_worker_run() -> None:
    coordinator = Coordinator()
    first, second = (Permits(Budget("b", Limit(rate)), f"w{rate}") for rate in (10, 20))
    ask(coordinator, first, 0.0)
    start(first, 0.0, returns=False)
    exchange(coordinator, first, 0.1)
    exchange(coordinator, first, 2.1)
    with pytest.raises(ConfigurationError, match=r"'b'.* in use with 10 calls per 60 s.* is 20 calls per 60 s here"):
        exchange(coordinator, second, 3.0)
    first.returned({}, None, 0.0, 3.1)
    exchange(coordinator, first, 3.1)
    exchange(coordinator, second, 3.2)


def test_G1_a_check_says_what_a_new_worker_would_be_told_and_changes_nothing() -> None:
    coordinator, budget = Coordinator(), Budget("b", Limit(10))
    permits = Permits(budget, "w")
    ask(coordinator, permits, 0.0)
    for limit, now, wrong in ((10, 1.0, False), (20, 1.0, True), (20, 6.0, False)):
        check = {"kind": "check", "worker": "", "budget": definition(Budget("b", Limit(limit)))}
        assert (coordinator.ask(check, now)["error"] is not None) == wrong
    assert json.loads(coordinator.text)["budget"] == definition(budget)


@pytest.mark.parametrize("rests", [True, False])
def test_G1_other_limits_may_follow_when_no_worker_is_left(rests: bool) -> None:
    coordinator = Coordinator()
    first, second = (Permits(Budget("b", Limit(rate)), f"w{rate}") for rate in (10, 20))
    ask(coordinator, first, 0.0)
    start(first, 0.0)
    if rests:
        first.rest()
        assert first.ask_at(0.1) == 0.1
        exchange(coordinator, first, 0.1)
        assert first.ask_at(0.2) == math.inf
    now = 0.2 if rests else 4.1
    exchange(coordinator, second, now)
    # What has started counts under the new limits too.
    assert coordinator.statistics(Budget("b", Limit(20)), now)["units"]["calls"]["used"] == 1


def test_G1_a_state_of_another_version_is_an_error_and_is_not_changed() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(10)), "w")
    exchange(coordinator, permits, 0.0)
    written = {**json.loads(coordinator.text), "version": 2}
    for kind in ("ask", "check", "statistics"):
        coordinator.text = json.dumps(written)
        message = {**permits.message(1.0), "kind": kind}
        reply = coordinator.ask(message, 1.0)
        assert "its coordinator holds a state of version 2" in reply["error"]
        assert json.loads(coordinator.text) == written
        with pytest.raises(ConfigurationError):
            permits.answered(reply, 1.0, 1.0)


def test_G1_another_version_of_the_protocol_is_an_error() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(10)), "w")
    message = permits.message(0.0)
    reply = coordinator.ask({**message, "version": 2}, 0.0)
    with pytest.raises(ConfigurationError, match="speaks version 2 of the budget protocol"):
        permits.answered(reply, 0.0, 0.0)


def test_G2_a_heavy_call_is_not_kept_waiting_by_light_ones() -> None:
    budget = Budget("b", Limit(100.0, 2.0, "tokens"))
    cluster = Cluster(budget, workers=2, step=0.01)
    heavy = cluster.permits.pop()
    cluster.run(3.0, weights={"tokens": 1.0})
    began = cluster.now
    while not may_start(heavy, cluster.now, {"tokens": 80.0}):
        if heavy.ask_at(cluster.now) <= cluster.now:
            exchange(cluster.coordinator, heavy, cluster.now)
        cluster.run(0.01, weights={"tokens": 1.0})
        assert cluster.now < began + 6.0


@pytest.mark.parametrize("budget", [Budget("b", in_flight=2), Budget("b", spend={"calls": 10})])
def test_G2_a_worker_that_rests_gives_all_back_also_if_calls_had_to_wait(budget: Budget) -> None:
    coordinator, permits = Coordinator(), Permits(budget, "w")
    while not may_start(permits, 0.0):
        exchange(coordinator, permits, 0.0)
    permits.started({}, 0.0)
    permits.next_start({}, 0.0)
    permits.returned({}, None, 0.0, 0.0)
    permits.rest()
    exchange(coordinator, permits, 0.0)
    assert permits.ask_at(0.0) == math.inf
    worker = json.loads(coordinator.text)["workers"]["w"]
    assert worker["slots"] == 0
    assert not any(worker["spend"].values())


def test_G1_a_worker_never_wants_more_calls_in_flight_than_there_may_be() -> None:
    coordinator, first, second = Coordinator(), *(Permits(Budget("b", in_flight=1), name) for name in "vw")
    ask(coordinator, first, 0.0)
    first.started({}, 0.0)
    for number in range(200):
        second.next_start({}, number / 10)
        message = second.message(number / 10)
        assert message["slots"][1] <= 1
        assert second.answered(coordinator.ask(message, number / 10), number / 10, number / 10)


@pytest.mark.parametrize(
    ("units", "expected"),
    [(1.0, 2.0), (2.0, 3.0), (3.0, 5.0), (4.0, math.inf)],
)
def test_G2_a_call_starts_as_soon_as_permits_that_hold_together_are_enough(units: float, expected: float) -> None:
    """A permit that ends early is of no use to a call that starts later, and is no reason to ask before it."""
    stock = Stock(0, "tokens", 10.0, 60.0, 0.0)
    for since, until, amount in ((2.0, 4.0, 1.0), (3.0, 8.0, 1.0), (5.0, 9.0, 2.0)):
        stock.permits.append(Permit(since, until, until, amount))
    assert stock.ready_at(units, 1.0) == expected


def test_G3_a_worker_whose_calls_do_not_wait_gets_whole_calls() -> None:
    """Less than a call would lapse unused, and be missing elsewhere."""
    coordinator, budget = Coordinator(), Budget("b", Limit(7, 1.0))
    workers = [Permits(budget, f"w{place}") for place in range(4)]
    now = 0.0
    for step in range(400):
        now = step * 0.01
        permits = workers[step % 4]
        while permits.next_start({}, now) <= now:
            call(permits, now, {})
        if permits.ask_at(now) <= now:
            exchange(coordinator, permits, now)
            assert all(permit.units == round(permit.units) for stock in permits._stocks for permit in stock.permits)


@pytest.mark.parametrize("limits", [(), (Limit(1_000_000),)])
@pytest.mark.parametrize("settled", [None, {"usd": 0.005}])
def test_G8_calls_under_a_spend_limit_that_return_need_no_message_each(
    limits: tuple[Limit, ...], settled: dict[str, float] | None
) -> None:
    permits = Permits(Budget("b", *limits, spend={"usd": 1000.0}), "w")
    coordinator, weights, now, messages = Coordinator(), {"usd": 0.01}, 0.0, 0
    for _ in range(500):  # One after the other, so that nothing is reserved between two.
        while permits.next_start(weights, now) > now:
            exchange(coordinator, permits, now)
            messages += 1
        permits.started(weights, now)
        now += 0.001
        permits.returned(weights, settled, now - 0.001, now)
    assert messages <= 50


def test_G8_what_is_ready_is_computed_once_for_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    _, permits = granted(Budget("b", Limit(1_000_000, 60.0)), 1000)
    looks, look = Counter[str](), Stock.look

    def counted(*given: Any) -> Any:
        looks["all"] += 1
        return look(*given)

    monkeypatch.setattr(Stock, "look", counted)
    for number in range(1000):
        start(permits, 0.1 + number * 1e-6)
    assert looks.total() <= 2


def test_G2_G8_calls_that_start_without_a_question_are_those_that_may_start_and_are_counted() -> None:
    coordinator, permits = Coordinator(), Permits(budget := Budget("b", Limit(1000, 1.0)), "w")
    free, starts, now = permits.free, list[float](), 0.0
    while now < 3.0:
        while True:
            if free.left and now < free.until:
                free.left, free.last = free.left - 1, now
            elif permits.take(ONE, now) <= now:
                permits.lend()
            else:
                break
            starts.append(now)
            free.ended += 1
        exchange(coordinator, permits, now)
        assert not free.left
        assert permits.running() == 0
        assert coordinator.statistics(budget, now)["units"]["calls"]["used"] >= sum(now - 1.0 < at for at in starts)
        now += 0.0625
    assert most_in_a_window(starts, 1.0) == 1000
    assert len(starts) >= 0.97 * 1000 * 2


@pytest.mark.parametrize("why", ["a lease that is over", "a pause", "a reply that drops permits", "answers missing"])
def test_G7_G5_no_call_starts_without_a_question_after(why: str) -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(1000, 10.0)), "w")
    may_start(permits, 0.0, {"calls": 100.0})
    exchange(coordinator, permits, 0.0)
    assert may_start(permits, 0.0)
    permits.started(ONE, 0.0)
    permits.lend()
    free = permits.free
    # Two calls may be in flight before anything was answered.
    assert free.left == 1
    if why == "a lease that is over":
        assert free.until <= 1.0
    elif why == "a pause":
        permits.hint({}, 1.0, 0.0)
        assert not free.left
    elif why == "a reply that drops permits":
        permits.hint({"calls": Hint(remaining=0.0, reset_after=5.0)}, None, 0.0)
        exchange(coordinator, permits, 0.0)
        assert not free.left
    else:
        free.left, free.last = 0, 0.0
        assert not may_start(permits, 0.0)
        assert free.heard
        free.ended += 1
        assert may_start(permits, 0.0)
