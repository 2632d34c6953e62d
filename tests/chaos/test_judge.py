"""What the verdict of `make chaos` is worth: runs that break a law are wrong, and those that do not are right."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from urllib.request import Request, urlopen

from tests.chaos.cluster import Task, tasks_of
from tests.chaos.faults import Strike
from tests.chaos.jobs import CAPACITY, KEYS, PARTITIONS, Job
from tests.chaos.judge import asked_again, end_of, history_of, longest_pause, wrong_calls
from tests.chaos.service import HEADER, LATENCY, Call, CountingService
from tests.chaos.streams import FILES, IN_BATCH, wrong_repeats

OF_A_TASK = KEYS // PARTITIONS

PACE = LATENCY / CAPACITY
"""Seconds for each call of a task, at the pace of the real jobs."""

ASKED = 300
"""The calls of a task before it is killed."""

KILLED = 1.0 + ASKED * PACE

PLAIN, PAID = Job(), Job(journal=True)


def tasks(*killed: int) -> dict[int, Task]:
    """A task of 10 seconds for each partition. Those of killed ones fail, and are made again 20 seconds later."""
    first = {number: Task(number, "0", number, 1.0, 11.0, "Success") for number in range(PARTITIONS)}
    for number in killed:
        first[number] = replace(first[number], end=KILLED, reason="ExecutorLostFailure")
        first[10 + number] = replace(first[number], name=10 + number, start=20.0, end=31.0, reason="Success")
    return first


def calls(task: Task, first: int = 0, last: int = OF_A_TASK) -> list[Call]:
    """The calls of a task for some of its keys, one after another, from its start on."""
    begin = OF_A_TASK * task.partition
    times = {key: task.start + PACE * (key - begin) for key in range(begin + first, begin + last)}
    return [Call("run", task.name, 0, key, at, at + PACE / 2, "result") for key, at in times.items()]


def verdict(job: Job, made: dict[int, Task], asked: list[Call], *strikes: Strike) -> list[str]:
    return wrong_calls(job, made, asked, history_of(job, made, asked, strikes))


def test_Y3_a_run_without_a_fault_is_right() -> None:
    made = tasks()
    asked = [call for task in made.values() for call in calls(task)]
    assert verdict(PLAIN, made, asked) == []
    assert asked_again(asked) == 0


def test_Y3_a_key_that_is_never_asked_for_is_wrong() -> None:
    made = tasks()
    asked = [call for task in made.values() for call in calls(task)][1:]
    assert verdict(PLAIN, made, asked) == ["1 keys were never asked for"]


def test_Y3_an_attempt_that_asks_twice_is_wrong() -> None:
    made = tasks()
    asked = [call for task in made.values() for call in calls(task)]
    asked.append(replace(asked[0], start=10.0, end=10.01))
    assert any("twice in one attempt" in text for text in verdict(PLAIN, made, asked))


def test_Y3_without_a_journal_a_task_that_was_killed_asks_for_its_keys_again() -> None:
    made, kill = tasks(2), Strike("kill", KILLED, KILLED, ("0",))
    asked = [call for number in (0, 1, 3, 12) for call in calls(made[number])] + calls(made[2], 0, ASKED)
    assert verdict(PLAIN, made, asked, kill) == []
    assert asked_again(asked) == ASKED
    assert any(text.startswith("J2") for text in verdict(PAID, made, asked, kill)), "a journal that writes nothing"


def test_Y3_with_a_journal_only_what_came_shortly_before_the_kill_is_asked_for_again() -> None:
    made, kill = tasks(2), Strike("kill", KILLED, KILLED, ("0",))
    others = [call for number in (0, 1, 3) for call in calls(made[number])]
    asked = others + calls(made[2], 0, ASKED)
    assert verdict(PAID, made, asked + calls(made[12], 200), kill) == []
    assert any(text.startswith("J2") for text in verdict(PAID, made, asked + calls(made[12], 150), kill))


def test_Y3_the_event_log_tells_attempts_and_their_ends() -> None:
    info = {"Task ID": 7, "Executor ID": "1", "Partition ID": 3, "Launch Time": 1500}
    start = {"Event": "SparkListenerTaskStart", "Task Info": info}
    end = {"Event": "SparkListenerTaskEnd", "Task Info": {**info, "Finish Time": 2500}}
    end["Task End Reason"] = {"Reason": "TaskKilled"}
    stray = {**end, "Task Info": {**info, "Task ID": 8}}
    found = tasks_of(map(json.dumps, (start, end, stray)))
    assert found == {7: Task(7, "1", 3, 1.5, 2.5, "TaskKilled")}


def test_Y3_an_attempt_that_was_given_up_may_call_for_a_moment_and_one_that_finished_may_not() -> None:
    made = tasks()
    asked = [call for task in made.values() for call in calls(task)]
    asked[0] = replace(asked[0], start=11.5, end=11.6)
    assert any(text.startswith("O18") for text in verdict(PLAIN, made, asked))
    given_up, again = replace(made[0], reason="TaskKilled"), replace(made[0], name=10, start=20.0, end=31.0)
    assert verdict(PLAIN, made | {0: given_up, 10: again}, asked + calls(again)) == []


def test_Y3_pauses_delay_a_write_together_only_if_it_waits_through_all_of_them() -> None:
    pauses = [Strike("paused", at, at + 2.0, paused=2.0) for at in (10.0, 12.5, 20.0)]
    assert longest_pause(pauses) == 4.0
    assert longest_pause(pauses[1:]) == 2.0
    assert longest_pause([Strike("kill", 1.0, 1.0, ("0",))]) == 0.0


def test_Y3_only_an_attempt_that_ends_soon_after_a_kill_was_killed_by_it() -> None:
    kills = [Strike("kill", at, at, ("0",)) for at in (3.0, 10.0)]
    task = Task(0, "0", 0, 1.0, 10.2, "ExceptionFailure")
    assert end_of(task, kills) == (10.0, "killed")
    assert end_of(replace(task, end=3.1), kills) == (3.0, "killed")
    assert end_of(replace(task, end=9.0), kills) == (9.0, "failed")
    assert end_of(replace(task, end=2.0), kills) == (2.0, "failed")
    assert end_of(replace(task, end=None, reason=None), kills[:1]) == (3.0, "killed")
    assert end_of(replace(task, executor="1"), kills) == (10.2, "failed")


def test_Y3_calls_that_still_run_are_judged_when_they_have_ended() -> None:
    service = CountingService()
    with service.service, ThreadPoolExecutor() as pool:
        request = Request(f"{service.url}/v/0/7", headers={HEADER: "run/3"})
        asked = pool.submit(urlopen, request, timeout=30)
        while not service.calls("run"):
            time.sleep(0.001)
        [call] = service.ended_calls("run")
        assert (call.task, call.key, call.outcome) == (3, 7, "result")
        assert asked.result().status == 200


def test_Y3_a_driver_that_asks_for_more_than_its_micro_batch_again_is_wrong() -> None:
    first = [call for task in tasks().values() for call in calls(task)]
    batch = PLAIN.calls * IN_BATCH // FILES
    assert wrong_repeats(PLAIN, first, first[:batch]) == []
    assert wrong_repeats(PLAIN, first, first[: batch + 1]) == [
        f"a driver asked for {batch + 1} keys again, and a micro-batch has {batch}"
    ]
