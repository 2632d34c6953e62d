"""The enricher of examples/own_enricher.py: it runs, keeps the contract, and says what went wrong."""

from __future__ import annotations

import pytest

from asyncio_operator import ConfigurationError, EnricherError
from examples.own_enricher import MemcachedEnricher, SmallServer
from tests.examples.programs import run_example


def test_it_runs() -> None:
    """Its `main` checks the contract."""
    assert run_example("own_enricher", PYTHONWARNINGS="error").splitlines() == [
        "{'name': 'John F Kennedy Intl', 'altitude': 13}",
        "None",
        "{'name': 'La Guardia', 'altitude': None}",
        "the contract holds",
    ]


async def opened(server: SmallServer) -> MemcachedEnricher:
    enricher = MemcachedEnricher("127.0.0.1", server.port, schema="altitude int")
    await enricher.open()
    return enricher


@pytest.mark.parametrize(
    ("answer", "retryable", "says"),
    [
        (b"SERVER_ERROR out of memory\r\n", True, "out of memory"),
        (b"ERROR\r\n", False, "ERROR"),
        (b"VALUE JFK 0 3\r\n{]}\r\nEND\r\n", False, "key 'JFK': "),
        (b'VALUE JFK 0 16\r\n{"altitude": "?"}\r\nEND\r\n', False, "server says"),
        (
            b'VALUE JFK 0 17\r\n{"altitude": "?"}\r\nEND\r\n',
            False,
            "column 'altitude' holds .*, which does not fit int:",
        ),
    ],
)
async def test_bad_answers_are_errors(answer: bytes, retryable: bool, says: str) -> None:
    async with SmallServer({}) as server:
        server.answer = answer
        enricher = await opened(server)
        with pytest.raises(EnricherError, match=says) as raised:
            await enricher.lookup("JFK")
        assert raised.value.retryable is retryable
        await enricher.close()


async def test_a_server_that_is_down_may_be_asked_again() -> None:
    async with SmallServer({"JFK": b"{}"}) as server:
        enricher = await opened(server)
    with pytest.raises(EnricherError, match="connection failed") as raised:
        await enricher.lookup("JFK")
    assert raised.value.retryable is True
    await enricher.close()


def test_a_prefix_cannot_hold_another_command() -> None:
    with pytest.raises(ConfigurationError, match="prefix"):
        MemcachedEnricher("localhost", schema="a int", prefix="x\r\nflush_all\r\n")
