"""`services.secret_source`: functions that give a secret, of which nothing is shown but their names."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import function_name, missing_here
from asyncio_operator.services.secret_source import SecretSource
from tests.enrichers.helpers import everything_of

SECRET = "hunter2hunter2"


def check(given: object) -> str:
    if not isinstance(given, str) or "@" in given:
        raise ConfigurationError(f"token is of type {type(given).__name__}, or holds an @")
    return given


TOKEN = SecretSource("token", "token of the service", check)
AWAITED = SecretSource("token", "token of the service", check, may_await=True)


def needs(secret: str, place: str) -> str:
    return secret + place


def gives() -> str:
    return SECRET


async def awaited() -> str:
    return SECRET


def promised() -> Any:
    return awaited()


async def streamed() -> AsyncIterator[str]:
    yield SECRET


def raising(error: BaseException) -> Callable[[], str]:
    def vault() -> str:
        secret = SECRET
        raise error if secret else ValueError

    return vault


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (functools.partial(needs, SECRET), "token is needs, which takes arguments"),
        (functools.partial(functools.partial(awaited)), "token is awaited, an `async def` function"),
        (streamed, "token is streamed, an `async def` function"),
        (f"{SECRET}@", "token is of type str, or holds an @"),
        (5, "token is of type int"),
    ],
)
def test_X4_what_can_never_give_it_is_refused_at_once(source: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TOKEN.check_source(source)
    assert told in str(caught.value)
    if callable(source):
        assert "an ordinary function without arguments that returns the token of the service" in str(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_what_can_give_it_is_asked() -> None:
    for source in (SECRET, gives, lambda: SECRET):
        TOKEN.check_source(source)
        assert await TOKEN.get(source) == SECRET
    for waiting in (awaited, promised, functools.partial(awaited), gives):
        AWAITED.check_source(waiting)
        assert await AWAITED.get(waiting) == SECRET


async def test_one_that_blocks_runs_in_a_thread_and_one_that_waits_on_the_loop() -> None:
    async def here() -> str:
        return str(threading.get_ident())

    assert await AWAITED.get(here) == str(threading.get_ident())
    for source in (TOKEN, AWAITED):
        assert await source.get(lambda: str(threading.get_ident())) != str(threading.get_ident())


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (lambda: 5, "returned no usable token of the service: token is of type int"),
        (lambda: {"password": SECRET}, "returned no usable token of the service: token is of type dict"),
        (lambda: f"{SECRET}@", "returned no usable token of the service: token is of type str"),
        (promised, "returned no usable token of the service: token is of type coroutine"),
        (lambda: None, "returned None; if it reads an environment variable, that is not set in this process"),
        (raising(RuntimeError(SECRET)), "raised RuntimeError"),
        (raising(TimeoutError(SECRET)), "raised TimeoutError"),
        (raising(SystemExit(SECRET)), "raised SystemExit"),
        (raising(StopIteration(SECRET)), "raised StopIteration"),
        (raising(KeyError(SECRET)), "raised KeyError"),
    ],
)
async def test_X4_what_goes_wrong_is_told_by_name_and_without_a_secret(source: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await TOKEN.get(source, 60.0)
    assert f"token: the function {function_name(source)} {told}" in str(caught.value)
    assert SECRET not in everything_of(caught.value)
    assert caught.value.__cause__ is None
    if not str(caught.value).endswith("coroutine, or holds an @"):
        with pytest.raises(ConfigurationError, match="token: the function"):
            await AWAITED.get(source)


async def test_X4_an_asynchronous_one_that_fails_is_told_in_the_same_way() -> None:
    async def vault() -> str:
        raise SystemExit(SECRET)

    with pytest.raises(ConfigurationError, match=r"vault raised SystemExit$") as caught:
        await AWAITED.get(vault)
    assert SECRET not in everything_of(caught.value)


def lacks_a_variable() -> str:
    return os.environ["NO_SUCH_TOKEN"]


def lacks_a_module() -> str:
    try:
        raise RuntimeError(SECRET)
    except RuntimeError:
        import no_such_vault  # type: ignore[import-not-found]

        return str(no_such_vault.token)


def lacks_a_variable_and_tells_more() -> str:
    try:
        return lacks_a_variable()
    except KeyError as error:
        raise RuntimeError(SECRET) from error


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (lacks_a_variable, "raised KeyError: the environment variable 'NO_SUCH_TOKEN' is not set in this process"),
        (lacks_a_module, "raised ModuleNotFoundError: the module 'no_such_vault' is not installed in this Python"),
        (lacks_a_variable_and_tells_more, "raised RuntimeError: the environment variable 'NO_SUCH_TOKEN' is not set"),
    ],
)
async def test_X4_what_the_process_lacks_is_named_and_nothing_around_it_is_shown(source: Any, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await TOKEN.get(source)
    assert f"token: the function {source.__name__} {told}" in str(caught.value)
    lack = missing_here(caught.value)
    assert lack is not None, "whoever reports it can tell the remedy"
    assert lack.name in ("NO_SUCH_TOKEN", "no_such_vault")
    assert SECRET not in everything_of(caught.value)


async def test_X4_one_that_hangs_is_given_up() -> None:
    released = threading.Event()

    async def hanging() -> str:
        await asyncio.Event().wait()
        return ""

    try:
        for source, ask in ((TOKEN, lambda: str(released.wait())), (AWAITED, hanging)):
            with pytest.raises(ConfigurationError, match=r"returned nothing within 0.01 s \(connect_timeout\)"):
                await source.get(ask, 0.01)
    finally:
        released.set()


def test_a_function_is_shown_by_its_name_without_what_it_was_given() -> None:
    class Vault:
        def __call__(self) -> str:
            return SECRET

        def __repr__(self) -> str:
            return SECRET

    assert function_name(functools.partial(functools.partial(needs, SECRET), "b")) == "needs"
    assert function_name(Vault()).endswith("Vault")
