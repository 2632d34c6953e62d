"""What a call of an enricher invokes: `lookup`, `lookup_many`, or `lookup_columns` for one that answers in columns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio_operator.arrow.answer_tables import AnswerTables
    from asyncio_operator.enricher import Enricher
    from asyncio_operator.lookup.options import LookupOptions

Invoke = Callable[[Any], Awaitable[Any]]


def invoked(enricher: Enricher, options: LookupOptions, tables: AnswerTables | None) -> Invoke:
    """A function of a key, or of a list of keys if ``options.batching`` is set.

    Args:
        tables: what the tables of an enricher that answers in columns look like.
    """
    if tables is None:
        return enricher.lookup if options.batching is None else enricher.lookup_many
    # Imported here: it loads pyarrow, as the maker of `tables` has.
    from asyncio_operator.arrow.answer_tables import ask
    from asyncio_operator.arrow.table_rows import rows_of_answers

    as_rows = options.retry is not None and options.retry.if_result is not None

    async def many(keys: Sequence[Any]) -> Sequence[Any]:
        answers = await ask(enricher, tables, keys)
        # A function of the user reads them.
        return rows_of_answers(answers) if as_rows else answers

    async def one(key: Any) -> Any:
        return (await many([key]))[0]

    return one if options.batching is None else many


def asked_whole(enricher: Enricher, tables: AnswerTables | None) -> Invoke:
    """A function of `ArrowKeys`, for an enricher in memory."""
    from asyncio_operator.arrow.answer_tables import ask_whole

    assert tables is not None
    return partial(ask_whole, enricher, tables)
