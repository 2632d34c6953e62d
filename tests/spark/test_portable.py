"""Whatever an error holds, what PySpark makes of it is text that can be encoded, and not too much of it."""

from __future__ import annotations

import traceback

from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import EnricherError, FunctionError
from asyncio_operator.loop.portable_errors import MOST_TEXT, portable

TEXT = st.text(st.characters(), max_size=30) | st.just("\udc80") | st.just("x" * 200_000) | st.just("\udc80\n" * 60_000)
TYPES = st.sampled_from([ValueError, OSError, KeyError, SystemExit, EnricherError, FunctionError])


def chained(types: list[type[BaseException]], texts: list[str], causes: list[bool]) -> BaseException:
    """The last error, each with the one before as its cause or its context."""
    last: BaseException | None = None
    for error_type, text, is_cause in zip(types, texts, causes, strict=True):
        error = error_type(text)
        if is_cause:
            error.__cause__ = last
        else:
            error.__context__ = last
        last = error
    assert last is not None
    return last


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@given(data=st.data(), length=st.integers(1, 4))
def test_X5_every_error_can_be_told(data: st.DataObject, length: int) -> None:
    def some(strategy):
        return data.draw(st.lists(strategy, min_size=length, max_size=length))

    error = chained(some(TYPES), some(TEXT), some(st.booleans()))
    same = portable(error)
    assert len(told(same).encode()) < 10 * MOST_TEXT
    if same is error:
        assert len(told(error)) <= MOST_TEXT
    else:
        assert isinstance(same, FunctionError)
        assert type(error).__name__ in told(same)


def test_X5_a_function_error_stays_what_it_is() -> None:
    error = FunctionError("it failed", element="7", attempts=2)
    assert portable(error) is error
    error.__cause__ = ValueError("\udc80")
    same = portable(error)
    assert isinstance(same, FunctionError)
    assert (str(same), same.element, same.attempts) == ("it failed", "7", 2)
    assert "ValueError: \\udc80" in told(same)


def test_X5_an_error_that_leads_to_itself_is_told() -> None:
    error = ValueError("\udc80")
    error.__context__ = KeyError("\udc80")
    error.__context__.__context__ = error
    assert "\\udc80" in told(portable(error))


def test_X5_errors_in_groups_are_told() -> None:
    same = portable(ExceptionGroup("several", [ValueError("\udc80"), OSError("x")]))
    assert "ValueError: \\udc80" in told(same)
    told(same).encode()
