"""What is in an answer: JSON, the part of it that counts, rows; and whose row is whose in the answer to a batch.

`extract` is a dotted path, or a function. A path names fields of objects and numbers of items: ``data.items.0``. A
field that is not there is an error, because a misspelt path would look like a source that has nothing; null on the way,
and an item behind the end of a list, are a miss. An object with none of the columns is an error for the same reason:
it is a refusal, or a schema that is misspelt; an empty one has no other field, and is a row of nulls.

Knows no connection and no key; everything wrong is an `UnreadableError`.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from asyncio_operator import AsyncOperatorError, ConfigurationError
from asyncio_operator.enricher import Found, describe, did_you_mean, function_name, gives_coroutines, takes
from enrichers.typed import MisfitError, NoColumnError, json_decoder, row_converter

Extract = str | Callable[[Any], Any] | None

LOOKED_AT = 4_000
"""Bytes of an answer that is not JSON of which the beginning is shown, once what is secret is hidden."""


class UnreadableError(ValueError):
    """An answer will not do; the message says why.

    Attributes:
        any_key: whether no key can be to blame, because the answer to a batch has another form than such answers have.
        retryable: whether the next answer may be another.
    """

    def __init__(self, problem: str, *, any_key: bool = False, retryable: bool = False) -> None:
        super().__init__(problem)
        self.any_key = any_key
        self.retryable = retryable


class Answers:
    """How answers become rows.

    Args:
        schema: the columns.
        extract: from the answer to one key, or the entry of one key in the answer to a batch, to its rows.
        batch_extract: from the answer to a batch to what holds the entries.
        show: makes text for a message of a value, or of a value and a length.
        coerce: whether a column of strings takes numbers.
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
        self._row = row_converter(schema, coerce=coerce)
        self._show = show
        self._decode = json_decoder(schema, coerce=coerce)
        self._extract = make_extract("extract", extract, show)
        self._batch_extract = make_extract("batch_extract", batch_extract, show)

    def parse(self, body: bytes, content_type: str) -> Any:
        """What the JSON of a body says."""
        try:
            return self._decode(body.removeprefix(BOM_UTF8).decode())
        except UnicodeDecodeError as error:
            problem = f"it is not in UTF-8: {error}"
        except ArithmeticError:
            problem = "the exponent of a number is too large for a decimal"
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}" if body else "it is empty"
        kind = f" of type {self._show(content_type, 80)}" if content_type else ""
        beginning = " ".join(body[:LOOKED_AT].decode("utf-8", "replace").split())
        told = f"; it begins with {self._show(beginning, 100)}" if beginning else ""
        page = (
            ", a page for people, as for signing in: check the URL and the credentials" if beginning[:1] == "<" else ""
        )
        raise UnreadableError(f"the answer{kind} is not JSON ({problem}){told}{page}")

    def found(self, entry: Any) -> Found:
        """The row, the rows or None that an answer, or an entry of one, stands for."""
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
            told = misfit.told(lambda value: self._show(value, 150))
            problem = (
                f"{told}, as in {self._show(misfit.value, 150)}. Mend schema=, or give extract=, a path to the row or "
                "a function, which can raise EnricherError where the service refuses, and give None for a miss"
            )
        except MisfitError as misfit:
            told = misfit.told(lambda value: self._show(value, 100))
            remedy = "give coerce=True, which takes numbers as text and 1e18 as an integer, " * misfit.coercible
            problem = f"{told}; {remedy}change its type in schema=, or convert it in extract="
        else:
            problem = (
                f"the answer is {self._show(entry)}, which is no row: an object, a list of objects or null was "
                "expected; extract= takes a path or a function that leads there"
            )
        raise UnreadableError(problem)

    def entries(self, answer: Any, texts: Sequence[str | None]) -> list[Any]:
        """The entries of a batch, aligned with its keys. Each is to be given to `found_in_batch`.

        Args:
            texts: the keys as they name entries; None for a key that cannot.
        """
        if self._batch_extract is not None:
            try:
                answer = self._batch_extract(answer)
            except UnreadableError as error:
                error.any_key = True
                raise
        if isinstance(answer, list):
            if len(answer) != len(texts):
                raise UnreadableError(
                    f"the answer to a batch has {len(answer)} entries for {len(texts)} keys; a list has an entry for "
                    "each key, in their order, with null where there is none. Where a service leaves these out, a "
                    "function as batch_extract= can make an object by key of the list",
                    any_key=True,
                )
            return answer
        if not isinstance(answer, Mapping):
            raise UnreadableError(
                f"the answer to a batch is {self._show(answer)}; a list with an entry for each key, or an object by "
                "key, was expected; batch_extract= takes a path or a function that leads there",
                any_key=True,
            )
        strangers = answer.keys() - set(texts)
        if len(strangers) == len(answer) > 0:
            raise UnreadableError(
                f"the answer to a batch has the fields {self._show([*answer], 150)}, and none of them is a key that "
                "was asked for; batch_extract= takes a path or a function that leads to the entries, which are named "
                "as the keys are written",
                any_key=True,
            )
        if strangers:
            one = self._show(min(strangers, key=repr))
            raise UnreadableError(
                f"the answer to a batch has an entry for {one}, which was not asked for; a function as batch_extract= "
                "can leave out what is no entry, and name entries as the keys are written"
            )
        return [answer.get(text) for text in texts]

    def found_in_batch(self, entry: Any) -> Found:
        """The same as `found`; None is a miss without a look at `extract`."""
        return None if entry is None else self.found(entry)

    def _no_object(self, row: Any) -> NoReturn:
        raise UnreadableError(f"a row of the answer is {self._show(row)}; an object was expected")


def make_extract(argument: str, extract: Extract, show: Callable[..., str] = describe) -> Callable[[Any], Any] | None:
    """A function for a path, or for a function that may raise anything, of which `show` makes text.

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
        # The text of a KeyError is the repr of what it is given already.
        words = error.args[0] if type(error) is KeyError and error.args else str(error)
        raise UnreadableError(
            f"{argument}: {function_name(function)} raised {type(error).__name__}: {show(words)}"
        ) from error


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
            names = [str(name) for name in answer] if isinstance(answer, Mapping) else None
            what = f"{place} the answer is of type {type(answer).__name__}"
            if names is not None:
                what = f"{place} the answer has no {step!r}: {did_you_mean(step, names)}"
            raise UnreadableError(f"the path {path!r} leads nowhere: {what}")
    return answer
