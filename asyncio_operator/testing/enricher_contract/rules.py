"""The rules for an enricher's answers, as plain checks. They are one part of `check_enricher`.

Each rule makes its own enrichers and runs them on its own loop, so one broken rule does not break another. A rule that
needs only one loop is a coroutine function. The rules know nothing of an enricher but the contract of `Enricher`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import isawaitable, iscoroutinefunction, isroutine
from typing import TYPE_CHECKING, Any, TypeVar

from asyncio_operator.checks import must_be, positive_duration
from asyncio_operator.enricher import Enricher, Found, optional_parts
from asyncio_operator.errors import ConfigurationError, ResultError, describe, describe_error
from asyncio_operator.policies.batching import splits
from asyncio_operator.quota.usage import checked_weights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Make = Callable[[], Enricher]
T = TypeVar("T")

ANY = object()  # An expected answer whose content is not known: only its shape is checked.
CONCURRENT = 20  # Lookups at the same time: more than most pools have connections.
BATCH = 200  # Keys of a batch, if `max_batch` allows them. Good keys are repeated.

Ask = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]


class Check:
    """What each rule gets: the enrichers, and what is known about their answers."""

    def __init__(
        self,
        make: Make,
        known: Mapping[Any, Found] | Iterable[Any] | None,
        missing: Iterable[Any] | None,
        secrets: Iterable[str],
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
        patience: float,
        poison: Iterable[Any] | None = None,
    ) -> None:
        if not callable(make):
            raise must_be("make", make, "a function that returns a new enricher")
        for name, keys in (("known", known), ("missing", missing), ("poison", poison)):
            if keys is not None and (isinstance(keys, str | bytes) or not isinstance(keys, Iterable)):
                raise must_be(name, keys, "a collection of keys")
        self.make = make
        self.known = dict(known) if isinstance(known, Mapping) else dict.fromkeys(known or (), ANY)
        self.missing = list(missing or ())
        self.poison = list(poison or ())
        self.secrets = [secrets] if isinstance(secrets, str) else list(secrets)
        self.loop_factory = loop_factory
        self.patience = positive_duration("patience", patience)
        if (known is not None and not self.known) or (missing is not None and not self.missing):
            raise ConfigurationError(
                "known and missing must each have at least one key; leave them out to check only what needs no key"
            )
        if self.poison and not self.known:
            raise ConfigurationError(
                "poison needs known: at least one key that is found beside those whose lookup fails"
            )
        made = make()
        if not isinstance(made, Enricher):
            raise ConfigurationError(f"make gave {describe(made)}; an Enricher is needed")
        if make() is made:
            raise ConfigurationError(
                f"make gave the same object twice, {describe(made)}; it must make a new one at each call, as in "
                "`lambda: MyEnricher(url)`. For a single object, such as a function under @enricher, pass "
                "`lambda: copy.copy(it)`"
            )

    @property
    def expected(self) -> dict[Any, Any]:
        """The answers by key; None for missing keys."""
        return {**self.known, **dict.fromkeys(self.missing)}

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on a new loop and return its result."""
        with asyncio.Runner(loop_factory=self.loop_factory) as runner:
            return runner.run(main())

    async def within(self, what: str, awaitable: Awaitable[T]) -> T:
        """The result of an awaitable. It must end within `patience`."""
        assert isawaitable(awaitable), (
            f"{what} gave {describe(awaitable)}, which cannot be awaited: make it an `async def`, or give an ordinary "
            "function to BlockingEnricher"
        )
        task = asyncio.ensure_future(awaitable)
        done, _ = await asyncio.wait([task], timeout=self.patience)
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=self.patience)
        assert done, f"{what} took more than {self.patience} s"
        return task.result()

    @asynccontextmanager
    async def opened(self, enricher: Enricher | None = None) -> AsyncIterator[Enricher]:
        """An open enricher. Its schema is read before it is opened, as on a driver."""
        enricher = enricher or self.make()
        enricher.schema()
        try:
            await self.within("open()", enricher.open())
            yield enricher
        finally:
            await self.within("close()", enricher.close())

    async def expect(self, enricher: Enricher, keys: Iterable[Any] | None = None) -> None:
        """Look keys up one after the other, by default all keys, and compare the answers."""
        for key in self.expected if keys is None else keys:
            found = await self.within(f"lookup({describe(key)})", enricher.lookup(key))
            compare(key, found, self.expected[key])

    async def use(self, enricher: Enricher) -> None:
        """Open an enricher, look all keys up, and close it."""
        async with self.opened(enricher):
            await self.expect(enricher)

    def without_secrets(self, text: str) -> str:
        """The text with each secret replaced by ***."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def rows_of(key: Any, found: Any) -> list[dict[str, Any]]:
    """The rows of an answer; an empty list for a miss."""
    if found is None:
        return []
    if isinstance(found, Mapping):
        return [dict(found)]
    shape = f"key {describe(key)} gave {describe(found)}; a mapping, a sequence of mappings, or None is needed"
    assert isinstance(found, Sequence), shape
    assert not isinstance(found, str | bytes | bytearray), shape
    assert all(isinstance(row, Mapping) for row in found), shape
    return [dict(row) for row in found]


def compare(key: Any, found: Any, expected: Any) -> None:
    """Assert that an answer is the expected one."""
    rows = rows_of(key, found)
    if expected is None:
        assert not rows, f"the missing key {describe(key)} gave {describe(found)}; None is needed"
        return
    assert rows, f"the known key {describe(key)} was not found"
    if expected is not ANY:
        assert same(rows, rows_of(key, expected)), (
            f"key {describe(key)} gave {describe(found)}, not {describe(expected)}"
        )


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, compared as rows are: NaN equals NaN."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    for kind in (list, tuple):
        if isinstance(one, kind) and isinstance(other, kind):
            return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or bool(one != one and other != other)  # Only NaN differs from itself.


def rule_schema(check: Check) -> None:
    """schema() is a pyarrow.Schema whose columns have different names, and always the same"""
    import pyarrow as pa

    enricher = check.make()
    schema = enricher.schema()
    assert isinstance(schema, pa.Schema), f"it gave {describe(schema)}"
    assert len(set(schema.names)) == len(schema.names), f"a column name occurs twice in {schema.names}"
    assert len(schema.names), "it has no columns"
    assert enricher.schema().equals(schema), "the second call gave another schema"
    assert check.make().schema().equals(schema), "another enricher from make() has another schema"

    async def when_open() -> None:
        async with check.opened(enricher):
            assert enricher.schema().equals(schema), "it gave another schema while it was open"
        assert enricher.schema().equals(schema), "it gave another schema after it was closed"

    check.run(when_open)


def rule_key_schema(check: Check) -> None:
    """key_schema() is None, or a pyarrow.Schema with one column for each part of a key, and always the same"""
    import pyarrow as pa

    enricher = check.make()
    schema = enricher.key_schema()
    if schema is None:
        assert enricher.key_schema() is None, "the second call gave another key schema"
        return
    assert isinstance(schema, pa.Schema), f"it gave {describe(schema)}"
    assert enricher.key_schema().equals(schema), "the second call gave another one"  # type: ignore[union-attr]
    for key in check.expected:
        parts = len(key) if isinstance(key, tuple) else 1
        assert parts == len(schema), f"key {describe(key)} has {parts} parts, and the key schema {len(schema)} columns"


def rule_max_batch(check: Check) -> None:
    """max_batch is an int of at least 1"""
    most = check.make().max_batch
    assert isinstance(most, int), f"it is {describe(most)}"
    assert not isinstance(most, bool), f"it is {describe(most)}"
    assert most >= 1, f"it is {describe(most)}"


def rule_weigh(check: Check) -> None:
    """weigh() is an ordinary function that returns amounts by unit, for any number of keys, also before open()"""
    enricher = check.make()
    keys = [*check.expected, *check.missing]
    least: Mapping[str, float] = {}
    for batch in ([], keys[:1], keys[: enricher.max_batch]):
        weights = enricher.weigh(batch)
        assert not isawaitable(weights), "it gave what must be awaited; it must be an ordinary function"
        try:
            checked = checked_weights(f"for {len(batch)} keys it", weights)
        except ConfigurationError as error:
            raise AssertionError(str(error)) from error
        assert all(amount <= checked.get(unit, 0) for unit, amount in least.items()), (
            f"for {len(batch)} keys it gave {checked}, less than the {least} for no keys, which is what any call weighs"
        )
        least = least if batch else checked


async def rule_found(check: Check) -> None:
    """lookup() returns the row of a known key, or a sequence of its rows"""
    async with check.opened() as enricher:
        await check.expect(enricher, check.known)


async def rule_missing(check: Check) -> None:
    """lookup() returns None or an empty sequence for a key that does not exist, and raises nothing"""
    async with check.opened() as enricher:
        await check.expect(enricher, check.missing)


async def rule_types(check: Check) -> None:
    """the values of a row fit the columns of schema() without loss"""
    from asyncio_operator.arrow.columns import misspelt, row_reader  # here, because it loads pyarrow

    async with check.opened() as enricher:
        schema = enricher.schema()
        for key in check.known:
            rows = rows_of(key, await check.within(f"lookup({describe(key)})", enricher.lookup(key)))
            assert any(name in row for row in rows for name in schema.names), (
                f"key {describe(key)}: its rows have none of the columns {schema.names}: {describe(rows)}"
            )
            for row in rows:
                pair = misspelt((*row,), (*schema.names,))
                assert pair is None, (
                    f"key {describe(key)}: a row has the field {pair[0]!r}, which is not a column, and no {pair[1]!r}, "
                    "which is one: is one of them misspelt?"
                )
                try:
                    row_reader(schema)(row)
                except ResultError as error:
                    raise AssertionError(f"key {describe(key)}: {error}") from error


async def rule_lookup_many(check: Check) -> None:
    """lookup_many() returns one answer per key, in the order of the keys, repeated keys too, equal to lookup()'s"""
    keys = list(check.expected)
    orders = [keys, keys[::-1], [key for key in keys for _ in range(2)], keys + keys[::-1], check.missing, keys[:1]]
    async with check.opened() as enricher:
        single = {key: rows_of(key, await check.within("lookup()", enricher.lookup(key))) for key in keys}
        for order in orders:
            for start in range(0, len(order), enricher.max_batch):
                batch = order[start : start + enricher.max_batch]
                answers = await check.within("lookup_many()", enricher.lookup_many(batch))
                assert isinstance(answers, Sequence), f"it gave {describe(answers)}; a sequence is needed"
                assert len(answers) == len(batch), f"it gave {len(answers)} answers for {len(batch)} keys"
                for key, found in zip(batch, answers, strict=True):
                    compare(key, found, check.expected[key])
                    rows = rows_of(key, found)
                    assert same(rows, single[key]), (
                        f"for key {describe(key)} of {describe(batch)} it gave {describe(rows)}, but lookup() gave "
                        f"{describe(single[key])}"
                    )


