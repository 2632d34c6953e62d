"""Clients of a server that only stores, on virtual time: one of them answers the messages of all that wait."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

import pytest

from asyncio_operator import Budget, CoordinatorError, Limit
from asyncio_operator.quota.account import answer
from asyncio_operator.quota.share import Share
from asyncio_operator.quota.terms import ASK_TIMEOUT, Json
from tests.operator.helpers import now, virtual
from tests.quota.coordinators.slow_store import Server, SlowCoordinator
from tests.quota.test_share import Run


def count(state: Json | None, message: Json, time: float, new_server: bool) -> tuple[Json, Json]:
    """Counts messages. One that says "wrong" cannot be answered."""
    if message.get("wrong"):
        raise ZeroDivisionError
    state = {"count": (state or {"count": 0})["count"] + 1}
    return state, {**state, "now": time, "new": new_server}


def slow(server: Server) -> SlowCoordinator:
    return SlowCoordinator(server, count)


@pytest.mark.parametrize("clients", [1, 2, 4, 16, 40])
@virtual
async def test_an_exchange_takes_three_round_trips_at_most_however_many_clients_there_are(clients: int) -> None:
    server, source = Server(0.3), random.Random(1)
    replies: list[Json] = []

    async def ask(coordinator: SlowCoordinator) -> None:
        for _ in range(5):
            await asyncio.sleep(source.uniform(0, 0.7))
            before = now()
            reply = await coordinator.ask({})
            assert now() - before <= 3 * 0.3 + 1e-6
            # The clock was read after the request was sent, and before the reply came.
            assert before <= reply["sent"] < reply["now"] < now()
            replies.append(reply)

    await asyncio.gather(*(ask(slow(server)) for _ in range(clients)))
    assert sorted(reply["count"] for reply in replies) == list(range(1, 5 * clients + 1))


@virtual
async def test_a_message_that_is_posted_twice_is_answered_once() -> None:
    server = Server(0.1)
    client, other = slow(server), slow(server)
    posted = await client.post("one 1", "{}")
    assert (await other.ask({}))["count"] == 2
    server.mailbox.update(posted.mailbox)
    assert (await other.ask({}))["count"] == 3
    assert not server.mailbox


@virtual
async def test_what_a_client_that_has_gone_asked_is_dropped() -> None:
    server = Server(0.1)
    gone, other = slow(server), slow(server)
    await gone.post("gone 1", "{}")
    await asyncio.sleep(ASK_TIMEOUT)
    assert (await other.ask({}))["count"] == 1
    assert not server.mailbox


@virtual
async def test_a_message_that_cannot_be_answered_is_an_error_of_its_own_client_only() -> None:
    server = Server(0.1)
    wrong, other = slow(server), slow(server)
    asking = asyncio.ensure_future(wrong.ask({"wrong": True}))
    assert (await other.ask({}))["count"] == 1
    with pytest.raises(CoordinatorError, match="ZeroDivisionError"):
        await asking
    assert (await other.ask({}))["count"] == 2


@virtual
async def test_a_message_that_cannot_be_answered_keeps_no_other_waiting() -> None:
    server = Server(0.1)
    server.mailbox = {"old 1": "0 {", "new 1": '0 {"wrong": true}'}
    replies = await asyncio.gather(*(slow(server).ask({}) for _ in range(8)))
    assert now() <= 3 * 0.1 + 1e-6
    assert sorted(reply["count"] for reply in replies) == list(range(1, 9))
    assert not server.mailbox


@virtual
async def test_what_is_no_message_is_dropped() -> None:
    server = Server(0.1)
    server.mailbox = {"a": "b", "c 1": "nan {}", "d 1": "", "e 1": "-inf {}", "f": "inf", "g " + "9" * 5000: "0 5"}
    assert (await slow(server).ask({}))["count"] == 1
    assert not server.mailbox


@virtual
async def test_a_message_that_arrives_after_a_later_one_of_its_client_is_not_answered() -> None:
    """A connection was lost, and the server reads what it got over it when the client has gone on."""
    server = Server(0.1)
    client, other = slow(server), slow(server)
    await client.post("one 2", "{}")
    await client.post("one 1", "{}")
    assert (await other.ask({}))["count"] == 2
    await client.post("one 1", "{}")
    assert (await other.ask({}))["count"] == 3
    assert json.loads(server.text)["answered"]["one"][0] == "one 2"
    assert not server.mailbox


@virtual
async def test_replies_to_clients_that_have_gone_are_dropped_also_after_the_servers_clock_was_set_back() -> None:
    server = Server(0.1, ahead=1e6)
    await slow(server).ask({})
    server.ahead = 0.0
    coordinator = slow(server)
    for number in range(60):
        assert (await coordinator.ask({}))["count"] == number + 2
    assert len(json.loads(server.text)["answered"]) == 1


@virtual
async def test_G2_a_server_that_has_not_written_the_text_is_new_once_and_its_old_mail_is_dropped() -> None:
    """What waits in an older copy may have been answered since: answered again, it would hide what its worker knows."""
    server = Server(0.1)
    client, other = slow(server), slow(server)
    assert not (await client.ask({}))["new"]
    await other.post("other 1", "{}")
    server.name = "two"
    reply = await client.ask({})
    assert (reply["count"], reply["new"]) == (2, True)
    assert not server.mailbox
    for name in ("two", "one"):
        server.name = name
        reply = await client.ask({})
        assert not reply["new"], "data that several servers share are no older copy"


@virtual
async def test_G2_what_was_read_at_one_server_is_not_written_at_another() -> None:
    """The copy there may have the same version and be older all the same."""
    server = Server(0.1)
    client = slow(server)
    await client.ask({})
    asking = asyncio.ensure_future(client.ask({}))
    await asyncio.sleep(0.1)
    server.name = "two"
    assert (await asking)["new"]


@virtual
async def test_a_server_that_does_not_say_its_name_is_never_new() -> None:
    server = Server(0.1, name="")
    client = slow(server)
    assert not any([(await client.ask({}))["new"] for _ in range(3)])


@pytest.mark.parametrize(
    "text",
    [
        '{"state": 5, "answered": {}, "servers": []}',
        '{"state": null, "answered": [], "servers": []}',
        '{"state": null, "answered": {"a": 5}, "servers": []}',
        '{"state": null, "answered": {"a": ["a 1", "0", null]}, "servers": []}',
        '{"state": null, "answered": {"a": ["a 1", 0, []]}, "servers": []}',
        '{"state": null, "answered": {}, "servers": 5}',
        '{"state": null, "answered": {}}',
        "[" * 100_000,
    ],
)
@virtual
async def test_a_text_that_is_no_state_is_named(text: str) -> None:
    server = Server(0.1, version="1", text=text)
    with pytest.raises(CoordinatorError, match="what it keeps is not the state of a budget; delete it") as raised:
        await slow(server).ask({})
    assert raised.value.lasting
    assert server.text == text


@pytest.mark.parametrize("workers", [2, 4, 8])
@virtual
async def test_G2_G3_workers_at_a_server_that_replies_late_do_not_starve_each_other(workers: int) -> None:
    """Their replies take 0.3 s, so that a lease of a second lasts for one exchange and a half.

    How much is used depends on who asks before whom, by 2 % up and down, so several times count.
    """
    found = [await _use(workers, seed) for seed in range(1, 6)]
    assert sum(found) >= 0.87 * len(found)


async def _use(workers: int, seed: int) -> float:
    """The part that is used of what workers can use at best. Each gets its part of it."""
    server, rate, per, begins = Server(0.3), 100, 5.0, now()
    ends = begins + 35.0
    budget = Budget("b", Limit(rate, per), patience=10.0)
    source = random.Random(seed)

    async def work(run: Run) -> None:
        await asyncio.sleep(source.uniform(0, 0.3))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ends - now()):
                while True:
                    await run.start()

    shares = [Share(budget, SlowCoordinator(server, answer), 0.0) for _ in range(workers)]
    runs = [[Run(share, 0.05) for _ in range(4)] for share in shares]
    await asyncio.gather(*(work(run) for some in runs for run in some))
    starts = sorted(time for some in runs for run in some for time in run.times)
    assert all(later - first >= per for first, later in zip(starts, starts[rate:], strict=False))
    # What comes back may start an exchange later.
    at_best = per / (per + 2 * server.round_trip)
    used = len([time for time in starts if time >= begins + per]) / (rate * ((ends - begins) / per - 1))
    calls = [sum(len(run.times) for run in some) for some in runs]
    assert min(calls) >= 0.4 * sum(calls) / workers
    for run in (run for some in runs for run in some):
        run.seat.leave()
    await asyncio.sleep(5)
    return used / at_best


@pytest.mark.parametrize("late", [0.05, 0.1, 0.15, 0.2, 0.25])
@pytest.mark.parametrize("options", [{}, {"in_flight": 6}, {"in_flight": 2}], ids=repr)
@virtual
async def test_G7_two_workers_in_step_at_a_server_that_replies_late_both_end(late: float, options: dict) -> None:
    """Each reads before the other has written, so each decides about its message twice, and gets the same."""
    server, budget = Server(0.3), Budget("b", Limit(40, 10.0), patience=10.0, **options)
    first, second = (Run(Share(budget, SlowCoordinator(server, answer), 0.0), 0.02) for _ in range(2))

    async def work(run: Run, begins: float) -> None:
        await asyncio.sleep(begins)
        await run.calls(10)
        run.seat.leave()

    async with asyncio.timeout(20):
        await asyncio.gather(work(first, 0.0), work(second, late))
    await asyncio.sleep(5)
