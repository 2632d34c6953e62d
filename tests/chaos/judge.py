"""Decides whether a run is right: the history of its calls, and what it has left behind.

The history has the attempts of tasks from Spark's event log, and calls from the service. An attempt that finished has
ended. The Python worker of another one may run on for the 5 seconds of law X7, until it sees that its JVM was killed,
or that Spark's driver gave its task up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from asyncio_operator.testing import History
from asyncio_operator_proof.history.checker import check_history
from tests.chaos.cluster import Task
from tests.chaos.faults import Strike
from tests.chaos.jobs import FLUSH_EVERY, Job
from tests.chaos.service import Call

WRITE = 0.5
"""Seconds for the way of an answer to its process, and for a write into a journal. With `FLUSH_EVERY` it must be much
less than what a task takes: a job without a journal must not look like one with a journal."""

SLACK = 0.05
"""Seconds by which calls are seen late: the journey to the service, and milliseconds of Spark's clock."""

ENDED = 5.0
"""Seconds after the end of a task in which nothing of it may be left (law X7)."""

SEEN = 3.0
"""Seconds until Spark's driver has seen that a process was killed: its connections are closed at once."""

OUTCOMES = {"Success": "finished", "TaskKilled": "closed", "Killed": "killed"}


def history_of(job: Job, tasks: Mapping[int, Task], calls: Sequence[Call], strikes: Sequence[Strike]) -> History:
    """The history of a run. Its times begin at its first event."""
    events: list[tuple[float, int, dict[str, Any]]] = []
    last: dict[int, float] = defaultdict(float)
    first: dict[int, float] = defaultdict(lambda: inf)
    for number, call in enumerate(calls):
        base = {"task": call.task, "call": number}
        asked = {"event": "call_started", "lookup": call.lookup, "keys": [call.key]}
        events.append((call.start, 1, base | asked))
        first[call.task] = min(first[call.task], call.start)
        last[call.task] = max(last[call.task], call.start)
        if call.outcome is not None:
            events.append((call.end, 2, base | {"event": "call_ended", "outcome": call.outcome}))
            last[call.task] = max(last[call.task], call.end)
    for task in tasks.values():
        begun = min(task.start, first[task.name])
        more = {"partition": task.partition, "worker": task.executor}
        events.append((begun, 0, {"event": "task_started", "task": task.name, **more}))
        if (end := end_of(task, strikes)) is not None:
            at, outcome = end
            if outcome != "finished" and at < last[task.name] <= at + ENDED:
                at = last[task.name]
            events.append((at, 3, {"event": "task_ended", "task": task.name, "outcome": outcome}))
    events += [(strike.begun, 4, {"event": "fault", "what": strike.what}) for strike in strikes]
    events.sort(key=lambda event: event[:2])
    history = History()
    history.add("history", version=1, slack=SLACK, source="chaos")
    for setting in job.settings(WRITE + longest_pause(strikes)):
        history.add("setting", **setting)
    zero = events[0][0] if events else 0.0
    for at, _, event in events:
        history.add(at=float(at - zero), **event)
    return history


def end_of(task: Task, strikes: Iterable[Strike]) -> tuple[float, str] | None:
    """When and how an attempt ended; None if that was not seen."""
    if task.reason == "Success":
        return task.end or 0.0, "finished"
    end = task.end or inf
    struck = [one for one in strikes if task.executor in one.killed and task.start <= one.ended and one.begun <= end]
    # Of several the latest: it has lived through those before.
    if struck and (task.end is None or task.end <= struck[-1].ended + SEEN):
        return struck[-1].ended, "killed"
    return None if task.end is None else (task.end, OUTCOMES.get(task.reason or "", "failed"))


def longest_pause(strikes: Iterable[Strike]) -> float:
    """The seconds by which pauses may delay a write. One that begins during the wait for a write adds to the last."""
    longest = current = 0.0
    last = -inf
    for strike in strikes:
        current = strike.paused + (current if strike.begun < last + FLUSH_EVERY + WRITE else 0.0)
        longest, last = max(longest, current), strike.ended
    return longest


def wrong_calls(
    job: Job, tasks: Mapping[int, Task], calls: Sequence[Call], history: History, *, places: bool = True
) -> list[str]:
    """What is wrong with the calls of a run.

    Args:
        places: whether all rows of a key are in the same partition, whatever was done again.
    """
    found = [str(violation) for violation in check_history(history)]
    unknown = {call.task for call in calls} - tasks.keys()
    if unknown:
        found.append(f"calls of tasks that the event log does not have: {sorted(unknown)}")
        return found
    asked = Counter((call.lookup, call.key, call.task) for call in calls)
    twice = [one for one, times in asked.items() if times > 1]
    if twice:
        found.append(f"{len(twice)} keys were asked for twice in one attempt of a task: {twice[:5]}")
    partitions: dict[tuple[int, int], set[int]] = defaultdict(set)
    for call in calls:
        partitions[call.lookup, call.key].add(tasks[call.task].partition)
    if places and (strays := [key for key, several in partitions.items() if len(several) > 1]):
        found.append(f"{len(strays)} keys were asked for in several partitions: {strays[:5]}")
    if missing := job.calls - len(partitions):
        found.append(f"{missing} keys were never asked for")
    return found


def asked_again(calls: Iterable[Call]) -> int:
    """The number of keys that were asked for more than once."""
    return sum(times > 1 for times in Counter((call.lookup, call.key) for call in calls).values())
