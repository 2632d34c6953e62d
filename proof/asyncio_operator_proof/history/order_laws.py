"""Laws of order: which row leaves when (what X and Q say of rows that can be seen from outside)."""

from __future__ import annotations

from asyncio_operator_proof.history.book import Book
from asyncio_operator_proof.history.parts import Call, Row, Run
from asyncio_operator_proof.history.report import Finding
from asyncio_operator_proof.history.same_keys import text_of


def law_x1_rows_of_a_left_join_are_one_each(book: Book, found: Finding) -> None:
    """With how="left" and one row for a key at most, as many rows come out as went in; a row has one status."""
    for run in book.runs:
        single = run.setting.get("single")
        for row in run.rows.values():
            if row.outs:
                found.decided()
            if single and len(row.outs) > 1:
                what = f"row {row.row} of {run.name} came out as {len(row.outs)} rows, and a key has one row at most"
                found.broken(what, row.outs[-1].at, *(out.event for out in row.outs))
            elif len({(out.status, out.source) for out in row.outs}) > 1:
                what = f"the parts of row {row.row} of {run.name} differ in status or source"
                found.broken(what, row.outs[-1].at, *(out.event for out in row.outs))


def law_x2_ordered_rows_keep_their_order(book: Book, found: Finding) -> None:
    """In ordered mode rows and watermarks leave in the order in which they came."""
    for run in book.runs:
        if run.setting.get("mode", "ordered") != "ordered":
            continue
        latest: Row | None = None
        for number, at, row, _ in run.emitted:
            if row is None:
                continue
            found.decided()
            if latest is not None and row.event < latest.event:
                found.broken(
                    f"row {row.row} of {run.name} leaves after row {latest.row}, which came later",
                    at,
                    latest.outs[0].event,
                    number,
                )
            else:
                latest = row


def law_q6_no_row_passes_a_watermark(book: Book, found: Finding) -> None:
    """No row passes a watermark, and no watermark a row, in either direction; watermarks keep their order."""
    for run in book.runs:
        if not run.watermarks_in:
            continue
        segment_of = _segments(run)
        passed = 0
        for number, at, row, timestamp in run.emitted:
            found.decided()
            if row is not None:
                if segment_of[row.row] != passed:
                    side = "before a watermark" if segment_of[row.row] > passed else "after a watermark"
                    what = f"row {row.row} of {run.name} leaves {side} that it came {_other(side)}"
                    found.broken(what, at, row.event, number)
                continue
            if passed >= len(run.watermarks_in) or run.watermarks_in[passed][2] != timestamp:
                found.broken(f"watermark {timestamp} leaves {run.name} out of order", at, number)
                return
            passed += 1


def _segments(run: Run) -> dict[int, int]:
    """How many watermarks came before each row."""
    segment_of, before = {}, 0
    for row in run.rows.values():
        while before < len(run.watermarks_in) and run.watermarks_in[before][0] < row.event:
            before += 1
        segment_of[row.row] = before
    return segment_of


def _other(side: str) -> str:
    return "after" if side.startswith("before") else "before"


def law_q7_one_row_of_a_key_runs_at_a_time(book: Book, found: Finding) -> None:
    """In key-ordered mode the rows of a key run and leave one after the other; a call that was cut runs on."""
    for run in book.runs:
        if run.setting.get("mode") != "key_ordered":
            continue
        latest: dict[object, Row] = {}
        for number, at, row, _ in run.emitted:
            if row is None or row.key is None:
                continue
            found.decided()
            before = latest.setdefault(row.key, row)
            if row.event < before.event:
                what = f"row {row.row} of {run.name} leaves after row {before.row} of its key, which came later"
                found.broken(what, at, number, before.event)
            latest[row.key] = row
        if run.of_rows:
            _judge_overlaps(book, run, found)


def _judge_overlaps(book: Book, run: Run, found: Finding) -> None:
    calls: dict[object, Call] = {}
    for call in run.calls:
        for number in call.keys:
            key = run.rows[number].key  # type: ignore[index]
            before = calls.get(key)
            if key is None or call.copy_of is not None:
                continue
            if before is not None and before is not call and call.start < before.stopped - book.moment:
                found.broken(
                    f"call {call.id!r} of {run.name} starts while call {before.id!r} for key {text_of(key)} runs",
                    call.start,
                    call.event,
                    *before.events,
                )
            if before is None or call.stopped > before.stopped:
                calls[key] = call


def law_x11_a_miss_fails_a_required_lookup(book: Book, found: Finding) -> None:
    """With how="required" no row leaves as a miss."""
    for run in book.runs:
        if run.setting.get("how") != "required":
            continue
        for number, at, row, out in run.emitted:
            if row is None:
                continue
            found.decided()
            if out.status == "missing":
                found.broken(f"row {row.row} of {run.name} leaves as a miss, and the lookup is required", at, number)
