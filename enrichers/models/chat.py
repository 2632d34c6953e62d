"""`ModelEnricher`: a prompt with columns in it is sent to a model, and its answer is a row.

The row is requested as a strict JSON schema, and checked against it. An answer that is not a row is an error of its
key, and says which of three it is: the model refuses, which it would do again; the answer was cut by length; or it does
not fit, as that of a service that ignores the schema. The last two may be different at the next attempt, unless the
temperature is 0.

In the JSON schema only keywords are used that every service accepts in strict mode: types, `required`,
`additionalProperties`, `anyOf` with null, descriptions. Services refuse a schema with a keyword that they do not
support, and `pattern`, `format`, lengths and ranges are such keywords for some. So a description says how a date or a
decimal is written, and the reader of values of JSON (`enrichers.typed`) decides whether the answer is right.

An object lists all its fields, in the order of the columns: models write them in that order. A map has fields without
names known beforehand, which a strict schema cannot have.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from sys import float_info
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.types as kinds

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import Found, as_schema, describe, named_options, positive_int, shown_type
from asyncio_operator.services.secrets import Secrets
from enrichers.http.answers import Answers, UnreadableError, WrongRowError
from enrichers.http.keys import UnsendableError, json_inner, json_of, text_of
from enrichers.http.template import MARK, Names, Piece, Values, fill, merged
from enrichers.models.endpoint import NOT_HERE, OPENAI, ApiKey, ModelEndpoint, ReadRow, length_of
from enrichers.typed import MisfitError

if TYPE_CHECKING:
    from asyncio_operator.enricher import StructType

COLUMN_TOKENS = 20
"""Of a value in an answer, before one has come, without `max_tokens`: a short sentence."""

LISTED = (
    "The user message is a JSON list of texts with numbers. Take each text alone, as if there were no other, and give "
    "one row for each, with its number."
)
"""The instruction before the list of texts in a request about several rows."""

OWN = ("model", "messages", "response_format", "max_tokens", "temperature", "stream", "n")
"""Parameters of a request that `extra` cannot have."""


class ModelEnricher(ModelEndpoint):
    """Asks a model about each row, at an endpoint for chats that speaks as OpenAI's does.

        ModelEnricher("gpt-4o-mini", prompt="Is this review good or bad? {text}", schema="sentiment string NOT NULL")

    Requests, retries, limits that headers announce, and errors are as with `HttpEnricher`. Under a `Budget` a request
    weighs its tokens in ``tokens`` and, with a price, its dollars in ``usd``; estimates learn from the answers.

    Args:
        model: the name of the model.
        prompt: the text that is sent, with columns in braces: ``{text}``. These columns are the key. ``{{text}}`` is
            the text ``{text}``, and braces around anything but a name stay as they are.
        schema: the columns of the row, as a `pyarrow.Schema`, Spark DDL text, or a Spark `StructType`. The model may
            answer null for a column unless it is NOT NULL. A map is not possible.
        system: a text that is sent before each prompt, as it is.
        base_url: the address of the service. ``/chat/completions`` is added to its path.
        api_key: the API key, or a function without arguments that returns it, called in the worker; it keeps the key
            out of pickles. It is sent as ``Authorization: Bearer``, or, to ``/openai/deployments/`` of Azure, as
            ``api-key``. None: the service needs none.
        price: dollars for a million tokens of input, and of output: ``(0.15, 0.6)``.
        max_tokens: the maximum of tokens in an answer.
        temperature: how much answers vary; 0: as little as possible.
        extra: more parameters of the request, such as ``{"seed": 1}``.
        batch: the maximum number of rows in one request, which share the system text. The model gets their prompts as a
            numbered list, and `max_tokens` is for each of them. A batch whose answer is not right is divided. None: 1.

    Raises:
        ConfigurationError: an argument has the wrong type or value. No message shows a prompt or a system text.
    """

    _path = "chat/completions"
    _operation = "chat"
    _paid_answers = True

    @named_options("ModelEnricher", NOT_HERE)
    def __init__(
        self,
        model: str,
        *,
        prompt: str,
        schema: pa.Schema | str | StructType,
        system: str | None = None,
        base_url: str = OPENAI,
        api_key: ApiKey = None,
        price: tuple[float, float] | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        extra: Mapping[str, Any] | None = None,
        batch: int | None = None,
    ) -> None:
        self._prompt = _text("prompt", prompt)
        self._system = None if system is None else _text("system", system)
        self._max_tokens = None if max_tokens is None else positive_int("max_tokens", max_tokens)
        self._temperature = None if temperature is None else _temperature(temperature)
        self._extra = _extra(extra)
        self._batch = None if batch is None else positive_int("batch", batch)
        # Every name in braces is a column.
        parts = [*dict.fromkeys(found[2] for found in MARK.finditer(self._prompt) if found[2])]
        if not parts:
            raise ConfigurationError(
                "prompt names no column, so every row would get the same answer; write the name of a column in single "
                "braces, such as {text}"
            )
        self._template = Names(parts, one=True, many=False).take_apart(self._prompt, "prompt", secret=True)
        self._row_schema = row_schema(as_schema(schema))
        self._fixed_length = len(self._system or "") + len(json_of(self._row_schema))
        super().__init__(model, base_url=base_url, api_key=api_key, price=price, schema=schema, parts=parts)
        self.max_batch = self._batch or 1

    def length(self, keys: Sequence[Any]) -> int:
        """See `ModelEndpoint`."""
        return self._fixed_length + sum(self._length(key if len(self._parts) > 1 else (key,)) for key in keys)

    def _length(self, values: Values) -> int:
        given = dict(zip(self._parts, values, strict=True))
        return sum(len(piece) if isinstance(piece, str) else length_of(given[piece.name]) for piece in self._template)

    def _sent(self) -> Mapping[str, object]:
        return {
            "prompt": self._prompt,
            "system": self._system,
            "schema": self._row_schema,
            "max_tokens": self._max_tokens,
            "temperature": self._temperature,
            "extra": self._extra or None,
            "batch": self._batch,
        }

    def _prose(self) -> Sequence[str]:
        return [self._system or "", *(piece for piece in self._template if isinstance(piece, str))]

    def _unknown_answer(self) -> float:
        given = self._max_tokens or self._extra.get("max_completion_tokens")
        return given if isinstance(given, int) else COLUMN_TOKENS * len(self._schema)

    def _bodies(self) -> tuple[list[Piece], list[Piece] | None]:
        names = Names(self._parts, one=True, many=False)
        try:
            texts = [json_inner(piece) if isinstance(piece, str) else piece for piece in self._template]
            one = self._body(names.fill_in(texts, json_inner, json_inner), self._row_schema, self._system)
            if self._batch is None:
                return one, None
            written = merged(names.fill_in(self._template, text_of, text_of))
            system = f"{LISTED}\n\n{self._system}" if self._system else LISTED
            return one, self._body([lambda values: self._list(written, values[0])], _rows(self._row_schema), system)
        except UnsendableError as error:
            raise ConfigurationError(f"prompt, system or extra cannot be written as JSON: {error}") from None

    def _list(self, written: Sequence[Piece], keys: Sequence[Any]) -> str:
        """The prompts of several rows, as a part of a JSON string."""
        several = len(self._parts) > 1
        texts = [fill(written, [key[name] for name in self._parts] if several else (key,)) for key in keys]
        return json_inner(json_of([{"number": i, "text": text} for i, text in enumerate(texts)]))

    def _body(self, prompt: Sequence[Piece], schema: JsonSchema, system: str | None) -> list[Piece]:
        before = "" if system is None else f"{json_of({'role': 'system', 'content': system})},"
        form = {"type": "json_schema", "json_schema": {"name": "row", "strict": True, "schema": schema}}
        start = f'{{"model":{json_of(self._model)},"messages":[{before}{{"role":"user","content":"'
        parameters = {"response_format": form, "temperature": self._temperature} | self._extra
        more = json_of({name: value for name, value in parameters.items() if value is not None})
        tokens: list[Piece] = []
        if (most := self._max_tokens) is not None:
            one = schema is self._row_schema
            tokens = [lambda values: f',"max_tokens":{most if one else most * len(values[0])}']
        return [start, *prompt, f'"}}],{more[1:-1]}', *tokens, "}"]

    def _answers(self, secrets: Secrets) -> Answers:
        return _Completions(self._schema, self._row_schema, secrets, again=self._temperature != 0)


class _Completions(Answers):
    """How completions become rows.

    Args:
        row_schema: the JSON schema that was sent.
        again: whether another attempt may bring another answer.
    """

    def __init__(self, schema: pa.Schema, row_schema: JsonSchema, secrets: Secrets, *, again: bool) -> None:
        super().__init__(schema, None, None, secrets.show)
        self._shape = row_schema
        self._again = again

    def found(self, entry: Any) -> Found:
        """The row in a completion, or the one that `entries` has read."""
        if type(entry) is ReadRow:
            return {**entry}
        content = self._content(entry)
        row = self._fitting(content, self._shape)
        try:
            return self._row(row)
        except MisfitError as misfit:
            self._misfit(content, misfit.message_with(lambda value: self._show(value, 100)))

    def entries(self, answer: Any, texts: Sequence[str | None]) -> list[Any]:
        """The rows of a batch. An error says nothing of its texts, because it is logged; alone each says more."""
        try:
            rows = self._fitting(self._content(answer), _rows(self._shape))["rows"]
            found = {repr(row["number"]): ReadRow(self._row(row["row"])) for row in rows}
            if len(rows) == len(texts):
                return [found[repr(i)] for i in range(len(texts))]
        except UnreadableError as error:
            if error.any_key:
                raise
        except (MisfitError, LookupError, TypeError):
            pass
        raise UnreadableError(f"the answer to {len(texts)} texts is refused, was cut by length, or does not fit schema")

    def _fitting(self, content: str, shape: JsonSchema) -> Mapping[str, Any]:
        """The object in a content, if it has this shape."""
        try:
            row = self._decode(content)
        except (ValueError, ArithmeticError, RecursionError) as error:
            self._misfit(content, f"it is not JSON ({error})")
        if not isinstance(row, Mapping):
            self._misfit(content, "it is not an object")
        if (problem := stray(row, shape)) is not None:
            self._misfit(content, problem)
        return row

    def _content(self, completion: Any) -> str:
        """The text of a completion that has come to its end."""
        choices = completion.get("choices") if isinstance(completion, Mapping) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
            raise UnreadableError(
                f"the answer is {self._show(completion)}, which is not a chat completion; correct base_url",
                any_key=True,
            )
        reason, content = choice.get("finish_reason"), message.get("content")
        if refusal := message.get("refusal"):
            raise UnreadableError(f"the model refuses to answer: {self._show(refusal)}")
        if reason == "content_filter":
            raise UnreadableError("the model refuses to answer: the content filter of the service stopped it")
        if reason == "length":
            raise UnreadableError(
                "the answer was cut by length (finish_reason 'length'); raise max_tokens, or ask for less",
                retryable=self._again,
            )
        if not isinstance(content, str):
            self._misfit(content, f"it is not text (finish_reason {self._show(reason)})")
        return content

    def _misfit(self, content: Any, problem: str) -> NoReturn:
        raise WrongRowError(
            f"the answer does not fit schema: {problem}; it is {self._show(content)}", retryable=self._again
        )


def _rows(row: JsonSchema) -> JsonSchema:
    """The JSON schema of a list of rows with their numbers."""
    numbered = closed({"number": {"type": "integer"}, "row": row})
    return closed({"rows": {"type": "array", "items": numbered}})


def _text(argument: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        problem = "empty" if isinstance(text, str) else f"of type {type(text).__name__}"
        raise ConfigurationError(f"{argument} is {problem}; it must be a text")
    return text


def _temperature(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= float_info.max:
        raise ConfigurationError(f"temperature is {describe(value)}; it must be a number of at least 0")
    return float(value)


def _extra(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    if extra is not None and not (isinstance(extra, Mapping) and all(isinstance(name, str) for name in extra)):
        raise ConfigurationError(
            f"extra is of type {type(extra).__name__}; it must be a mapping of names to JSON values"
        )
    for name in extra or {}:
        if name in OWN:
            raise ConfigurationError(
                f"extra has {name!r}, which the other arguments decide; extra is for what they lack"
            )
    return copy.deepcopy(dict(extra or {}))


# -- the JSON schema of a row


JsonSchema = dict[str, Any]


def row_schema(schema: pa.Schema) -> JsonSchema:
    """The JSON schema of a row.

    Raises:
        ConfigurationError: a column has a type that a strict JSON schema cannot describe.
    """
    return _object(schema, "")


def closed(properties: JsonSchema) -> JsonSchema:
    """The schema of an object that has exactly these fields."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def stray(value: Any, schema: Mapping[str, Any], place: str = "") -> str | None:
    """What in a value is not of the shape of the schema: a field is missing, or there is another one. None if nothing
    is. Types are not looked at."""
    for variant in schema.get("anyOf", ()):
        schema = schema if variant["type"] == "null" else variant
    if isinstance(value, Mapping) and "properties" in schema:
        fields = schema["properties"]
        for name in [*(name for name in fields if name not in value), *(name for name in value if name not in fields)]:
            return (
                f"the field {f'{place}.{name}'.lstrip('.')!r} {'is missing' if name in fields else 'is not a column'}"
            )
        found = (stray(item, fields[name], f"{place}.{name}") for name, item in value.items())
        return next((problem for problem in found if problem), None)
    if isinstance(value, list) and "items" in schema:
        found = (stray(item, schema["items"], f"{place}[{i}]") for i, item in enumerate(value))
        return next((problem for problem in found if problem), None)
    return None


