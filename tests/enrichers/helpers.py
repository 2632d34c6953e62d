"""What the tests of enrichers share: open one, ask it, and take the error that it gives."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import pytest

from asyncio_operator import Enricher, EnricherError
from asyncio_operator.testing import FakeService
from enrichers.http import HttpEnricher

E = TypeVar("E", bound=Enricher)


@asynccontextmanager
async def opened(enricher: E) -> AsyncIterator[E]:
    await enricher.open()
    try:
        yield enricher
    finally:
        await enricher.close()


def asked(service: FakeService, url: str = "/rows/{key}", **options: Any) -> AbstractAsyncContextManager[HttpEnricher]:
    """An open enricher that asks a service, of one column unless a schema is given."""
    return opened(HttpEnricher(service.url + url, **({"schema": "a int"} | options)))


def asked_in_batches(service: FakeService, **options: Any) -> AbstractAsyncContextManager[HttpEnricher]:
    return asked(service, **({"batch_url": service.url + "/rows?keys={keys}"} | options))


async def failure(enricher: Enricher, *keys: Any) -> EnricherError:
    """The error of a lookup of one key, or of several."""
    with pytest.raises(EnricherError) as caught:
        await (enricher.lookup(keys[0]) if len(keys) == 1 else enricher.lookup_many(keys))
    return caught.value


async def refused(enricher: Enricher, keys: Sequence[Any]) -> EnricherError:
    """The same where asking again would not help."""
    error = await failure(enricher, *keys)
    assert error.retryable is False
    return error


def told(error: BaseException) -> str:
    """Everything that a log would show of an error."""
    return "".join(traceback.format_exception(error))
