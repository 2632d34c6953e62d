"""The rule that one bad row costs one row: the part of `check_enricher` that needs a key whose lookup fails.

The caller says which key it is: a row that cannot be converted, or over which the source stumbles. A batch of it and of
good keys is split as in a lookup (law B4), so every key but that one must be answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from asyncio_operator.enricher import Enricher, optional_parts
from asyncio_operator.errors import describe, describe_error
from asyncio_operator.policies.batching import splits
from asyncio_operator.testing.enricher_contract.rules import Check, asynchronous, compare

BATCH = 200
"""Keys of a batch, if `max_batch` allows them. Good keys are repeated."""

Ask = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


@asynchronous
async def rule_poison(check: Check) -> None:
    """a key whose lookup fails takes no other key of its batch with it"""
    good = [*check.expected]
    async with check.opened() as enricher:
        for what, ask in _ways(enricher):
            for bad in check.poison:
                size = min(BATCH, enricher.max_batch) - 1
                batch = (good * (size // len(good) + 1))[:size]
                batch.insert(size // 2, bad)
                await _ask(check, what, ask, batch, bad)


def _ways(enricher: Enricher) -> list[tuple[str, Ask]]:
    ways: list[tuple[str, Ask]] = [("lookup_many()", enricher.lookup_many)]
    if enricher.lookup_columns is not None:
        from asyncio_operator.arrow.answer_tables import answer_tables, ask

        tables = answer_tables(enricher.key_schema(), enricher.schema(), optional_parts(enricher))

        async def columns(keys: Sequence[Any]) -> Sequence[Any]:
            # A table has the rows of a key once, however often the batch has it.
            once = [*dict.fromkeys(keys)]
            rows = dict(zip(once, await ask(enricher, tables, once), strict=True))
            return [None if rows[key] is None else rows[key].answer() for key in keys]

        ways.append(("lookup_columns()", columns))
    return ways


async def _ask(check: Check, what: str, ask: Ask, batch: Sequence[Any], bad: Any) -> None:
    """Ask for a batch as a lookup does: in halves, if its error may be caused by one key."""
    found: Sequence[Any] = ()
    failure: Exception | None = None
    try:
        found = await check.within(what, ask(batch))
    except Exception as error:
        failure = error
    if failure is not None:
        words = describe_error(failure)
        if len(batch) == 1:
            assert batch[0] == bad, f"the known key {describe(batch[0])} alone raised {words}"
            return
        assert splits(failure), (
            f"{what} of {len(batch)} keys, of which {describe(bad)} is poisoned, raised an error that fails all of "
            f"them: {words}. An error that one key may cause must not say retryable=True, any_key, overload or "
            "retry_after, and must be no TimeoutError or ConnectionError"
        )
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await _ask(check, what, ask, half, bad)
        return
    for key, answer in zip(batch, found, strict=True):
        assert key != bad, f"the poisoned key {describe(bad)} gave {describe(answer)}; its lookup must fail"
        expected = check.expected[key]
        if what == "lookup_many()" or expected is None:
            compare(key, answer, expected)
        else:
            assert answer is not None, f"the known key {describe(key)} was not found"
