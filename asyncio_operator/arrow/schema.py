"""Schemas as users write them: a `pyarrow.Schema`, text in Spark's DDL, or a Spark `StructType`, read without Spark.

    column  := name [":"] type ["NOT NULL"] ["COMMENT" 'text']
    type    := word | ("decimal" | "char" | "varchar") ["(" numbers ")"]
             | "array" "<" type ">" | "map" "<" type "," type ">" | "struct" "<" columns ">"

Words are case-insensitive. A name in backticks may contain any character; a backtick in it is doubled. Spark's own
parser runs in the JVM, so a decorator at module level could not use it. Law: for every text that both accept,
`as_schema` returns the same as ``to_arrow_schema(StructType.fromDDL(text), timezone="UTC")``, except that it drops
comments and that char and varchar are strings. Types that an enricher cannot return (intervals, variant, void, time)
are refused. A `StructType` is known by its method `json`, so that PySpark is not imported.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple, NoReturn, Protocol

import pyarrow as pa

from asyncio_operator.arrow.type_names import MAX_PRECISION, TYPES
from asyncio_operator.errors import ConfigurationError, describe

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | `(?P<quoted>(?:[^`]|``)*)`
      | (?P<word>[A-Za-z0-9_]+)
      | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<mark>[<>(),:])""",
    re.VERBOSE | re.DOTALL,
)

_NUMBER = re.compile(r"\d+(e\d+)?([lsyfd]|bd)?", re.IGNORECASE)


class StructType(Protocol):
    """The part of Spark's `StructType` that is read here."""

    def json(self) -> str: ...

    def simpleString(self) -> str: ...  # noqa: N802


def as_schema(schema: pa.Schema | str | StructType) -> pa.Schema:
    """The schema itself, or the one that a Spark DDL text describes, such as ``"temperature double, wind double"``, or
    that of a Spark `StructType`.

    Raises:
        ConfigurationError: the text is not DDL (the message shows the place), a column occurs twice, or there is none.
    """
    if isinstance(schema, str):
        schema = pa.schema(_Parser(schema).columns())
    elif not isinstance(schema, pa.Schema):
        is_struct = not isinstance(schema, type) and callable(getattr(schema, "json", None))
        tree = json.loads(schema.json()) if is_struct and hasattr(schema, "simpleString") else None
        if not isinstance(tree, dict) or tree.get("type") != "struct":
            raise ConfigurationError(
                f"schema is {describe(schema)}; it must be a pyarrow.Schema, a Spark StructType, or Spark DDL text, "
                "like 'name string, age int'"
            )
        schema = pa.schema(_of_json(tree, "schema"))
    if not len(schema):
        raise ConfigurationError("schema is without a column; give it at least one")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ConfigurationError(f"schema: the column {name!r} occurs twice; give each column its own name")
    return schema


