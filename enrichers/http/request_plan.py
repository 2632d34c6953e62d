"""What is sent for a key, or for a batch of keys: prepared once, filled in for each request.

A key can only fill its placeholder, whatever characters it has: a segment of the path, a value of the query, a
header, a value in the JSON body. Host, port and credentials contain no part of a key.

Parameters and headers with ``{keys}`` are only for batches, those with a part of the key are only for single keys, and
the others are sent with both. This module knows no connection.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from asyncio_operator import ConfigurationError
from asyncio_operator.services.secrets import Secrets, of_header, of_named
from enrichers.http.headers import check_headers
from enrichers.http.keys import UnsendableError, header_list, header_text, json_of, quoted, quoted_list, text_of
from enrichers.http.template import KEYS, Names, Piece, Values, fill, json_pieces, lacks, merged, slots
from enrichers.http.url_parts import path_pieces, query_of, query_pieces, read_url, shown_url


class Request(NamedTuple):
    """What is sent. `headers` does not contain those of the session, nor those that a function returns. With `is_sent`
    the request changes something: it stays what it is through redirects, and only the status of its answer counts."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    is_sent: bool = False


class Plan:
    """How a request is made from values: the parts of a key, or one list of keys."""

    def __init__(
        self,
        method: str,
        url: Sequence[Piece],
        headers: Mapping[str, tuple[Piece, ...]],
        body: Sequence[Piece] | None,
        *,
        idempotency_header: str | None,
        max_url_length: int,
        optional: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._method = method
        self._url = merged(url)
        self._fixed = {name: fill(value, ()) for name, value in headers.items() if _is_fixed(value)}
        self._filled = [
            (name, value, optional.get(name, ())) for name, value in headers.items() if not _is_fixed(value)
        ]
        self._body = None if body is None else merged(body)
        self._idempotency_header = None if method == "GET" else idempotency_header
        self._max_url_length = max_url_length

    def request(self, values: Values, row_id: str = "") -> Request:
        """The request for these values; with the name of a row it has an idempotency key of its own.

        Raises:
            UnsendableError: a value cannot be written in its place.
        """
        url = fill(self._url, values)
        if len(url) > self._max_url_length:
            problem = f"with it the URL has {len(url)} characters, more than max_url_length={self._max_url_length}"
            raise UnsendableError(problem)
        body = None if self._body is None else fill(self._body, values).encode()
        header = self._idempotency_header or (row_id and self._method != "GET" and "Idempotency-Key")
        if not (self._filled or header):
            return Request(self._method, url, self._fixed, body)
        headers = dict(self._fixed)
        for name, pieces, optional in self._filled:
            if not (optional and lacks(optional, values)):
                headers[name] = fill(pieces, values)
        if header and header.lower() not in map(str.lower, headers):
            # Equal for equal requests of a row, in whatever process and however often they are sent.
            parts = [self._method.encode(), url.encode(), body or b"", row_id.encode()]
            digest = hashlib.sha256(b"\0".join(parts)).digest()
            headers[header] = str(uuid.UUID(bytes=digest[:16], version=5))
        return Request(self._method, url, headers, body)


class Plans(NamedTuple):
    """The plan for one key, the plan for several or None, their secrets, and the URL as it is shown."""

    single: Plan
    batch: Plan | None
    secrets: Secrets
    shown: str


@dataclass(kw_only=True)
class Planner:
    """Makes the plans of a specification from the arguments that decide what is sent, and collects its secrets.

    Attributes:
        parts: the names of the parts of a key.

    Raises:
        ConfigurationError: it names the wrong argument and the problem. No URL and no value is shown.
    """

    url: str
    parts: Sequence[str]
    method: str
    params: Mapping[str, Any] | None
    headers: object
    json_body: Any
    batch_url: str | None
    batch_json_body: Any
    idempotency_header: str | None
    max_url_length: int
    optional: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._secrets = Secrets()
        self._names = Names(self.parts, one=True, many=self.batch_url is not None, optional=self.optional)
        self._params = _parameters(self._names, self.params, self._secrets)
        headers = self.headers if isinstance(self.headers, Mapping) else {}
        self._headers = _headers(self._names, headers, self._secrets)

    def plans(self) -> Plans:
        """The plan for one key, and that for several if there is a `batch_url`."""
        names = Names(self.parts, one=True, many=False, optional=self.optional)
        single, used = self._plan("url", self.url, names, self.method, "json_body", self.json_body)
        unused = [] if len(self.parts) == 1 and "key" in used else [part for part in self.parts if part not in used]
        if unused:
            raise ConfigurationError(
                f"{{{unused[0]}}} is missing in url, params, headers and json_body, so every key would get the same "
                "answer; write it, in single braces, where the key belongs"
            )
        batch = None if self.batch_url is None else self._batch(self.batch_url)
        return Plans(single, batch, self._secrets, shown_url(read_url(self.url, "url")))

    def _batch(self, url: str) -> Plan:
        """The plan for several keys."""
        method, argument, body = self.method, "json_body", self.json_body
        if self.batch_json_body is not None:
            method = "POST" if method == "GET" else method
            argument, body = "batch_json_body", self.batch_json_body
        else:
            json_pieces(self._names, body, "json_body", used := set[str]())
            if used:
                raise ConfigurationError("json_body is for one key; with a batch_url, pass batch_json_body too")
        names = Names(self.parts, one=False, many=True)
        plan, used = self._plan("batch_url", url, names, method, argument, body)
        if KEYS not in used:
            raise ConfigurationError(
                "{keys} is missing in batch_url, params, headers and batch_json_body; write it where the list of "
                "the keys belongs"
            )
        if len(self.parts) > 1 and not _holds(self.batch_json_body, f"{{{KEYS}}}"):
            raise ConfigurationError(
                f"the key has {len(self.parts)} parts; several such keys cannot be written as text: pass "
                'batch_json_body with "{keys}", which is replaced by a list of objects'
            )
        return plan

    def _plan(self, where: str, url: str, names: Names, method: str, argument: str, body: Any) -> tuple[Plan, set[str]]:
        """A plan, and the names in braces that it uses. Parameters and headers with other names are left out."""
        place = read_url(url, where)
        own = set(names.taken)
        used: set[str] = set()
        pieces = [place.origin, *path_pieces(names, place.path, where, used)]
        query: list[tuple[tuple[Piece, ...], tuple[int, ...]]] = []
        for text in place.query.split("&") if place.query else ():
            own_names: set[str] = set()
            item = query_pieces(names, text, where, own_names, self._secrets)
            query.append((item, names.optional_in(own_names)))
            used |= own_names
        for parameter in self._params:
            if parameter.names <= own:
                used |= parameter.names
                query.append((parameter.pieces, names.optional_in(parameter.names)))
        pieces += query_of(query, "?" if place.query == "" else "")
        written = None if body is None else json_pieces(names, body, argument, used)
        self._secrets.add(_secrets_of_json(names, body, argument, ""))
        sent: dict[str, tuple[Piece, ...]] = {}
        if body is not None:
            sent["Content-Type"] = ("application/json",)
        if place.authorization is not None:
            self._secrets.add([place.password, *of_header("Authorization", place.authorization)])
            sent["Authorization"] = (place.authorization,)
        for header in self._headers:
            if header.names <= own:
                used |= header.names
                for name in [name for name in sent if name.lower() == header.name.lower()]:
                    if name == "Authorization":
                        raise ConfigurationError("the URL contains a user, and headers contain Authorization; pass one")
                    del sent[name]
                sent[header.name] = header.pieces
        plan = Plan(
            method,
            pieces,
            sent,
            written,
            idempotency_header=self.idempotency_header,
            max_url_length=self.max_url_length,
            optional={header.name: names.optional_in(header.names) for header in self._headers},
        )
        return plan, used


class _Item(NamedTuple):
    """A parameter or a header, and the names in braces that it uses."""

    name: str
    pieces: tuple[Piece, ...]
    names: set[str]


def _parameters(names: Names, params: Mapping[str, Any] | None, secrets: Secrets) -> list[_Item]:
    if params is not None and not isinstance(params, Mapping):
        raise ConfigurationError(f"params is of type {type(params).__name__}; it must be a mapping of names to values")
    items = []
    for name, value in (params or {}).items():
        where = f"params: {name!r}"
        if not isinstance(name, str):
            raise ConfigurationError(f"params has the name {name!r}; it must be a string")
        for one in value if isinstance(value, list | tuple) else [value]:
            try:
                taken = names.take_apart(one, where, secret=True) if isinstance(one, str) else [text_of(one)]
                secrets.add([text for text in taken if isinstance(text, str) and of_named(name, text)])
                start = f"{quoted(name)}="
                texts = [quoted(piece) if isinstance(piece, str) else piece for piece in taken]
            except UnsendableError as error:
                raise ConfigurationError(f"{where} (value not shown): {error}") from None
            pieces = merged([start, *names.fill_in(texts, quoted, quoted_list)])
            items.append(_Item(name, pieces, _one_kind(slots(taken), where)))
    return items


def _headers(names: Names, headers: Mapping[str, str], secrets: Secrets) -> list[_Item]:
    items = []
    for name, value in check_headers(headers, "headers").items():
        where = f"headers: {name}"
        taken = names.take_apart(value, where, secret=True)
        for text in taken:
            secrets.add(of_header(name, text) if isinstance(text, str) else ())
        pieces = merged(names.fill_in(taken, header_text, header_list))
        items.append(_Item(name, pieces, _one_kind(slots(taken), where)))
    return items


def _one_kind(used: set[str], where: str) -> set[str]:
    if KEYS in used and len(used) > 1:
        raise ConfigurationError(f"{where} has {{keys}} and a part of one key; a request is for one or for several")
    return used


def _is_fixed(pieces: Iterable[Piece]) -> bool:
    return all(isinstance(piece, str) for piece in pieces)


def _holds(value: Any, wanted: str) -> bool:
    """Whether a JSON value contains this string as a whole."""
    if isinstance(value, Mapping):
        return any(_holds(item, wanted) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_holds(item, wanted) for item in value)
    return bool(value == wanted)


def _secrets_of_json(names: Names, value: Any, where: str, path: str) -> list[str]:
    """What may be secret in a JSON value. A number is secret if a name on its path suggests it."""
    if isinstance(value, Mapping):
        return [text for name, item in value.items() for text in _secrets_of_json(names, item, where, f"{path}.{name}")]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _secrets_of_json(names, item, where, path)]
    pieces = names.take_apart(value, where) if isinstance(value, str) else [json_of(value)]
    return [text for piece in pieces if isinstance(piece, str) for text in of_named(path, piece)]
