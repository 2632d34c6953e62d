"""Laws of the operator (O): what is read, what is emitted, and how a run ends."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.key_flights import splits
from asyncio_operator_proof.history.parts import MOMENT, PARTS, Call, Flight, Row, Run, Task
from asyncio_operator_proof.history.removed_rows import judge_removed
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.sweeps import at_once

GRACE = 1.0
"""Seconds that the end of a run waits at least for calls that ignore their cancellation, unless the setting says it."""


NOT_HIDDEN = (None, "SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "CancelledError")
"""Errors of calls that may end a run whatever `on_error` says."""


def law_o1_at_most_capacity_calls_run(book: Book, found: Finding) -> None:
    """At most `capacity` calls run at any time, those that were cut and have not returned included."""
    for run in book.runs:
        capacity = run.setting.get("capacity")
        if capacity is None:
            continue
        if not run.whole_calls:
            found.undecided(PARTS)
            continue
        for call, running in at_once((call.span for call in run.calls), book.moment):
            found.decided()
            if running > capacity:
                found.broken(
                    f"{running} calls of {run.name} run, and capacity is {capacity}",
                    call.start,
                    *_running_with(run, call, book),
                )


def _running_with(run: Run, call: Call, book: Book) -> list[int]:
    found = [call.event]
    for other in run.calls:
        if len(found) == 8 or other.start > call.start:
            break
        if other is not call and other.stopped > call.start + book.moment:
            found.append(other.event)
    return found


def law_o1_at_most_buffer_rows_are_inside(book: Book, found: Finding) -> None:
    """At most `buffer` rows are admitted and not emitted. Nothing is read ahead of that (O2)."""
    for run in book.runs:
        buffer = run.setting.get("buffer")
        if buffer is None:
            continue
        most = buffer + run.setting.get("chunk", 0)
        # A row that was removed leaves nothing to see: it counts until it came in, and no longer.
        over = run.task.end < inf
        spans = [
            (row.at, row.event, row.outs[-1].at, row.outs[-1].event, row)
            if row.outs
            else (row.at, row.event, row.at if over else inf, row.event, row)
            for row in run.rows.values()
        ]
        for row, inside in at_once(spans, book.moment):
            found.decided()
            if inside > most:
                found.broken(
                    f"row {row.row} of {run.name} is read while {inside - 1} rows are inside, and buffer is {buffer}",
                    row.at,
                    row.event,
                )


def law_o4_every_row_ends_once(book: Book, found: Finding) -> None:
    """Every row of a task that finished was emitted once, or removed for a reason that the settings give."""
    for run in book.runs:
        for row in run.rows.values():
            parts = Counter(out.part for out in row.outs)
            if row.outs:
                found.decided()
            for part, times in parts.items():
                if times > 1:
                    found.broken(
                        f"row {row.row} of {run.name} was emitted {times} times, as part {part}",
                        row.outs[-1].at,
                        *(out.event for out in row.outs if out.part == part),
                    )
            if parts and (max(parts) >= len(parts) or len(parts) < _fewest_parts(run, row)):
                found.broken(
                    f"row {row.row} of {run.name} lost a part: it has {sorted(parts)}",
                    row.outs[-1].at,
                    *(out.event for out in row.outs),
                )
            if not row.outs and run.task.outcome == "finished":
                judge_removed(book, run, row, found)


def law_o4_every_attempt_of_a_task_reads_its_rows(book: Book, found: Finding) -> None:
    """A task that finished has read all rows that another attempt of it read: the rows of its partition."""
    attempts: dict[Any, list[Task]] = {}
    for task in book.tasks.values():
        if task.partition is not None and task.attempt is not None and task.restored is None:
            attempts.setdefault(task.partition, []).append(task)
    for tasks in attempts.values():
        for task in tasks if len(tasks) > 1 else ():
            if task.outcome != "finished":
                continue
            found.decided()
            rows = _rows_of(task)
            for other in tasks:
                lacks = next((row for number, row in _rows_of(other).items() if number not in rows), None)
                if other.attempt != task.attempt and lacks is not None:
                    what = f"task {task.name} finished without row {lacks.row}, which task {other.name} read"
                    found.broken(what, task.end, lacks.event, task.end_event or 0)


def _rows_of(task: Task) -> dict[int, Row]:
    """The rows that a task has read."""
    return task.runs[0].rows if 0 in task.runs else {}


def _fewest_parts(run: Run, row: Row) -> int:
    """How many parts a row of `enrich` has at the end of a task that finished: one for each row of the answer."""
    answer = row.outs[0].answer
    return len(answer) if run.task.outcome == "finished" and not run.of_rows and isinstance(answer, list) else 0


def law_o6_nothing_follows_the_first_failure(book: Book, found: Finding) -> None:
    """With on_error="fail" nothing is emitted and no call starts after the failure that ends a run; the task fails."""
    for task in book.tasks.values():
        failures = [failure for run in task.runs.values() if (failure := _first_failure(run)) is not None]
        if not failures:
            continue
        failure = min(failures, key=lambda call: call.stopped)
        found.decided()
        late = failure.stopped + book.moment
        why = f"the failure of call {failure.id!r} ended task {task.name}"
        for run in task.runs.values():
            for call in run.calls:
                if call.start > late:
                    found.broken(f"call {call.id!r} starts after {why}", call.start, *failure.events, call.event)
            for number, at, row, _ in run.emitted:
                if at > late and (book.consumer_ready or not _was_ready(run, row, late)):
                    what = "a watermark" if row is None else f"row {row.row}"
                    found.broken(f"{what} is emitted after {why}", at, *failure.events, number)
        if task.outcome == "finished":
            found.broken(f"{why}, and yet it finished", task.end, *failure.events, task.end_event or 0)


def law_o6_a_hidden_error_fails_no_task(book: Book, found: Finding) -> None:
    """With on_error="null" or "drop" no error of a function fails the task, and without a call there is none."""
    for task in book.tasks.values():
        if task.outcome != "failed" or task.error != "FunctionError" or not task.runs:
            continue
        runs = list(task.runs.values())
        calls = [call for run in runs for call in run.calls]
        # Errors that end a process are not hidden, and neither is one that was not recorded.
        open_errors = any(call.outcome == "error" and call.error in NOT_HIDDEN for call in calls)
        hidden = all(run.setting.get("on_error") in ("null", "drop") for run in runs)
        if any("budget" in run.setting for run in runs) or (calls and (not hidden or open_errors)):
            continue
        found.decided()
        why = "on_error hides the errors of its function" if calls else "no call was made"
        found.broken(f"task {task.name} failed with FunctionError, and {why}", task.end, task.end_event or 0)


def _was_ready(run: Run, row: Row | None, at: float) -> bool:
    """Whether a row may have been complete by then, and a slow consumer took it later."""
    if row is None or (row.key is None and not run.of_rows) or "cache" in run.setting or "journal" in run.setting:
        return True
    calls = run.calls_of.get(row.row if run.of_rows else row.key, ())
    return any(call.outcome == "result" and call.stopped <= at for call in calls)


def _first_failure(run: Run) -> Call | None:
    """The first call whose error must have ended the run: an error that is not retried, split, hidden or late."""
    setting = run.setting
    if setting.get("on_error", "fail") != "fail" or setting.get("cache", {}).get("stale_if_error"):
        return None
    tries = setting.get("max_attempts", 1)
    first = None
    for call in run.calls:
        if call.outcome != "error" or (first is not None and call.stopped >= first.stopped):
            continue
        if tries > 1 and call.retryable is not False:
            continue
        if call.refresh is not False and ("refresh_after" in setting.get("cache", {}) or call.refresh):
            continue
        if splits(call) or call.copies or call.copy_of is not None or not _in_time(run, call):
            continue
        first = call
    for flight in run.flights if tries > 1 else ():
        last = flight.attempts[-1].decisive
        if first is not None and last.stopped >= first.stopped:
            continue
        if len(flight.attempts) >= tries and last.outcome == "error" and _ends_the_run(run, flight, last):
            first = last
    return first


def _ends_the_run(run: Run, flight: Flight, last: Call) -> bool:
    """Whether the error of the last attempt of a flight must have ended the run."""
    alone = all(len(attempt.calls) == 1 for attempt in flight.attempts)
    refreshes = "refresh_after" in run.setting.get("cache", {}) and last.refresh is not False
    return flight.sure and alone and not refreshes and not splits(last) and _in_time(run, last)


def _in_time(run: Run, call: Call) -> bool:
    """Whether the call surely ended before a limit cut it, and a row waits for it."""
    if any(call.stopped >= call.begun + limit for limit in run.limits) or call.stopped > run.task.end:
        return False
    if run.of_rows:
        return not any(run.rows[row].outs and run.rows[row].outs[0].at < call.stopped for row in call.keys)  # type: ignore[index]
    return any(
        row.left is None or row.left >= call.stopped for key in call.keys for row in reversed(run.rows_of.get(key, ()))
    )


def law_o7_outputs_of_a_row_stay_together(book: Book, found: Finding) -> None:
    """The outputs of one row leave one after the other, in their order, and nothing leaves between them."""
    for run in book.runs:
        latest: Row | None = None
        places: dict[int, int] = {}
        for number, at, row, out in run.emitted:
            if row is not None and len(row.outs) > 1:
                found.decided()
                expected = places[row.row] = places.get(row.row, -1) + 1
                if out.part != expected and out.part < len(row.outs):
                    what = f"row {row.row} of {run.name} has part {out.part} where part {expected} belongs"
                    found.broken(what, at, *(one.event for one in row.outs[:8]))
                elif expected and latest is not row:
                    what = f"part {out.part} of row {row.row} of {run.name} leaves after that of another row"
                    found.broken(what, at, row.outs[expected - 1].event, number)
            latest = row


def law_o8_an_ended_run_reads_and_emits_nothing(book: Book, found: Finding) -> None:
    """After a task has ended or was closed nothing is emitted, and nothing is read, except by a read that had begun."""
    for task in _ended(book):
        found.decided()
        for run in task.runs.values():
            late = [row for row in run.rows.values() if row.at > task.end + book.moment]
            for row in late:
                # What a read that had begun brings comes at one moment.
                if row.at > late[0].at + book.moment:
                    found.broken(f"row {row.row} is read after {run.name} has ended", row.at, row.event)
            for number, at, row_or_none, _ in run.emitted:
                if at > task.end + book.moment:
                    what = "a watermark" if row_or_none is None else f"row {row_or_none.row}"
                    found.broken(f"{what} is emitted after {run.name} has ended", at, number)


def _ended(book: Book) -> list[Task]:
    return [task for task in book.tasks.values() if task.outcome is not None]


def law_o9_close_follows_the_last_call(book: Book, found: Finding) -> None:
    """`close` follows every `open` once, after the last call; a call is left behind only after a grace period."""
    for task in _ended(book):
        if task.outcome == "killed":
            continue
        rest = _rest(book, task)
        for run in task.runs.values():
            _judge_close(book, run, found)
            for call in run.calls:
                if call.start > task.end + book.moment:
                    continue  # Law O18.
                found.decided()
                if call.stopped > task.end + book.moment and rest < run.setting.get("grace", GRACE):
                    found.broken(
                        f"call {call.id!r} runs on after the end of {run.name}, which did not wait for it",
                        task.end,
                        call.event,
                        task.end_event or 0,
                    )


def _rest(book: Book, task: Task) -> float:
    """Seconds before the end of a task in which nothing else happened in it: it may have waited for a call."""
    moments = [task.start]
    for one in task.runs.values():
        moments += [at for _, at, _, _ in one.emitted if at < task.end]
        moments += [row.at for row in one.rows.values()]
        for call in one.calls:
            moments += [at for at in (call.start, call.stopped) if at <= task.end]
    return task.end - max(moments) + book.moment


def _judge_close(book: Book, run: Run, found: Finding) -> None:
    if not run.opened and not run.closed:
        return
    found.decided()
    if len(run.opened) != 1 or len(run.closed) != 1:
        what = f"the function of {run.name} was opened {len(run.opened)} times and closed {len(run.closed)} times"
        found.broken(what, run.task.end, *(number for number, _ in run.opened + run.closed))
        return
    number, at = run.closed[0]
    if at > run.task.end + book.moment:
        found.broken(f"the function of {run.name} was closed after its end", at, number, run.task.end_event or 0)
    opened, since = run.opened[0]
    for call in run.calls[:1]:
        if call.start < since - book.moment:
            found.broken(f"call {call.id!r} starts before the function was opened", call.start, call.event, opened)
    ended = max((call.stopped for call in run.calls if call.stopped <= at), default=-inf)
    for call in run.calls:
        if call.start > at + book.moment:
            found.broken(f"call {call.id!r} starts after the function was closed", call.start, number, call.event)
        elif call.stopped > at + book.moment and not _waited(run, max(call.start, ended), at):
            what = f"the function of {run.name} was closed while call {call.id!r} runs"
            found.broken(what, at, number, *call.events)


def _waited(run: Run, since: float, at: float) -> bool:
    """Whether a run may have waited for a call since it started, or the last other one ended, and left it behind."""
    grace: float = run.setting.get("grace", GRACE)
    return at - since >= grace - MOMENT


def law_o18_an_ended_run_starts_no_call(book: Book, found: Finding) -> None:
    """After a task has ended, failed, was closed or was killed no call of it starts."""
    for task in _ended(book):
        found.decided()
        for run in task.runs.values():
            for call in run.calls:
                if call.start > task.end + book.moment:
                    found.broken(
                        f"call {call.id!r} starts after {run.name} has ended",
                        call.start,
                        task.end_event or 0,
                        call.event,
                    )
