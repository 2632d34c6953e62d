"""X5: an error crosses to another thread or process with a traceback that can be encoded, of the type that it has.

What PySpark gets (`portable`) is also bounded in length."""

from __future__ import annotations

import itertools
import logging
import os
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncio_operator import AsyncWaitOperator, EnricherError, FunctionError
from asyncio_operator.loop.channels import FromLoop, ToLoop, call_on
from asyncio_operator.loop.portable_errors import (
    LIBRARY,
    MOST_TEXT,
    OriginalError,
    cut_frames,
    encodable,
    portable,
    portable_errors,
)
from asyncio_operator.loop.runner import LoopFrame
from asyncio_operator.loop.thread import LoopThread

BAD = "caf\udce9.txt"
ESCAPED = "caf\\udce9.txt"


class NotedError(Exception):
    def __init__(self, number: int, text: str) -> None:
        super().__init__(number)
        self.text = text

    def __str__(self) -> str:
        return f"{self.args[0]} {self.text}"


class StubbornError(Exception):
    def __str__(self) -> str:
        return BAD


def noted() -> Exception:
    error = KeyError("k")
    error.add_note(BAD)
    return error


ERRORS: list[BaseException] = [
    ValueError(BAD),
    OSError(2, BAD),
    OSError(2, "no such file", BAD),
    ImportError(BAD, name=BAD),
    SyntaxError(BAD, (BAD, 1, 1, BAD)),
    EnricherError(BAD, retry_after=3.0),
    NotedError(7, BAD),
    SystemExit(BAD),
    noted(),
    ExceptionGroup("several", [ValueError(BAD), ExceptionGroup("more", [NotedError(1, BAD)])]),
]


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_X5_an_error_keeps_its_type_and_its_text_becomes_text(number: int) -> None:
    error = ERRORS[number]
    assert encodable(error) is error
    assert ESCAPED in told(error).encode().decode() or "\\udce9" in told(error).encode().decode()


@pytest.mark.parametrize("error", [StubbornError(), ExceptionGroup(BAD, [ValueError("x")])], ids=["stubborn", "group"])
def test_X5_one_that_cannot_be_changed_is_told_by_another(error: BaseException) -> None:
    same = encodable(error)
    assert isinstance(same, FunctionError)
    assert isinstance(same.__cause__, OriginalError)
    assert type(error).__name__ in str(same)
    assert ESCAPED in told(same).encode().decode()


@given(texts=st.lists(st.sampled_from(["fine", BAD, "\udc80"]), min_size=1, max_size=5), data=st.data())
def test_X5_whatever_led_to_an_error_is_told_too(texts: list[str], data: st.DataObject) -> None:
    errors: list[BaseException] = [data.draw(st.sampled_from([ValueError, KeyError, OSError]))(text) for text in texts]
    types = [type(error) for error in errors]
    for one, other in itertools.pairwise(errors):
        if data.draw(st.booleans()):
            one.__cause__ = other
        else:
            one.__context__ = other
    errors[-1].__context__ = data.draw(st.sampled_from([None, errors[0]]))
    assert encodable(errors[0]) is errors[0]
    told(errors[0]).encode()
    assert [type(error) for error in errors] == types
    assert all(error.args == ("fine",) for error, text in zip(errors, texts, strict=True) if text == "fine")


