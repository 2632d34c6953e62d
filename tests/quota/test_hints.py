"""Laws G4 and G5 for what sources say of their limits: all workers heed it soon, and it never raises a limit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from asyncio_operator import Budget, Limit
from asyncio_operator.quota.caps import BELIEVED, Cap, available, is_known, lowered, problem, take
from asyncio_operator.quota.caps import hear as hear_hint
from asyncio_operator.quota.permits import Permits
from asyncio_operator.quota.terms import Rate
from asyncio_operator.quota.usage import Hint
from asyncio_operator.quota.window import Window
from tests.quota.helpers import Cluster, Coordinator, ask, call, exchange, may_start, most_in_a_window

BUDGET = Budget("b", Limit(300, 1.0))


def hear(caps: dict[str, Cap], unit: str, said: dict[str, Any], *more: Any) -> None:
    hear_hint(caps, unit, Hint(**said), *more)


def heard(cluster: Cluster, limits: dict[str, Hint], retry_after: float | None = None) -> list[float]:
    """The seconds after the first worker hears this at which calls start, in the next five."""
    cluster.run(1.5)
    now, before = cluster.now, len(cluster.all_starts)
    cluster.permits[0].hint(limits, retry_after, now)
    cluster.run(5.0)
    return [time - now for time in cluster.all_starts[before:]]


def without_starts(starts: list[float], begin: float, end: float) -> bool:
    return not any(begin < time < end for time in starts)


def window(rate: float, per: float, starts: dict[float, float]) -> Window:
    """One in which units have started at these times."""
    made = Window(Rate("calls", rate, per, 0.0))
    for time, units in starts.items():
        made.place(time, units)
    made.note_peak(0.0)
    return made


@pytest.mark.parametrize(
    ("limits", "retry_after"),
    [
        ({}, 2.0),
        ({"calls": Hint(remaining=0, reset_after=2.0)}, None),
        ({"calls": Hint(limit=300, remaining=0, reset_after=2.0)}, None),
        # A unit for which the budget has no limit.
        ({"tokens": Hint(remaining=0, reset_after=2.0)}, None),
    ],
)
def test_G5_all_workers_stop_within_half_a_second_and_go_on_when_told(
    limits: dict[str, Hint], retry_after: float | None
) -> None:
    starts = heard(Cluster(BUDGET, workers=3), limits, retry_after)
    assert without_starts(starts, 0.3, 2.0)
    assert not without_starts(starts, 2.0, 2.3)
    assert len(starts) >= 600


def test_G5_the_worker_that_is_asked_to_wait_does_so_before_its_coordinator_knows() -> None:
    coordinator, cluster = Coordinator(), Cluster(BUDGET)
    [permits] = cluster.permits
    ask(coordinator, permits, 0.0)
    assert may_start(permits, 0.1)
    permits.hint({}, 2.0, 0.1)
    assert permits.next_start({}, 0.1) == pytest.approx(2.1)


def test_G5_what_remains_is_shared_until_the_reset() -> None:
    starts = heard(Cluster(BUDGET, workers=3), {"calls": Hint(limit=1000, remaining=60, reset_after=3.0)})
    assert 30 <= len([time for time in starts if time < 3.0]) <= 60 + 15
    assert not without_starts(starts, 3.0, 3.3)


@pytest.mark.parametrize("remaining", [0, 80])
def test_G5_a_source_that_refills_is_followed_at_its_rate(remaining: int) -> None:
    # The reset is the time to a full refill: what is missing comes back until then.
    hint = Hint(limit=100, remaining=remaining, reset_after=2.0, refills=True)
    starts = heard(Cluster(BUDGET, workers=3), {"calls": hint})
    rate = (100 - remaining) / 2
    for end in (0.5, 1.0, 2.0):
        assert len([time for time in starts if 0.3 < time < end]) <= remaining + rate * end
    assert len([time for time in starts if time < 2.0]) >= remaining + 1.2 * rate


def test_G5_a_unit_without_a_limit_that_refills_does_not_stop_calls_until_it_is_full() -> None:
    hint = Hint(limit=100, remaining=0, reset_after=60.0, refills=True)
    starts = heard(Cluster(BUDGET, workers=3), {"tokens": hint})
    assert without_starts(starts, 0.3, 1.0)
    assert not without_starts(starts, 1.0, 1.3)


def test_G5_the_longest_of_several_pauses_counts_for_all_workers() -> None:
    cluster = Cluster(BUDGET, workers=3)
    cluster.run(1.5)
    now, before = cluster.now, len(cluster.all_starts)
    for seconds in (2.0, 0.5):
        # Both are reported with one message.
        cluster.permits[0].hint({}, seconds, now)
    cluster.run(5.0)
    starts = [time - now for time in cluster.all_starts[before:]]
    assert without_starts(starts, 0.3, 2.0)
    assert not without_starts(starts, 2.0, 2.3)


def test_G5_hints_that_overtake_each_other_before_a_message_do_not_raise_what_remains() -> None:
    coordinator, cluster = Coordinator(), Cluster(BUDGET)
    [permits] = cluster.permits
    for remaining in (0, 50):
        permits.hint({"calls": Hint(remaining=remaining, reset_after=10.0)}, None, 0.0)
    permits.next_start({}, 0.0)
    exchange(coordinator, permits, 0.1)
    assert not may_start(permits, 0.2)


def test_G5_retry_after_0_means_at_once() -> None:
    starts = heard(Cluster(BUDGET, workers=2), {}, 0.0)
    assert len(starts) >= 1400


def test_G4_no_hint_raises_a_limit() -> None:
    cluster = Cluster(BUDGET, workers=3)
    heard(cluster, {"calls": Hint(limit=1e6, remaining=1e6, reset_after=0.1, refills=True)})
    assert most_in_a_window(cluster.all_starts, 1.0) <= 300


def test_G5_answers_that_overtake_each_other_do_not_raise_what_remains() -> None:
    coordinator, cluster = Coordinator(), Cluster(BUDGET)
    [permits] = cluster.permits
    for remaining in (0, 50):
        permits.hint({"calls": Hint(remaining=remaining, reset_after=10.0)}, None, 0.0)
        exchange(coordinator, permits, 0.0)
    ask(coordinator, permits, 0.1)
    # A little later than the grant: what it may start it may surely start then.
    assert not may_start(permits, 0.2)
    # Later it is believed.
    permits.hint({"calls": Hint(remaining=50, reset_after=10.0)}, None, 2.0)
    ask(coordinator, permits, 2.0)
    assert may_start(permits, 2.01)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": -1},
        {"remaining": -1},
        {"reset_after": -5.0},
        {"reset_after": 3601.0},
        {"reset_after": math.nan},
        {"remaining": math.inf},
        {"remaining": 10**400},
        {"limit": 1e308},
        {"limit": 5, "remaining": 6},
    ],
)
def test_G5_a_hint_that_cannot_be_right_is_found(wrong: dict[str, Any]) -> None:
    assert problem(Hint(**wrong)) is not None


@pytest.mark.parametrize(
    "said", [*product((None, 100.0), (None, 0.0, 60.0), (None, 0.0, 2.0), (False, True), (None, 1.0))]
)
def test_G5_a_hint_that_is_believed_is_heard_whatever_it_leaves_out(said: Sequence[Any]) -> None:
    hint = Hint(*said)
    assert problem(hint) is None
    cluster = Cluster(BUDGET)
    [permits] = cluster.permits
    for unit in ("calls", "tokens"):
        permits.hint({unit: hint}, None, 0.0)
    cluster.run(4.0)
    assert not without_starts(cluster.starts[0], 2.0, 4.0)
    assert most_in_a_window(cluster.all_starts, 1.0) <= 300


def test_G10_statistics_have_the_last_hint_of_each_unit() -> None:
    coordinator, cluster = Coordinator(), Cluster(BUDGET)
    [permits] = cluster.permits
    permits.hint({"calls": Hint(limit=100, remaining=40, reset_after=10.0)}, 2.0, 0.0)
    exchange(coordinator, permits, 1.0)
    assert coordinator.statistics(BUDGET, 1.5)["paused_for"] == pytest.approx(0.5)
    found = coordinator.statistics(BUDGET, 4.0)
    assert found["units"]["calls"]["hint"] == {"limit": 100, "remaining": 40, "reset_after": 6.0}
    assert found["paused_for"] == 0.0
    assert coordinator.statistics(BUDGET, 11.0)["units"]["calls"]["hint"] is None


def test_G5_a_fixed_window_that_follows_holds_no_more_than_the_source_allows() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"limit": 60, "remaining": 0, "reset_after": 20.0, "per": 60.0}, 0, 100.0)
    assert available(caps, "calls", 119.9) == 0
    assert available(caps, "calls", 120.0) == 60
    take(caps, "calls", 50, 121.0)
    assert available(caps, "calls", 179.9) == 10
    assert available(caps, "calls", 180.0) == math.inf, "a source that says nothing more is not waited for"


def test_G5_a_refill_ends_at_the_limit_of_the_source() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "tokens", {"limit": 1000, "remaining": 0, "reset_after": 10.0, "refills": True}, 0, 0.0)
    assert available(caps, "tokens", 5.0) == 500
    assert available(caps, "tokens", 12.0) == 1000
    take(caps, "tokens", 900, 12.0)
    assert available(caps, "tokens", 14.0) == 300
    assert available(caps, "tokens", 20.0) == math.inf


def test_G5_another_hint_takes_the_place_of_the_next_window() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"limit": 60, "remaining": 0, "reset_after": 60.0}, 0, 0.0)
    hear(caps, "calls", {"limit": 60, "remaining": 40, "reset_after": 55.0}, 0, 65.0)
    assert available(caps, "calls", 66.0) == 40
    assert available(caps, "calls", 120.0) == 60


def test_G5_without_a_limit_a_cap_ends_with_its_window() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"remaining": 3, "reset_after": 10.0}, 0, 0.0)
    assert (available(caps, "calls", 9.0), available(caps, "calls", 10.0)) == (3, math.inf)


def test_G5_a_source_that_names_other_units_all_the_time_does_not_fill_the_state() -> None:
    caps: dict[str, Cap] = {}
    for number in range(1000):
        hear(caps, "calls", {"remaining": 3, "reset_after": 10.0}, 0, float(number))
        hear(caps, f"unit {number}", {"remaining": 3, "reset_after": 10.0}, 0, float(number))
    assert len(caps) <= 64
    assert available(caps, "calls", 999.0) == 3


def test_G5_a_refill_in_no_time_is_no_refill() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"limit": 1e15, "remaining": 1, "reset_after": 5e-324, "refills": True}, 0, 0.0)
    assert math.isfinite(caps["calls"].rate)


@pytest.mark.parametrize(
    ("hint", "known"),
    [
        ({"limit": 100, "remaining": 20, "reset_after": 50.0, "refills": True}, True),
        ({"limit": 100, "remaining": 19, "reset_after": 50.0, "refills": True}, False),
        ({"limit": 120, "remaining": 20, "reset_after": 50.0, "refills": True}, True),
        ({"limit": 99, "remaining": 99, "reset_after": 50.0, "refills": True}, False),
        ({"limit": 100, "remaining": 20, "reset_after": 62.0, "refills": True}, False),
        ({"limit": 100, "remaining": 20, "reset_after": 50.0, "refills": True, "per": 3600.0}, False),
        ({"remaining": 20, "reset_after": 50.0}, False),
        # The window began at 30, and then 30 have started; or at 15, and all have.
        ({"limit": 100, "remaining": 70, "reset_after": 30.0}, True),
        ({"limit": 100, "remaining": 69, "reset_after": 30.0}, False),
        ({"limit": 100, "remaining": 20, "reset_after": 15.0}, True),
    ],
)
def test_G3_a_source_that_counts_no_more_than_the_budget_sets_no_cap(hint: dict[str, Any], known: bool) -> None:
    own = [window(100.0, 60.0, {20.0: 50.0, 35.0: 30.0})]
    assert is_known(Hint(**hint), own, 60.0) == known
    caps: dict[str, Cap] = {}
    hear(caps, "calls", hint, 0.0, 60.0, own)
    assert (available(caps, "calls", 60.0) == math.inf) == known


def test_G5_a_cap_ends_when_the_source_counts_no_more_than_the_budget() -> None:
    caps: dict[str, Cap] = {}
    own = [window(100.0, 60.0, {0.0: 50.0})]
    hear(caps, "calls", {"limit": 100, "remaining": 0, "reset_after": 40.0}, 0.0, 0.0, own)
    for time, left in ((0.5, 0.0), (1.5, math.inf)):
        hear(caps, "calls", {"limit": 100, "remaining": 60, "reset_after": 40.0}, 0.0, time, own)
        assert available(caps, "calls", time) == left


FULL = {"limit": 60.0, "remaining": 0.0, "reset_after": 1.0}


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        ({"limit": 60.0, "per": 1.0}, 57.0),
        ({"limit": 60.0, "remaining": 30.0, "reset_after": 0.4, "per": 1.0}, 57.0),
        ({"limit": 60.0, "per": 0.5}, 114.0),
        # Of a longer window any part may come at once: what is left says the rest.
        ({"limit": 60.0, "per": 60.0}, 60.0),
        ({**FULL, "refills": True}, 57.0),
        ({**FULL, "reset_after": 0.9, "refills": True}, 57.0),
        ({**FULL, "reset_after": 0.5, "refills": True}, 114.0),
        ({"limit": 0.5, "per": 1.0}, 1.0),
        # These do not tell how long a window is.
        (FULL, 300.0),
        ({"limit": 60.0}, 300.0),
        ({"limit": 60.0, "remaining": 40.0, "reset_after": 1.0, "refills": True}, 300.0),
        ({"remaining": 0.0, "reset_after": 1.0, "per": 1.0}, 300.0),
        # A limit is never raised.
        ({"limit": 300.0, "per": 1.0}, 300.0),
        ({"limit": 9000.0, "per": 1.0}, 300.0),
        ({"limit": 60.0, "per": 1e-9}, 300.0),
    ],
)
def test_G5_a_lower_limit_is_learned_if_the_source_tells_it(hint: dict[str, Any], allowed: float) -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", hint, 0.0, 5.0)
    assert lowered(caps, Rate("calls", 200.0, 1.0, 100.0), 6.0) == (
        (200.0, 100.0) if allowed == 300.0 else (allowed, 0.0)
    )
    assert lowered(caps, Rate("keys", 200.0, 1.0, 100.0), 6.0) == (200.0, 100.0)


@pytest.mark.parametrize("later", [{"limit": 90.0, "per": 1.0}, {"limit": 90.0}, {"limit": 500.0, "per": 1.0}])
def test_G5_a_learned_limit_gives_way_to_what_the_source_says_next(later: dict[str, Any]) -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"limit": 60.0, "per": 1.0}, 0.0, 5.0)
    hear(caps, "calls", later, 0.0, 6.0)
    expected = (85.5, 0.0) if later == {"limit": 90.0, "per": 1.0} else (300.0, 0.0)
    assert lowered(caps, Rate("calls", 300.0, 1.0, 0.0), 6.0) == expected


def test_G5_a_learned_limit_is_forgotten_when_the_source_stops_saying_it() -> None:
    caps: dict[str, Cap] = {}
    hear(caps, "calls", {"limit": 60.0, "per": 1.0}, 0.0, 5.0)
    # Without the length of its window, the same limit is still the same.
    hear(caps, "calls", {"limit": 60.0}, 0.0, 9.0)
    assert lowered(caps, Rate("calls", 300.0, 1.0, 0.0), 9.0 + BELIEVED) == (57.0, 0.0)
    assert lowered(caps, Rate("calls", 300.0, 1.0, 0.0), 9.1 + BELIEVED) == (300.0, 0.0)


def test_G5_all_workers_keep_a_learned_limit_and_use_it() -> None:
    cluster = Cluster(BUDGET, workers=4)
    cluster.run(1.0)
    for _ in range(20):
        cluster.permits[1].hint({"calls": Hint(limit=60, per=1.0)}, None, cluster.now)
        cluster.run(0.25)
    starts = [time for time in cluster.all_starts if time > 2.5]
    assert most_in_a_window(starts, 1.0) <= 60
    assert len(starts) >= 0.9 * 60 * (cluster.now - 2.5)
    # It is forgotten, and the budget's own limit holds again.
    cluster.run(BELIEVED + 2.0)
    assert most_in_a_window(cluster.all_starts[-400:], 1.0) > 250


REFUSALS: dict[str, tuple[dict[str, Hint], float]] = {
    "Retry-After": ({}, 1.0),
    "OpenAI": ({"calls": Hint(limit=200, remaining=0, reset_after=0.9, refills=True)}, 0.9),
    "Anthropic": ({"calls": Hint(limit=200, remaining=0, reset_after=0.5, refills=True)}, 1.0),
    "IETF": ({"calls": Hint(limit=200, remaining=0, reset_after=1.0, per=1.0)}, 1.0),
}
"""What a refused call hears of each provider."""


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_G5_G3_after_a_refusal_the_whole_limit_is_used_again_within_one_window(refusal: str, workers: int) -> None:
    """Of a source that refuses all calls for one second in three, and answers after 10 ms."""
    cluster = Cluster(Budget("b", Limit(200, 1.1)), workers)
    running: deque[tuple[float, Permits]] = deque()
    answered: list[float] = []
    refused, left, first = 0, 600, math.inf
    while len(answered) < 600:
        now = cluster.now
        while running and running[0][0] <= now - 0.01:
            started, permits = running.popleft()
            if is_refused := 1 <= (started - first) % 3 < 2:
                permits.hint(*REFUSALS[refusal], now)
                refused, left = refused + 1, left + 1
            else:
                answered.append(started - first)
            permits.returned({}, None, started, now, billed=not is_refused)
        for permits in cluster.permits:
            while left and permits.next_start({}, now) <= now:
                permits.started({}, now)
                running.append((now, permits))
                first = min(first, now)
                left -= 1
        cluster.run(cluster.step, busy=())
        assert cluster.now < 10
    # The first storm stops the second window, until a second after the first refusals.
    assert sum(2.0 < time < 2.2 + 1.1 for time in answered) >= 0.97 * 200
    assert answered[-1] < 3.6
    assert refused <= 0.05 * 600


def test_G5_what_answers_have_shown_before_a_refusal_is_forgotten() -> None:
    coordinator, permits = Coordinator(), Permits(Budget("b", Limit(1000, 10.0)), "w")
    now = 0.0
    for round_trip in range(12):
        now = 0.05 * round_trip
        while may_start(permits, now):
            call(permits, now, {})
        exchange(coordinator, permits, now)
    permits.hint({}, 11.0, now)
    for wait in (11.0, 11.05, 11.1):
        ask(coordinator, permits, now + wait)
    started = 0
    while may_start(permits, now + 11.1):
        permits.started({}, now + 11.1)
        started += 1
    assert 1 <= started <= 0.05 * 1000 + 1000 / 10 * 0.1


def test_G3_slow_answers_hold_no_call_back_that_the_limit_allows() -> None:
    """Calls that never return may start at the rate of the limit."""
    cluster = Cluster(Budget("b", Limit(100, 1.0)), 2)
    cluster.run(4.0, lasting=True)
    assert len(cluster.all_starts) >= 0.97 * 400
