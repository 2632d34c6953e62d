"""What an answer contains: JSON, the part of it with rows, and rows; and which entry of a batch belongs to which key.

`extract` is a dotted path, or a function. A path consists of names of fields and numbers of items: ``data.items.0``. A
missing field is an error, because with a misspelt path the source would look empty. A null on the way, and an item
after the end of a list, are a miss. An object without any of the columns is an error for the same reason: it is a
refusal of the service, or the schema is misspelt. An empty object has no other field, so it is a row of nulls.

This module knows no connection and no key. Every problem is an `UnreadableError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from asyncio_operator import AsyncOperatorError, ConfigurationError
from asyncio_operator.enricher import (
    Found,
    describe,
    did_you_mean,
    first_of,
    function_name,
    gives_coroutines,
    keep_verdict,
    takes,
)
from enrichers.http.bodies import BodyError, decoded
from enrichers.scalars import COERCED, JSON
from enrichers.typed import MisfitError, NoColumnError, json_decoder, row_converter

Extract = str | Callable[[Any], Any] | None

LOOKED_AT = 4_000
"""How many bytes of an answer that is not JSON are searched for secrets before its beginning is shown."""


class UnreadableError(AsyncOperatorError, ValueError):
    """An answer is invalid; the message says why.

    Attributes:
        any_key: whether no key can cause it, because the answer to a batch has none of the forms of such answers.
        retryable: whether the next answer may be different.
        retry_after, overload: what a function of the user says.
    """

    retry_after: float | None = None
    overload = False

    def __init__(self, problem: str, *, any_key: bool = False, retryable: bool | None = False) -> None:
        super().__init__(problem)
        self.any_key = any_key
        self.retryable = retryable


class WrongRowError(UnreadableError):
    """An answer is not a row of the schema. It becomes a `ResultError` of its key (law L9)."""


class Answers:
    """How answers become rows.

    Args:
        schema: the columns.
        extract: leads from the answer to one key, or from a key's entry in the answer to a batch, to its rows.
        batch_extract: leads from the answer to a batch to its entries.
        show: turns a value into text for a message; its second argument is a length.
        coerce: whether a column of strings accepts numbers.
    """

    def __init__(
        self,
        schema: pa.Schema,
        extract: Extract,
        batch_extract: Extract,
        show: Callable[..., str] = describe,
        *,
        coerce: bool = False,
    ) -> None:
        source = COERCED if coerce else JSON
        self._row = row_converter(schema, source)
        self._show = show
        self._decode = json_decoder(schema, source)
        self._extract = make_extract("extract", extract, show)
        self._batch_extract = make_extract("batch_extract", batch_extract, show)
        self._by_path = isinstance(batch_extract, str)

    def parse(self, body: bytes, content_type: str) -> Any:
        """The JSON of a body, parsed."""
        try:
            return self._decode(decoded(body, content_type))
        except BodyError as error:
            problem = str(error)
        except ArithmeticError:
            problem = "the exponent of a number is too large for a decimal"
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}" if body else "it is empty"
        kind = f" of type {self._show(content_type, 80)}" if content_type else ""
        beginning = " ".join(body[:LOOKED_AT].decode("utf-8", "replace").split())
        start = f"; it begins with {self._show(beginning, 100)}" if beginning else ""
        page = ", a page for people, such as a login page: check the URL and the credentials" * (beginning[:1] == "<")
        raise UnreadableError(f"the answer{kind} is not JSON ({problem}){start}{page}")

    def found(self, entry: Any) -> Found:
        """The row, the rows or None in an answer, or in an entry of an answer to a batch."""
        if self._extract is not None:
            entry = self._extract(entry)
        if entry is None:
            return None
        try:
            if type(entry) is dict or isinstance(entry, Mapping):
                return self._row(entry)
            if isinstance(entry, list | tuple):
                return [self._row(row) if isinstance(row, Mapping) else self._no_object(row) for row in entry] or None
        except NoColumnError as misfit:
            text = misfit.message_with(lambda value: self._show(value, 150))
            problem = (
                f"{text}, as in {self._show(misfit.value, 150)}. Correct schema=, or "
                "pass extract=: a path to the row, or a function, which can raise EnricherError if the "
                "service refuses, and return None for a miss"
            )
        except MisfitError as misfit:
            text = misfit.message_with(lambda value: self._show(value, 100))
            remedy = "pass coerce=True, which accepts numbers as text and 1e18 as an integer, " * misfit.coercible
            problem = f"{text}; {remedy}change its type in schema=, or convert it in extract="
        else:
            problem = (
                f"the answer is {self._show(entry)}, which is not a row: an object, a list of objects or null was "
                "expected; pass extract=, a path or a function that leads there"
            )
        raise WrongRowError(problem)

    def entries(self, answer: Any, texts: Sequence[str | None]) -> list[Any]:
        """The entries of a batch, aligned with its keys. Pass each that is not None to `found`.

        Args:
            texts: the keys as they name entries; None for a key that cannot name one.
        """
        if self._batch_extract is not None:
            try:
                answer = self._batch_extract(answer)
            except UnreadableError as error:
                # A function may have met the entry of one key that it cannot take.
                error.any_key = self._by_path
                raise
        if isinstance(answer, list):
            if len(answer) != len(texts):
                # A service may leave an empty key out of a list with commas: halves find it, and spare the others.
                empty = "" in texts
                remedy = '; a key is empty: empty_key="miss" makes it a miss' if empty else ""
                raise UnreadableError(
                    f"the answer to a batch has {len(answer)} entries for {len(texts)} keys; a list must have an entry "
                    "for each key, in their order, with null for a missing row. If a service leaves missing rows out, "
                    f"pass a function as batch_extract= that makes an object by key from the list{remedy}",
                    any_key=not empty,
                )
            return answer
        if not isinstance(answer, Mapping):
            raise UnreadableError(
                f"the answer to a batch is {self._show(answer)}; a list with an entry for each key, or an object by "
                "key, was expected; pass batch_extract=, a path or a function that leads there",
                any_key=True,
            )
        strangers = answer.keys() - set(texts)
        if len(strangers) == len(answer) > 0:
            raise UnreadableError(
                f"the answer to a batch has the fields {self._show([*answer], 150)}, and none of them is a key that "
                "was asked for; pass batch_extract=, a path or a function that leads to the entries, which must be "
                "named as the keys are written",
                any_key=True,
            )
        if strangers:
            one = self._show(min(strangers, key=repr))
            raise UnreadableError(
                f"the answer to a batch has an entry for {one}, which was not asked for; pass a function as "
                "batch_extract= that leaves out what is no entry, and names entries as the keys are written"
            )
        return [answer.get(text) for text in texts]

    def _no_object(self, row: Any) -> NoReturn:
        raise WrongRowError(f"a row of the answer is {self._show(row)}; an object was expected")


def make_extract(argument: str, extract: Extract, show: Callable[..., str] = describe) -> Callable[[Any], Any] | None:
    """A function for a path, or for a function that may raise anything; `show` makes text of the error.

    Raises:
        ConfigurationError: it is neither.
    """
    if extract is None:
        return None
    if isinstance(extract, str):
        steps = extract.split(".")
        if all(steps):
            return lambda answer: _follow(answer, steps, extract)
    elif callable(extract) and not gives_coroutines(extract):
        takes(argument, extract, "the parsed answer")
        return lambda answer: _called(argument, extract, answer, show)
    raise ConfigurationError(
        f"{argument} is {describe(extract)}; it must be a dotted path like 'data.items.0', or an ordinary function of "
        "the parsed answer"
    )


def _called(argument: str, function: Callable[[Any], Any], answer: Any, show: Callable[..., str]) -> Any:
    try:
        return function(answer)
    except AsyncOperatorError:
        raise
    except Exception as error:
        first = first_of(error)
        # The text of a KeyError is the repr of its argument, which `show` would quote a second time.
        words = first.args[0] if type(first) is KeyError and first.args else str(first)
        problem = UnreadableError(f"{argument}: {function_name(function)} raised {type(first).__name__}: {show(words)}")
        raise keep_verdict(problem, error) from error


def _follow(answer: Any, steps: Sequence[str], path: str) -> Any:
    for i, step in enumerate(steps):
        if answer is None:
            return None
        if isinstance(answer, list) and step.isdecimal():
            if int(step) >= len(answer):
                return None
            answer = answer[int(step)]
        elif isinstance(answer, Mapping) and step in answer:
            answer = answer[step]
        else:
            place = f"after {'.'.join(steps[:i])!r}" if i else "at its top"
            what = f"is of type {type(answer).__name__}"
            if isinstance(answer, Mapping):
                what = f"has no {step!r}: {did_you_mean(step, map(str, answer))}"
            raise UnreadableError(f"the path {path!r} leads nowhere: {place} the answer {what}")
    return answer
