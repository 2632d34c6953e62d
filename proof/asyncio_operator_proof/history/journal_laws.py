"""Laws of journals (J): an answer is paid for once, and found again after a kill."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Out, Row, Run, first_outs
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of
from asyncio_operator_proof.history.usable_answers import CACHE_CLOCK, Answer, Kept, journals, scope_of

FLUSH = 1.0
"""Seconds: the default of `flush_every`."""

WRITE = 1.0
"""Seconds that a write takes at most, unless the setting says otherwise."""


def _acknowledged(answer: Answer) -> float | None:
    """When the journal surely held an answer; None: perhaps never."""
    run = answer.call.run
    options, task = run.setting["journal"], run.task
    if not answer.call.is_taken or (answer.value in (None, []) and options.get("keep_missing", True) is False):
        return None
    written: float = answer.at + options.get("flush_every", FLUSH) + options.get("write", WRITE)
    if written <= task.end:
        return written
    # A task that ends in any other way than by a kill writes what it has.
    return task.end if task.outcome in ("finished", "failed", "closed") else None


def _asked_again(book: Book, found: Finding, *, killed: bool) -> None:
    for kept in journals(book):
        for run in kept.runs:
            for call in run.calls:
                for key in call.keys:
                    _judge_call(kept, call, key, killed, book, found)


def _judge_call(kept: Kept, call: Call, key: Hashable, killed: bool, book: Book, found: Finding) -> None:
    run, judged = call.run, False
    for answer in reversed(kept.until(key, run.task.start)):
        other = answer.call.run.task
        expires = _lifetime(answer.call.run, run)
        if expires is not None and call.start >= answer.at + expires - book.near(expires) - book.clocks:
            judged = True
            break
        if other is run.task or (other.outcome == "killed") is not killed or _refreshes(call, key, answer, book):
            continue
        judged = True
        written = _acknowledged(answer)
        if written is not None and written <= run.task.start - book.moment:
            what = f"call {call.id!r} of {run.name} asks for key {text_of(key)}, which task {other.name} has paid for"
            found.broken(f"{what} {call.start - answer.at:.6f} s before", call.start, *answer.call.events, call.event)
            break
    if judged:
        found.decided()


def _refreshes(call: Call, key: Hashable, answer: Answer, book: Book) -> bool:
    """Whether a cache may refresh an answer which has become old there (L6): this one, or an older one."""
    after = call.run.setting.get("cache", {}).get("refresh_after")
    if call.refresh is not None or after is None:
        return call.refresh is True
    if call.start - answer.at >= after:
        return True
    scope = scope_of(book, call.run)
    begin = call.run.task.start - book.moment if scope.heap else 0.0
    return any(
        call.start - one.at >= after - CACHE_CLOCK - book.near(after)
        for one in scope.candidates(key, begin, call.start)
    )


def _lifetime(writer: Run, reader: Run) -> float | None:
    """Seconds for which an answer is good: what the writer stored, which the reader may shorten (J7)."""
    times = [
        run.setting["journal"]["expire_after"]
        for run in (writer, reader)
        if run.setting["journal"].get("expire_after") is not None
    ]
    return min(times, default=None)


def law_j1_an_answer_in_the_journal_is_not_paid_again(book: Book, found: Finding) -> None:
    """A key that the journal holds when a task starts is not asked for by the task, until its answer expires."""
    _asked_again(book, found, killed=False)


def law_j2_a_kill_costs_what_was_not_yet_written(book: Book, found: Finding) -> None:
    """After a kill only calls in flight, and answers of the last `flush_every` and one write, are asked for again."""
    if any(task.outcome == "killed" for task in book.tasks.values()):
        _asked_again(book, found, killed=True)


def _from_journals(book: Book) -> Iterator[tuple[Run, Row, Out, list[Answer]]]:
    """Rows that came from a journal, with the answers that it had for their keys by then."""
    for kept in journals(book):
        for run, row, out in first_outs(kept.runs):
            if out.source == "journal":
                yield run, row, out, kept.until(row.key, out.at + book.moment)


def law_j4_every_row_gets_the_latest_answer(book: Book, found: Finding) -> None:
    """A row from the journal has the latest answer for its key that the journal held when the task started."""
    for run, row, out, answers in _from_journals(book):
        if not answers:
            found.undecided("an answer in the journal is older than the history")
            continue
        certain = [one.at for one in answers if _is_held(one, run, book)]
        if certain:
            # The latest is so by the clocks of those who wrote.
            answers = [one for one in answers if one.at >= certain[-1] - book.clocks]
        if out.answer is None or any(one.value is None for one in answers):
            found.undecided("answers are not recorded")
            continue
        found.decided()
        if all(one.value != out.answer for one in answers):
            what = f"row {row.row} of {run.name} does not have the latest answer in the journal for key"
            events = [one.call.end_event or 0 for one in answers[-3:]]
            found.broken(f"{what} {text_of(row.key)}", out.at, *events, row.event, out.event)


def _is_held(answer: Answer, run: Run, book: Book) -> bool:
    written = _acknowledged(answer)
    return written is not None and written <= run.task.start - book.moment


def law_j7_an_expired_answer_is_not_used(book: Book, found: Finding) -> None:
    """A row from the journal has no answer that had expired when its task started."""
    for run, row, out, answers in _from_journals(book):
        ages = [(_lifetime(one.call.run, run), run.task.start - one.at) for one in answers]
        if not answers or any(life is None for life, _ in ages):
            continue
        found.decided()
        if all(age >= (life or 0.0) + 0.001 + book.moment + book.clocks for life, age in ages):
            what = f"row {row.row} of {run.name} has an answer from the journal for key {text_of(row.key)} that"
            found.broken(f"{what} had expired", out.at, *answers[-1].call.events, row.event, out.event)


def law_j9_a_journal_hit_costs_nothing(book: Book, found: Finding) -> None:
    """A row from the journal says 0 attempts, and exists only where a journal is named."""
    for run, row, out in first_outs(book.runs):
        if out.source != "journal":
            continue
        found.decided()
        if out.attempts:
            what = f"row {row.row} of {run.name} is from the journal, and says {out.attempts} attempts"
            found.broken(what, out.at, row.event, out.event)
        if "journal" not in run.setting:
            found.broken(f"row {row.row} of {run.name} is from a journal, and none is named", out.at, out.event)
