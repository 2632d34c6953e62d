"""The law of snapshots (O10): what one holds, and that every output is given once over all runs that it connects."""

from __future__ import annotations

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Run, Snapshot
from asyncio_operator_proof.history.report import Finding


def law_o10_a_snapshot_holds_what_was_not_emitted(book: Book, found: Finding) -> None:
    """A snapshot holds the rows that were read and not emitted, with the attempts of each that ended in failure."""
    for run in book.runs:
        for snapshot in run.snapshots:
            found.decided()
            inside = {row.row for row in run.rows.values() if row.event < snapshot.event}
            # A row is emitted when its last output has been handed over.
            inside -= {row.row for row in run.rows.values() if row.outs and row.outs[-1].event < snapshot.event}
            held = {row for row, _ in snapshot.rows}
            gone = {row for row in inside - held if not run.rows[row].outs}
            unsure = run.setting.get("how") == "inner" or run.setting.get("on_error") in ("drop", "skip")
            if (inside - held - gone) or (gone and not unsure):
                missing = sorted(inside - held)
                what = f"the snapshot of {run.name} lacks row {missing[0]}, which was read and not emitted"
                found.broken(what, snapshot.at, snapshot.event, run.rows[missing[0]].event)
            for row in sorted(held - inside):
                what = f"the snapshot of {run.name} holds row {row}, which was emitted, or never read"
                found.broken(what, snapshot.at, snapshot.event)
            if len(held) < len(snapshot.rows):
                found.broken(f"the snapshot of {run.name} holds a row twice", snapshot.at, snapshot.event)
            _judge_attempts(run, snapshot, book, found)


def _judge_attempts(run: Run, snapshot: Snapshot, book: Book, found: Finding) -> None:
    restored = dict(book.snapshots[run.task.restored].rows) if run.task.restored is not None else {}
    for row, attempts in snapshot.rows:
        calls = run.calls_of.get(row, []) if run.of_rows else []
        if attempts is None or any(option in run.setting for option in ("batch", "circuit_breaker", "hedge")):
            found.undecided("which attempts of a row had failed cannot be seen")
            continue
        ended = [call for call in calls if call.end_event is not None and call.end_event < snapshot.event]
        failed = sum(call.outcome in ("error", "timed_out") for call in ended) + (restored.get(row) or 0)
        # A call that was cut may not have returned, and a result may have been refused.
        most = failed + len(calls) - len(ended) + sum(call.outcome == "result" for call in ended)
        if not failed <= attempts <= most:
            what = f"the snapshot of {run.name} says {attempts} attempts of row {row}, and {failed} had failed"
            found.broken(what, snapshot.at, snapshot.event, *(call.event for call in ended[-3:]))


def law_o10_restored_rows_go_first_and_leave_once(book: Book, found: Finding) -> None:
    """A run that starts with a snapshot reads its rows first, in order, and emits none that was emitted before."""
    for run in book.runs:
        if run.task.restored is None:
            continue
        snapshot = book.snapshots[run.task.restored]
        if snapshot.run.lookup != run.lookup:
            continue
        found.decided()
        wanted = [row for row, _ in snapshot.rows]
        rows = [*run.rows][: len(wanted)]
        if rows != wanted[: len(rows)] or (len(rows) < len(wanted) and run.task.outcome == "finished"):
            what = f"{run.name} reads rows {rows[:5]} first, and its snapshot holds {wanted[:5]}"
            found.broken(what, run.task.start, snapshot.event, run.task.start_event)
        before = _emitted(snapshot)
        for row in run.rows.values():
            if row.outs and row.row in before and row.row not in wanted:
                what = f"row {row.row} leaves {run.name}, and was emitted before the snapshot that it started with"
                found.broken(what, row.outs[0].at, snapshot.event, row.outs[0].event)


def _emitted(snapshot: Snapshot) -> set[int]:
    """The rows that had left when the snapshot was taken."""
    return {row.row for row in snapshot.run.rows.values() if row.outs and row.outs[-1].event < snapshot.event}