class UnreadableError(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        raise SystemExit(3)

    def __str__(self) -> str:
        return BAD


class SecretiveError(Exception):
    def __getattribute__(self, name: str) -> object:
        raise KeyboardInterrupt(name)


class VagueError(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")

    def __str__(self) -> str:
        return BAD


class OddError(Exception):
    """Has an attribute that is called as that of an exception group."""

    def __init__(self, exceptions: object) -> None:
        super().__init__(BAD)
        self.exceptions = exceptions


STRANGE = [
    UnreadableError,
    SecretiveError,
    VagueError,
    *(partial(OddError, exceptions) for exceptions in (None, 3, ["timeout"], {"first": "timeout"})),
]


@pytest.mark.parametrize("kind", STRANGE)
def test_X5_an_error_that_cannot_be_read_or_looks_like_a_group_hangs_nobody(kind: Callable[[], Exception]) -> None:
    async def fails(value: int) -> int:
        raise kind()

    with pytest.raises(FunctionError) as caught:
        list(AsyncWaitOperator(fails)([1]))
    assert str(caught.value).encode()
    name = getattr(kind, "__name__", ESCAPED)
    assert name in told(caught.value).encode().decode() or kind is SecretiveError


def test_X5_a_run_needs_no_task_factory_that_a_function_has_broken() -> None:
    """With a thread of its own it is broken for this test alone."""
    thread = LoopThread()

    def refuses(loop: Any, running: Any, **options: Any) -> Any:
        raise RuntimeError("no tasks here")

    async def main(source: ToLoop, sink: FromLoop) -> None:
        await sink.put(1)

    call_on(thread.loop, partial(thread.loop.set_task_factory, refuses))
    with LoopFrame(thread.loop, main, patience=5.0) as frame:
        frame.start(lambda: None)
        assert list(frame.sink) == [1]
    call_on(thread.loop, partial(thread.loop.set_task_factory, None))
    thread.stop()


def test_X5_what_can_be_told_is_left_alone() -> None:
    error = KeyError("\udc80")
    assert encodable(error) is error
    assert error.args == ("\udc80",)


def test_X5_code_whose_path_is_no_text_is_left_out() -> None:
    names: dict[str, object] = {}
    exec(compile("def fails(): raise ValueError('enough')", f"/{BAD}", "exec"), names)
    with pytest.raises(ValueError, match="enough") as caught:
        names["fails"]()  # type: ignore[operator]
    same = encodable(caught.value)
    assert "ValueError: enough" in told(same).encode().decode()
    assert f'File "/{ESCAPED}"' in told(same)


def test_X5_errors_of_the_function_and_of_the_input_come_across_as_text() -> None:
    async def fails(value: int) -> int:
        raise FileNotFoundError(BAD)

    async def same(value: int) -> int:
        return value

    def broken() -> Iterator[int]:
        yield 1
        raise FileNotFoundError(BAD)

    with pytest.raises(FunctionError) as of_function:
        list(AsyncWaitOperator(fails)([1]))
    assert type(of_function.value.__cause__) is FileNotFoundError
    assert ESCAPED in told(of_function.value).encode().decode()
    with pytest.raises(FileNotFoundError) as of_input:
        list(AsyncWaitOperator(same)(broken()))
    assert ESCAPED in told(of_input.value).encode().decode()


def test_X5_of_very_many_causes_another_error_stands_for_all() -> None:
    error = first = ValueError(BAD)
    for _ in range(300):
        error.__cause__ = error = ValueError(BAD)
    same = encodable(first)
    assert isinstance(same.__cause__, OriginalError)
    assert ESCAPED in told(same).encode().decode()


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


def of_a_function() -> None:
    raise LookupError("in the function")


def test_X5_a_traceback_in_spark_shows_the_users_frames_and_none_of_the_library() -> None:
    async def fails(number: int) -> None:
        of_a_function()

    with pytest.raises(FunctionError) as raised:
        list(portable_errors(AsyncWaitOperator(fails)([1])))
    shown = "".join(traceback.format_exception(raised.value))
    assert "of_a_function()" in shown
    assert f"{os.sep}asyncio_operator{os.sep}" not in shown


def test_X5_a_defect_of_the_library_keeps_its_frames(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError) as defect:
        exec(compile("1 / 0", os.path.join(LIBRARY[0], "defect.py"), "exec"))
    cut_frames(defect.value)
    assert "defect.py" in "".join(traceback.format_exception(defect.value))
    caplog.set_level(logging.DEBUG, "asyncio_operator.tasks")

    async def fails(number: int) -> None:
        of_a_function()

    with pytest.raises(FunctionError) as raised:
        list(portable_errors(AsyncWaitOperator(fails)([1])))
    assert "".join(traceback.format_exception(raised.value)).count(f"{os.sep}asyncio_operator{os.sep}") > 3
