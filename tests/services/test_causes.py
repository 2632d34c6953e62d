"""`asyncio_operator.services.causes`: what a library's error means becomes one of this package that tells no secret."""

from __future__ import annotations

import traceback

import pytest

from asyncio_operator import ConfigurationError, EnricherError
from asyncio_operator.services.causes import Cause, caused, lookup_error
from asyncio_operator.services.secrets import Secrets

SECRET = "hunter2hunter2"
SECRETS = Secrets([SECRET])


def raised(error: Exception) -> Exception:
    """With a frame whose variables hold a secret."""
    password = SECRET
    try:
        raise error
    except Exception as caught:
        assert password
        return caught


def test_an_error_says_what_its_cause_says() -> None:
    cause = Cause("the server has too many clients", retryable=True, overload=True, any_key=False)
    error = lookup_error(raised(OSError("full")), cause, "X(y)", SECRETS, key="key 1")
    assert str(error) == "X(y), key 1: the server has too many clients (full)"
    assert (error.retryable, error.overload, error.any_key, error.retry_after) == (True, True, False, None)
    assert cause.error("m", retry_after=2.0).retry_after == 2.0


def test_a_key_that_is_not_to_blame_is_not_named() -> None:
    error = lookup_error(raised(OSError()), Cause("it is gone", retryable=None), "X", SECRETS, key="key 1")
    assert str(error) == "X: it is gone (OSError)"
    assert (error.retryable, error.any_key) == (None, True)


def test_an_error_may_be_of_a_class_of_its_own_and_have_other_words() -> None:
    class LateError(EnricherError, TimeoutError):
        pass

    error = lookup_error(raised(OSError("no")), Cause("c", kind=LateError), "X", SECRETS, words=f"{SECRET}\nsaid")
    assert type(error) is LateError
    assert str(error) == "X: c (*** said)"


def test_own_words_are_cut() -> None:
    assert len(str(lookup_error(ValueError("x" * 10_000), Cause("c"), "X", SECRETS))) < 320


@pytest.mark.parametrize("deep", [False, True])
def test_X5_a_cause_that_would_tell_a_secret_is_left_out_and_any_other_kept(deep: bool) -> None:
    for words, kept in (("refused", True), (f"refused {SECRET}", False)):
        error = raised(OSError(words))
        if deep:
            error = raised(RuntimeError("lost"))
            error.__context__ = raised(OSError(words))
        problem = lookup_error(error, Cause("c"), "X", SECRETS)
        assert (problem.__cause__ is error) is kept
        assert SECRET not in everything_of(problem)


def test_X5_no_frame_of_a_library_stays_with_an_error() -> None:
    error = raised(RuntimeError("lost"))
    error.__cause__ = raised(OSError("refused"))
    assert SECRET in everything_of(error)
    problem = caused(ConfigurationError("c"), error, SECRETS)
    assert problem.__cause__ is error
    assert SECRET not in everything_of(problem)


def everything_of(error: BaseException) -> str:
    """What the most talkative of tools would log: tracebacks with the variables of every frame."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