def _object(fields: Iterable[pa.Field], place: str) -> JsonSchema:
    return closed({field.name: _field(field, f"{place}.{field.name}".lstrip(".")) for field in fields})


def _field(field: pa.Field, place: str) -> JsonSchema:
    described = _type(field.type, place)
    if not field.nullable:
        return described
    if kinds.is_nested(field.type):
        return {"anyOf": [described, {"type": "null"}]}
    return described | {"type": [described["type"], "null"]}


def _type(kind: pa.DataType, place: str) -> JsonSchema:
    if kinds.is_struct(kind):
        return _object([kind.field(i) for i in range(kind.num_fields)], place)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return {"type": "array", "items": _field(kind.value_field, f"{place}[]")}
    for fits, name in _SIMPLE:
        if fits(kind):
            return {"type": name}
    if kinds.is_decimal(kind):
        return {"type": "number", "description": f"a decimal number with at most {kind.scale} digits after the point"}
    if kinds.is_date(kind):
        return {"type": "string", "description": "a date, written as in 2024-02-29"}
    if kinds.is_timestamp(kind):
        zoned = kind.tz is not None
        how = "with its offset from UTC" if zoned else "without an offset"
        example = f"2024-02-29T12:00:00{'Z' * zoned}"
        return {"type": "string", "description": f"a date and time in ISO 8601, {how}, written as in {example}"}
    remedy = "make it array<struct<key string, value string>>" if kinds.is_map(kind) else "make it a string"
    raise ConfigurationError(
        f"schema: the column {place!r} is {shown_type(kind)}, which a strict JSON schema cannot describe; {remedy}, "
        "and convert it in Spark"
    )


_SIMPLE = (
    (lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind), "string"),
    (kinds.is_boolean, "boolean"),
    (kinds.is_integer, "integer"),
    (lambda kind: kinds.is_float32(kind) or kinds.is_float64(kind), "number"),
)
