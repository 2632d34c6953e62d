"""What a failed lookup means: the failure of one key, or the end of the run. Also the errors that users see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncio_operator.engine.failures import call_error, ends_the_run, is_ordinary, is_over_budget
from asyncio_operator.errors import (
    EnricherError,
    FunctionError,
    MissingKeyError,
    ResultError,
    describe,
    describe_error,
    first_of,
    said,
)
from asyncio_operator.hints import failed_import, missing_here
from asyncio_operator.hints import remedy as remedy_of

if TYPE_CHECKING:
    from asyncio_operator.enricher import Enricher
    from asyncio_operator.lookup.options import LookupOptions


def check_failure(
    enricher: Enricher, options: LookupOptions, key: Any, error: BaseException, attempts: int, timed_out: bool
) -> None:
    """Raise what ends the run, if the failed lookup of a key has to end it."""
    failing = options.fail
    if failing is not None and ends_the_run(error):
        raise error
    lacking = failing is not None and is_lacking(error)
    if (failing and not is_over_budget(error)) or lacking or not is_ordinary(error):
        if lacking:
            remedy = remedy_of(error) or "; the cause is in this Python worker, not in the key"
        else:
            why = "" if options.retry is None or timed_out else options.retry.refusal(error, attempts)
            # An error that is no `Exception` asks the process to end: no option lets the run go on. An answer that is
            # wrong for every key is a mistake in the enricher: to go on would hide every row.
            wrong = isinstance(error, ResultError) and said(error, "any_key", bool)
            without = options.remedy if is_ordinary(error) and not wrong else ""
            remedy = f"{remedy_of(error)}{f'; {why}' if why else ''}{without}"
        raise run_error(enricher, key, error, attempts, remedy)


def is_lacking(error: BaseException) -> bool:
    """Whether the process lacks what every key needs: a module, or a variable that an error with `any_key` names."""
    if failed_import(error) is not None:
        return True
    return bool(said(error, "any_key", bool)) and missing_here(error) is not None


def run_error(enricher: Enricher, key: Any, error: BaseException, attempts: int, remedy: str) -> FunctionError:
    """The error that ends a run when a lookup failed."""
    what = "returned an invalid result" if isinstance(error, ResultError) else "failed"
    text = _own_text(enricher, describe(key), error)
    return call_error(f"{describe(enricher)} {what}", "key", describe(key), error, attempts, remedy, text)


def _own_text(enricher: Enricher, key: str, error: BaseException) -> str | None:
    """What the error of an enricher says after its own name and the key, which the message names already; None if it
    does not begin with its name."""
    error = first_of(error)
    kind = type(error).__name__
    text = describe_error(error).removeprefix(f"{kind}: ")
    if not isinstance(error, EnricherError) or not text.startswith(f"{type(enricher).__qualname__}("):
        return None
    for end in (f"key {key}: ", "): "):
        _, found, rest = text.partition(end)
        if found and rest:
            return f"{kind}: {rest}"
    return None


def missing_key_error(enricher: Enricher, key: Any, time: Any = None) -> MissingKeyError:
    """The error for a key without a row when every key must have one. None in the key is a null, or a value that
    Python cannot hold. With a time, an Arrow scalar: the key has rows, and none of them held then (`as_of`)."""
    name, text = describe(enricher), describe(key)
    if time is not None:
        problem = f"{name} has rows for key {text}, but none that held at {time if time.is_valid else 'a null time'}"
        remedy = "add the version to the source" if time.is_valid else "leave such rows out before"
    elif key is None or (isinstance(key, tuple) and None in key):
        problem = f"{name} has no row for key {text}: a part of it is null, or a value that Python cannot hold"
        remedy = "leave such rows out before"
    else:
        problem, remedy = f"{name} has no row for key {text}", "add the row to the source"
    return MissingKeyError(
        f'{problem}; how="required" fails the task for that: {remedy}, or use how="left", which gives nulls, or '
        '"inner", which drops the row',
        key=text,
    )
