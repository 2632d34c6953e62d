"""`EmbeddingEnricher`: texts are sent to a model, many in a request, and each gets its vector.

The answer lists vectors, each with the place of its text (`index`). A list without each place once is an error of
the whole request, because then no vector can be trusted to belong to its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncio_operator import ConfigurationError
from asyncio_operator.enricher import Found, describe, named_options, positive_int
from asyncio_operator.services.secrets import Secrets
from enrichers.http.answers import Answers, UnreadableError, WrongRowError
from enrichers.http.keys import json_of, json_text
from enrichers.http.template import Piece
from enrichers.models.endpoint import LARGEST_ANSWER, NOT_HERE, OPENAI, ApiKey, ModelEndpoint, ReadRow, length_of
from enrichers.names import names_of
from enrichers.typed import MisfitError

VECTOR_BYTES = 200_000
"""Of a vector in an answer: 4,096 numbers with 20 characters, twice."""


class EmbeddingEnricher(ModelEndpoint):
    """The vector of each text, as ``embedding array<float>``, from an endpoint that speaks as OpenAI's does.

        EmbeddingEnricher("text-embedding-3-small", text="review")

    Requests, retries, limits that headers announce, and errors are as with `HttpEnricher`. Under a `Budget` a request
    weighs its tokens in ``tokens`` and, with a price, its dollars in ``usd``; estimates learn from the answers.

    Args:
        model: the name of the model.
        text: the column with the texts.
        base_url: the address of the service. ``/embeddings`` is added to its path.
        api_key: the API key, or a function without arguments that returns it, as with `ModelEnricher`.
        price: dollars for a million tokens.
        dimensions: how many numbers a vector has, for models that can make shorter ones.
        max_batch: the maximum number of texts in one request.

    Raises:
        ConfigurationError: an argument has the wrong type or value.
    """

    _path = "embeddings"
    _operation = "embeddings"
    _paid_answers = False

    @named_options("EmbeddingEnricher", NOT_HERE)
    def __init__(
        self,
        model: str,
        *,
        text: str = "text",
        base_url: str = OPENAI,
        api_key: ApiKey = None,
        price: float | None = None,
        dimensions: int | None = None,
        max_batch: int = 100,
    ) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(f"text is {describe(text)}; it must be the name of one column")
        self._dimensions = None if dimensions is None else positive_int("dimensions", dimensions)
        most = positive_int("max_batch", max_batch)
        super().__init__(
            model,
            base_url=base_url,
            api_key=api_key,
            price=price,
            schema="embedding array<float>",
            parts=names_of("text", text, words=True),
            max_response_bytes=max(LARGEST_ANSWER, most * VECTOR_BYTES),
        )
        self.max_batch = most

    def length(self, keys: Sequence[Any]) -> int:
        """See `ModelEndpoint`."""
        return sum(map(length_of, keys))

    def _sent(self) -> Mapping[str, object]:
        return {"dimensions": self._dimensions}

    def _bodies(self) -> tuple[list[Piece], list[Piece] | None]:
        dimensions = "" if self._dimensions is None else f',"dimensions":{self._dimensions}'
        start, end = f'{{"model":{json_of(self._model)},"input":[', f"]{dimensions}}}"
        one: list[Piece] = [start, lambda values: json_text(values[0]), end]
        return one, [start, lambda values: ",".join([json_text(text) for text in values[0]]), end]

    def _answers(self, secrets: Secrets) -> Answers:
        return _Vectors(self._schema, self._dimensions, secrets)


class _Vectors(Answers):
    """How lists of vectors become rows."""

    def __init__(self, schema: Any, dimensions: int | None, secrets: Secrets) -> None:
        super().__init__(schema, None, None, secrets.show)
        self._dimensions = dimensions

    def parse(self, body: bytes, content_type: str) -> Any:
        """See `Answers.parse`. No text is to blame for an answer that is not JSON."""
        try:
            return super().parse(body, content_type)
        except UnreadableError as error:
            error.any_key = True
            raise

    def found(self, entry: Any) -> Found:
        """The row of the only text, or the one that `entries` has read."""
        return {**(entry if type(entry) is ReadRow else self.entries(entry, [None])[0])}

    def entries(self, answer: Any, texts: Sequence[str | None]) -> list[Any]:
        """The rows of an answer, in the order of its texts."""
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, list):
            raise UnreadableError(
                f"the answer is {self._show(answer)}, which is not a list of embeddings; correct base_url", any_key=True
            )
        places = [entry.get("index") if isinstance(entry, Mapping) else None for entry in data]
        if len(data) != len(texts) or {*map(repr, places)} != {*map(repr, range(len(texts)))}:
            raise UnreadableError(
                f"the answer has {len(data)} embeddings for {len(texts)} texts, with the index {self._show(places)}; "
                f"each of 0 to {len(texts) - 1} was expected once",
                any_key=True,
            )
        return [self._vector(entry) for entry in sorted(data, key=lambda entry: int(entry["index"]))]

    def _vector(self, entry: Any) -> ReadRow:
        vector = entry.get("embedding")
        if self._dimensions is not None and isinstance(vector, list) and len(vector) != self._dimensions:
            raise WrongRowError(f"the embedding has {len(vector)} numbers, and dimensions is {self._dimensions}")
        if vector is None:
            raise WrongRowError("the entry of the text has no embedding")
        try:
            return ReadRow(self._row({"embedding": vector}))
        except MisfitError as misfit:
            problem = misfit.message_with(lambda value: self._show(value, 100))
        raise WrongRowError(problem)
