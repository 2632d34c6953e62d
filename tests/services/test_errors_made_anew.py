"""X14: an error that is made of another one keeps what that says of a further call; a group is judged by its members.

One table over all places where code of a user raises, and where the library makes an error of its own of it.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import AsyncWaitOperator, BlockingFunction, Enricher, EnricherError, FunctionError, Retry
from asyncio_operator.engine.failures import ends_the_run
from asyncio_operator.engine.gate import is_overload
from asyncio_operator.enricher import as_schema
from asyncio_operator.errors import BudgetExceeded, members, said, verdict, wait_of
from asyncio_operator.hints import missing_here
from asyncio_operator.lookup import Lookup
from asyncio_operator.lookup.key_batch import Failure
from asyncio_operator.loop.portable_errors import stand_in
from asyncio_operator.policies.batching import splits
from asyncio_operator.policies.retry import FixedBackoff, asked_wait
from asyncio_operator.spark.worker.rows import FAILED, FOUND, statuses_of
from asyncio_operator.testing import FakeAnswer, FakeService
from enrichers import BlockingEnricher, HttpEnricher, OAuth2, TableEnricher
from enrichers import enricher as enricher_of
from tests.enrichers.helpers import failure, opened, told

SECRET = "hunter2hunter2"


class BusyError(Exception):
    """An error of a user's own class."""

    def __init__(self, **said: Any) -> None:
        super().__init__(f"slow down, {SECRET}")
        self.__dict__.update(said)


def enricher_error(**given: Any) -> BaseException:
    return EnricherError(f"slow down, {SECRET}", **given)


def grouped(**given: Any) -> BaseException:
    return ExceptionGroup(
        "unhandled errors in a TaskGroup (1 sub-exception)", [EnricherError(f"slow down, {SECRET}", **given)]
    )


def nested(**given: Any) -> BaseException:
    return ExceptionGroup("outer", [ExceptionGroup("inner", [BusyError(**given)])])


SAID = [
    {"retryable": True, "retry_after": 7.5, "overload": True},
    {"retryable": False},
    {"overload": True, "any_key": True},
    {"retry_after": 2},
    {"retryable": True, "billed": True},
    {"billed": False},
    {"retryable": True, "code": 503},
    {"code": "23505"},
]

KINDS = [BusyError, enricher_error, grouped, nested]

Raise = Callable[[], Any]
Place = Callable[[Raise, FakeService], Awaitable[BaseException]]


class Source(Enricher):
    """An enricher of a user, without a word of the library's own around its error."""

    def __init__(self, fail: Raise) -> None:
        self.fail = fail

    def schema(self) -> Any:
        return as_schema("a int")

    async def lookup(self, key: Any) -> Any:
        return self.fail()


async def by_headers(fail: Raise, service: FakeService) -> BaseException:
    async with opened(HttpEnricher(service.url + "/rows/{key}", schema="a int", headers=fail)) as one:
        return await failure(one, "x")


async def by_async_headers(fail: Raise, service: FakeService) -> BaseException:
    async def headers() -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(fail))

    async with opened(HttpEnricher(service.url + "/rows/{key}", schema="a int", headers=headers)) as one:
        return await failure(one, "x")


async def by_client_secret(fail: Raise, service: FakeService) -> BaseException:
    headers = OAuth2(service.url + "/token", "me", fail)
    async with opened(HttpEnricher(service.url + "/rows/{key}", schema="a int", headers=headers)) as one:
        return await failure(one, "x")


async def by_setup(fail: Raise, _: FakeService) -> BaseException:
    one = BlockingEnricher(lambda client, key: None, "a int", setup=fail)
    async with opened(one):
        return await failure(one, "x")


async def by_table(fail: Raise, _: FakeService) -> BaseException:
    with pytest.raises(EnricherError) as caught:
        await TableEnricher(fail, key="k", schema="k string, a int").open()
    return caught.value