async def rule_lookup_columns(check: Check) -> None:
    """lookup_columns(), where it is written, returns a table with the rows of lookup() for the keys of an array; and
    lookup_rows() finds the same rows, also for a key that comes twice"""
    keys = [*check.expected, *check.missing]
    async with check.opened() as enricher:
        if enricher.lookup_columns is None:
            return
        ordinary = isroutine(enricher.lookup_columns) and not iscoroutinefunction(enricher.lookup_columns)
        assert not ordinary, "it is an ordinary function; it must be `async def lookup_columns`"
        import pyarrow as pa

        from asyncio_operator.arrow.answer_tables import AnswerTables, ask, row_finder

        find = row_finder(enricher)
        ways = {"lookup_columns()": None} | ({"lookup_rows()": find} if find else {})
        tables = AnswerTables(enricher.key_schema(), enricher.schema(), optional=optional_parts(enricher))
        empty: dict[str, Any] = dict.fromkeys(enricher.schema().names)
        for order in (keys, keys[::-1], check.missing, keys[:1]):
            for start in range(0, len(order), enricher.max_batch):
                batch = order[start : start + enricher.max_batch]
                for name, way in ways.items():
                    answers = await check.within(name, ask(enricher, tables, batch, way))
                    for key, found in zip(batch, answers, strict=True):
                        expected = check.expected.get(key)
                        if expected not in (None, ANY):
                            # A missing field is null, and a table has no missing ones.
                            expected = [empty | dict(row) for row in rows_of(key, expected)]
                        compare(key, None if found is None else found.answer(), expected)
        if find:
            once, _ = tables.asked(keys[: max(1, enricher.max_batch // 2)])
            twice = pa.concat_arrays([once, once])
            read = tables.read_rows(await check.within("lookup_rows()", find(twice)), twice)
            rows = [None if found is None else found.answer() for found in read]
            for key, first, again in zip(once.to_pylist(), rows, rows[len(once) :], strict=False):
                compare(key, again, first)


async def rule_concurrent(check: Check) -> None:
    """each of several lookups at the same time gets its own answer"""
    keys = (list(check.expected) * CONCURRENT)[:CONCURRENT]
    async with check.opened() as enricher:
        batches = [keys[i : i + enricher.max_batch] for i in range(0, len(keys), enricher.max_batch)]
        lookups = asyncio.gather(*map(enricher.lookup, keys))
        many = asyncio.gather(*map(enricher.lookup_many, batches))
        answers, answers_of_batches = await check.within("all of them", asyncio.gather(lookups, many))
        for key, found in zip(keys, answers, strict=True):
            compare(key, found, check.expected[key])
        for batch, several in zip(batches, answers_of_batches, strict=True):
            for key, found in zip(batch, several, strict=True):
                compare(key, found, check.expected[key])


async def rule_poison(check: Check) -> None:
    """a key whose lookup fails takes no other key of its batch with it"""
    good = [*check.expected]
    async with check.opened() as enricher:
        ways: list[tuple[str, Ask]] = [("lookup_many()", enricher.lookup_many)]
        if enricher.lookup_columns is not None:
            from asyncio_operator.arrow.answer_tables import AnswerTables, ask

            tables = AnswerTables(enricher.key_schema(), enricher.schema(), optional=optional_parts(enricher))

            async def columns(keys: Sequence[Any]) -> Sequence[Any]:
                # A table has the rows of a key once, however often the batch has it.
                once = [*dict.fromkeys(keys)]
                rows = dict(zip(once, await ask(enricher, tables, once), strict=True))
                return [None if rows[key] is None else rows[key].answer() for key in keys]

            ways.append(("lookup_columns()", columns))
        for what, way in ways:
            for bad in check.poison:
                size = min(BATCH, enricher.max_batch) - 1
                batch = (good * (size // len(good) + 1))[:size]
                batch.insert(size // 2, bad)
                await _ask(check, what, way, batch, bad)


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