def _of_json(tree: Any, where: str) -> pa.DataType:
    """The type that the JSON of a Spark type describes. `where` names the column in messages."""
    match tree:
        case str():
            try:
                return _Parser(tree).whole_type()
            except ConfigurationError as error:
                raise ConfigurationError(f"{where}: {error}") from None
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return pa.list_(pa.field("element", _of_json(element, where), nullable))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            of_key, of_value = _of_json(key, where), _of_json(value, where)
            return pa.map_(pa.field("key", of_key, nullable=False), pa.field("value", of_value, nullable))
        case {"type": "struct", "fields": fields}:
            of_fields = [(one, _of_json(one["type"], f"{where}.{one['name']}")) for one in fields]
            return pa.struct([pa.field(one["name"], kind, one["nullable"]) for one, kind in of_fields])
    raise ConfigurationError(f"{where} has a user-defined type, {describe(tree)}; use the type that it is stored as")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        tokens, position = [], 0
        while position < len(self._ddl):
            found = _TOKEN.match(self._ddl, position)
            if found is None:
                self._fail("unexpected character", _Token("", self._ddl[position], position))
            kind = str(found.lastgroup)
            if kind != "space":
                tokens.append(_Token(kind, found[kind], position))
            position = found.end()
        self._tokens = [*tokens, _Token("end", "", position)]
        self._next = 0

    def columns(self) -> list[pa.Field]:
        """The whole text as columns. As in Spark, they may be inside of ``struct<...>``."""
        if self._token.kind == "end":
            self._fail("no column")
        wrapped = self._is("struct") and self._is("<", self._tokens[1])
        fields = [*self._type()] if wrapped else self._fields()
        if self._token.kind != "end":
            self._fail("',' or the end was expected")
        return fields

    def whole_type(self) -> pa.DataType:
        """The whole text as one type."""
        kind = self._type()
        if self._token.kind != "end":
            self._fail("the end was expected")
        return kind

    def _fields(self) -> list[pa.Field]:
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        return fields

    def _field(self) -> pa.Field:
        token = self._token
        if token.kind == "quoted":
            self._next += 1
            name = token.text.replace("``", "`")
        else:
            if token.kind != "word":
                self._fail("a column name was expected")
            if _NUMBER.fullmatch(token.text):
                self._fail("a number can be a column name only in backticks")
            self._next += 1
            name = token.text
        self._take(":")
        kind = self._type()
        nullable = not self._take("not")
        if not nullable:
            self._expect("null")
        if self._take("comment"):
            if self._token.kind != "text":
                self._fail("a text in quotes was expected")
            while self._token.kind == "text":
                self._next += 1
        return pa.field(name, kind, nullable)

    def _type(self) -> pa.DataType:
        token = self._token
        if token.kind != "word":
            self._fail("a type was expected")
        self._next += 1
        match token.text.lower():
            case "array":
                self._expect("<")
                element = self._type()
                self._expect(">")
                return pa.list_(pa.field("element", element))
            case "map":
                self._expect("<")
                key = self._type()
                self._expect(",")
                value = self._type()
                self._expect(">")
                return pa.map_(key, value)
            case "struct":
                self._expect("<")
                fields = [] if self._is(">") else self._fields()
                self._expect(">")
                return pa.struct(fields)
            case "decimal" | "dec" | "numeric":
                numbers = self._numbers(at_most=2) if self._is("(") else []
                precision, scale = (*numbers, *(10, 0)[len(numbers) :])
                if not 0 <= scale <= precision or not 1 <= precision <= MAX_PRECISION:
                    digits = f"a decimal has 1 to {MAX_PRECISION} digits, and 0 to all of them after the point"
                    self._fail(digits, token)
                return pa.decimal128(precision, scale)
            case "char" | "character" | "varchar":
                if not self._is("("):
                    self._fail(f"a length was expected, as in {token.text}(10)")
                self._numbers(at_most=1)
                return pa.string()
        if token.text.lower() not in TYPES:
            from difflib import get_close_matches  # Here: few schemas are wrong.

            known = [*TYPES, "decimal", "char", "varchar", "array", "map", "struct"]
            near = get_close_matches(token.text.lower(), known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            self._fail(f"unknown type; {remedy}", token)
        return TYPES[token.text.lower()]

    def _numbers(self, at_most: int) -> list[int]:
        """Whole numbers in parentheses."""
        self._expect("(")
        numbers: list[int] = []
        while not numbers or (len(numbers) < at_most and self._take(",")):
            if not (self._token.kind == "word" and self._token.text.isdecimal()):
                self._fail("a whole number was expected")
            numbers.append(int(self._token.text))
            self._next += 1
        self._expect(")")
        return numbers

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, text: str) -> bool:
        """Consume the next token if it is this mark or word. Returns whether it was."""
        found = self._is(text)
        self._next += found
        return found

    def _is(self, text: str, token: _Token | None = None) -> bool:
        """Whether the next token, or the given one, is this mark or word. A name in backticks is neither."""
        token = token or self._token
        return token.kind in ("mark", "word") and token.text.lower() == text

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self._fail(f"{text!r} was expected" if len(text) == 1 else f"{text.upper()} was expected")

    def _fail(self, problem: str, token: _Token | None = None) -> NoReturn:
        token = token or self._token
        place = f"at character {token.start + 1}, {token.text!r}" if token.kind != "end" else "at its end"
        raise ConfigurationError(f"schema {describe(self._ddl)}: {place}: {problem}")