async def by_text_that_is_not_utf_8(fail: Raise, _: FakeService) -> BaseException:
    try:
        fail()
    except Exception as error:
        return stand_in(error)
    raise AssertionError


async def by_operator(fail: Raise, _: FakeService) -> BaseException:
    with pytest.raises(FunctionError) as caught:
        await asyncio.to_thread(lambda: [*AsyncWaitOperator(BlockingFunction(lambda _: fail()))([1])])
    return caught.value


async def by_extract(fail: Raise, service: FakeService) -> BaseException:
    one = HttpEnricher(service.url + "/rows/{key}", schema="a int", extract=lambda _: fail())
    async with opened(one):
        return await failure(one, "x")


UNSENT = (by_headers, by_async_headers, by_client_secret)


@pytest.mark.parametrize(("said_of_it", "kind"), [*zip(SAID, itertools.cycle(KINDS))])
@pytest.mark.parametrize("place", [*UNSENT, by_setup, by_table, by_text_that_is_not_utf_8, by_operator, by_extract])
async def test_X14_an_error_that_is_made_anew_keeps_what_it_says(
    place: Place, kind: Callable[..., BaseException], said_of_it: dict[str, Any]
) -> None:
    original = kind(**said_of_it)

    def fail() -> Any:
        raise original

    async with FakeService({"x": {"a": 1}}) as service:
        made = await place(fail, service)
    wanted = verdict(original)
    if place in (*UNSENT, by_setup):
        wanted["any_key"] = True
    if place in UNSENT:
        wanted["billed"] = False
    if place is by_extract and kind is not enricher_error and wanted["retryable"] is None:
        wanted["retryable"] = False
    assert verdict(made) == wanted
    assert verdict(pickle.loads(pickle.dumps(made))) == wanted
    assert (SECRET in told(made)) == (place not in UNSENT)


@pytest.mark.parametrize("headers", [{"Retry-After": "3"}, {"retry-after-ms": "3000"}])
@pytest.mark.parametrize("status", [429, 503])
async def test_X14_a_token_service_says_when_to_return(status: int, headers: dict[str, str]) -> None:
    async with FakeService({"x": {"a": 1}}) as service:
        oauth2 = OAuth2(service.url + "/token", "me", SECRET)
        async with opened(HttpEnricher(service.url + "/rows/{key}", schema="a int", headers=oauth2)) as one:
            service.answer_next(FakeAnswer(b"slow down", status, headers=headers))
            error = await failure(one, "x")
    said_of_it = {"retryable": True, "retry_after": 3.0, "overload": True, "any_key": True, "billed": False}
    assert verdict(error) == said_of_it | {"code": status}
    told = statuses_of([Failure(error, 0.1)], np.array([FAILED, FOUND])).to_pylist()
    assert told[0]["http_status"] == status


# -- groups


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, True, False]),
            st.sampled_from([None, 1, 2.5, "4", timedelta(seconds=9)]),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_X14_a_group_is_judged_by_its_members(given_of: list[tuple[Any, Any, bool]], depth: int) -> None:
    errors: list[Exception] = [
        BusyError(number=i, retryable=retryable, retry_after=wait, overload=overload)
        for i, (retryable, wait, overload) in enumerate(given_of)
    ]
    group: Exception = ExceptionGroup("a group", errors)
    for _ in range(depth):
        group = ExceptionGroup("outer", [group])
    made = EnricherError.of(group)
    values = [retryable for retryable, *_ in given_of]
    assert made.retryable is (False if False in values else True if all(values) else None)
    waits = [wait_of(wait) for _, wait, _ in given_of if wait is not None]
    assert made.retry_after == asked_wait(group) == max(waits, default=None)  # type: ignore[type-var]
    assert made.overload == any(overload for *_, overload in given_of)
    # Law R11: who asks to wait has too much to do.
    assert is_overload(group) == (made.overload or bool(waits))
    assert str(made) == f"BusyError: slow down, {SECRET}"
    assert made.__cause__ is group
    assert members(group) == errors
    assert EnricherError.of(made) is made
    for retry in (Retry(), Retry(on="retryable"), Retry(on=(BusyError,)), Retry(on=(KeyError,))):
        assert retry.retries(group) == all(retry.retries(one) for one in errors)
    assert Retry(on=(ExceptionGroup,)).retries(group) == (False not in values)
    assert splits(group) == all(splits(one) for one in errors)


def test_X14_kinds_in_a_group_count_as_they_do_alone() -> None:
    for kind in (TimeoutError, ConnectionResetError):
        assert not splits(ExceptionGroup("", [ValueError(), ExceptionGroup("", [kind()])]))
    assert is_overload(ExceptionGroup("", [ValueError(), TimeoutError()]))
    assert ends_the_run(ExceptionGroup("", [ValueError(), BudgetExceeded("spent")]))
    assert missing_here(ExceptionGroup("", [ModuleNotFoundError("no", name="nolib")]))
    assert said(ExceptionGroup("", [BusyError(status=503), BusyError(status=404)]), "status") == 503


@pytest.mark.parametrize("groups", [1, 3])
async def test_X14_a_group_that_holds_an_error_that_may_not_be_retried_is_called_once(groups: int) -> None:
    calls = itertools.count(1)

    async def part(depth: int, error: Exception) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part(depth - 1, error)) if depth else group.create_task(asyncio.to_thread(fail, error))

    def fail(error: Exception) -> Any:
        raise error

    @enricher_of("a int")
    async def refuses(key: Any) -> Any:
        next(calls)
        await part(groups, EnricherError("no such account", retryable=False))

    async with Lookup(refuses, retry=Retry(4, FixedBackoff(0))) as lookup:
        with pytest.raises(EnricherError, match=r"^no such account$") as caught:
            await lookup.get("x")
    assert caught.value.retryable is False
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert next(calls) == 2


@pytest.mark.parametrize("batches", [False, True])
async def test_X14_a_lookup_raises_what_a_group_says_together(batches: bool) -> None:
    class Grouped(Source):
        max_batch = 10 if batches else 1

        async def lookup(self, key: Any) -> Any:
            raise ExceptionGroup(
                "", [BusyError(code=1), EnricherError("b", retryable=True, retry_after=0, overload=True)]
            )

        async def lookup_many(self, keys: Sequence[Any]) -> Any:
            return await self.lookup(keys)

    async with Lookup(Grouped(lambda: None), retry=None) as lookup:
        errors = await asyncio.gather(*map(lookup.get, "ab"), return_exceptions=True)
    for error in errors:
        assert isinstance(error, EnricherError)
        assert (error.retryable, error.retry_after, error.overload) == (None, 0.0, True)
        assert str(error) == f"BusyError: slow down, {SECRET}"


async def test_X14_a_group_that_open_raises_is_shown_by_its_first_error() -> None:
    class Opens(Source):
        async def open(self) -> None:
            raise nested(retryable=False)

    with pytest.raises(EnricherError, match=r"^BusyError: slow down") as caught:
        await Lookup(Opens(lambda: None)).open()
    assert caught.value.retryable is False


def test_X14_the_message_of_a_run_shows_the_first_error_of_a_group() -> None:
    async def refuses(values: Sequence[Any]) -> Any:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [EnricherError("no such account", retryable=False)])

    operator = AsyncWaitOperator(refuses)
    with pytest.raises(FunctionError, match="EnricherError: no such account"):
        [*operator([1])]


def test_X14_the_status_of_a_row_shows_the_first_error_of_a_group() -> None:
    failed = Failure(nested(), 0.1, False, 1)
    status = statuses_of([failed], np.array([FAILED, FOUND])).to_pylist()[0]
    assert (status["status"], status["error_type"]) == ("failed", "BusyError")
    assert status["error_message"] == f"slow down, {SECRET}"
