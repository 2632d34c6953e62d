"""`ModelEnricher` and `EmbeddingEnricher`: what they ask, and which row or vector the answer is (laws M1 and M2)."""

from __future__ import annotations

import asyncio
import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from asyncio_operator import ConfigurationError, EnricherError, ResultError, Retry
from asyncio_operator.lookup import Lookup
from asyncio_operator.testing import FakeAnswer, FakeRequest, FakeService
from enrichers import EmbeddingEnricher, ModelEnricher
from enrichers.models.chat import row_schema, stray
from tests.enrichers.helpers import failure, opened
from tests.enrichers.model_service import asked_of, completion, model, saying, vectors

UTC = datetime.UTC


async def test_M1_one_text_with_columns_in_braces_gives_one_row() -> None:
    async with saying(lambda text: {"mood": text, "stars": len(text)}) as service:
        enricher = model(
            service,
            prompt="{title}, {stars}: {text}. {title}?",
            schema="mood string NOT NULL, stars int",
            system="Judge.",
            api_key="sk-test",
            max_tokens=20,
            temperature=0,
            extra={"seed": 7},
        )
        assert enricher.key_schema().names == ["title", "stars", "text"]
        async with opened(enricher):
            row = await enricher.lookup(("Ünï", 5, 'a "b"\n{c}'))
    assert row == {"mood": 'Ünï, 5: a "b"\n{c}. Ünï?', "stars": 23}
    [request] = service.requests
    assert (request.method, request.path, request.headers["authorization"]) == (
        "POST",
        "/v1/chat/completions",
        "Bearer sk-test",
    )
    body = request.json()
    form = body.pop("response_format")
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "row", True)
    assert form["json_schema"]["schema"] == row_schema(enricher.schema())
    assert body == {
        "model": "small",
        "messages": [
            {"role": "system", "content": "Judge."},
            {"role": "user", "content": 'Ünï, 5: a "b"\n{c}. Ünï?'},
        ],
        "max_tokens": 20,
        "temperature": 0,
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        ("{{x}} {text}", "{x} T"),
        ("{{text}} {text}", "{text} T"),
        ('{text} {"a": [1]} {} { text } {1} {a.b} {a-b}', 'T {"a": [1]} {} { text } {1} {a.b} {a-b}'),
        ("{{{text}}} {{ }} }{text}{", "{{text}} {{ }} }T{"),
        ("{text}", "T"),
    ],
)
async def test_M1_braces_around_a_name_are_a_column_doubled_they_are_text_and_others_stay(
    prompt: str, sent: str
) -> None:
    async with saying({"mood": "ok"}) as service, opened(model(service, prompt=prompt)) as enricher:
        await enricher.lookup("T")
    assert asked_of(service.requests[0]) == sent


async def test_M1_a_prompt_that_is_a_column_alone_is_sent_as_text_whatever_its_type_is() -> None:
    async with saying({"mood": "ok"}) as service, opened(model(service, prompt="{keys}")) as enricher:
        for key in (7, 1.5, True, datetime.date(2024, 2, 29), Decimal("1.10")):
            await enricher.lookup(key)
    assert [asked_of(request) for request in service.requests] == ["7", "1.5", "true", "2024-02-29", "1.10"]


async def test_M1_system_text_and_names_of_columns_are_sent_as_they_are() -> None:
    async with saying({"{text}": "ok"}) as service:
        enricher = model(service, system="{text} {{text}} {other}", schema=pa.schema([("{text}", pa.string())]))
        async with opened(enricher):
            assert await enricher.lookup("T") == {"{text}": "ok"}
    assert service.requests[0].json()["messages"][0]["content"] == "{text} {{text}} {other}"


@pytest.mark.parametrize(
    ("column", "said", "value"),
    [
        (
            "decimal(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("timestamp", '"2024-02-29T13:00:00+01:00"', datetime.datetime(2024, 2, 29, 12, tzinfo=UTC)),
        ("string", "null", None),
        ("array<struct<k string, v int>>", '[{"k": "a", "v": null}, null]', [{"k": "a", "v": None}, None]),
    ],
)
async def test_M1_values_arrive_in_the_type_of_their_column(column: str, said: str, value: Any) -> None:
    async with saying(f'{{"v": {said}}}') as service, opened(model(service, schema=f"v {column}")) as enricher:
        assert await enricher.lookup("T") == {"v": value}


@pytest.mark.parametrize(
    "column", ["map<string, int>", "array<map<string, int>>", "struct<m: map<string, int>>", "binary"]
)
def test_M1_a_column_that_a_strict_schema_cannot_describe_is_refused_at_once(column: str) -> None:
    with pytest.raises(ConfigurationError, match="which a strict JSON schema cannot describe; make it") as caught:
        ModelEnricher("small", prompt="{text}", schema=f"v {column}")
    assert "'v" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        ("v decimal(5,2)", '{"v": 1.111}'),
        ("v int", '{"v": "3"}'),
        ("v string NOT NULL", '{"v": null}'),
        ("v struct<a: int NOT NULL>", '{"v": {"a": null}}'),
        ("v struct<a: int>", '{"v": {}}'),
        ("v array<struct<a: int>>", '{"v": [{"a": 1, "b": 2}]}'),
        *(
            ("mood string, stars int", content)
            for content in (
                *("not JSON", "", "[]", "null", None, '{"mood": "ok"}', '{"mood": "ok", "stars": 1, "why": "?"}'),
                *('{"mood": "ok", "mood": "bad", "stars": 1}', '{"sentiment": "ok", "points": 1}'),
                *('```json\n{"mood": "ok", "stars": 1}\n```', '{"mood": "ok", "stars": 1} done'),
            )
        ),
    ],
)
async def test_M1_content_that_is_not_of_the_schema_does_not_fit(schema: str, content: Any) -> None:
    async with saying(content) as service, opened(model(service, schema=schema)) as enricher:
        error = await failure(enricher, "T")
    assert "key 'T': the answer does not fit schema: " in str(error)
    assert isinstance(error, ResultError)
    assert (error.retryable, error.any_key) == (True, False)


async def test_M1_a_refusal_a_cut_and_a_misfit_say_which_they_are_and_a_refusal_is_not_retried() -> None:
    answers = {
        "refused": completion(None, refusal="I cannot help with that."),
        "filtered": completion('{"mo', finish="content_filter"),
        "cut": completion('{"mood": "o', finish="length"),
        "misfit": completion("good"),
    }
    said = {}
    async with (
        FakeService(handler=lambda request: answers[asked_of(request)]) as service,
        Lookup(model(service), retry=Retry(2, on="retryable")) as lookup,
    ):
        for text in answers:
            with pytest.raises(EnricherError) as caught:
                await lookup.get(text)
            said[text] = str(caught.value)
    assert "the model refuses to answer: 'I cannot help with that.'" in said["refused"]
    assert "the model refuses to answer: the content filter" in said["filtered"]
    assert "the answer was cut by length" in said["cut"]
    assert "the answer does not fit schema: it is not JSON" in said["misfit"]
    asked = [asked_of(request) for request in service.requests]
    assert [asked.count(text) for text in answers] == [1, 1, 2, 2]


async def test_M1_a_misfit_may_be_right_the_next_time_unless_the_temperature_is_0() -> None:
    for temperature, found in [(None, True), (1, True), (0, False)]:
        said = iter(["?", {"mood": "ok"}])
        async with (
            saying(lambda _, said=said: next(said)) as service,
            Lookup(model(service, temperature=temperature)) as lookup,
        ):
            if found:
                assert await lookup.get("T") == {"mood": "ok"}
            else:
                with pytest.raises(EnricherError, match="does not fit schema"):
                    await lookup.get("T")


async def test_M1_an_address_of_azure_gets_its_header_and_keeps_its_query() -> None:
    async with saying({"mood": "ok"}) as service:
        base = service.url + "/openai/deployments/cheap?api-version=2024-10-21"
        async with opened(model(service, base_url=base, api_key="az-key")) as enricher:
            await enricher.lookup("T")
    [request] = service.requests
    assert request.target == "/openai/deployments/cheap/chat/completions?api-version=2024-10-21"
    assert request.headers["api-key"] == "az-key"
    assert "authorization" not in request.headers


async def test_M1_a_key_may_come_from_a_function_and_is_asked_for_again_after_401() -> None:
    keys = iter(["old", "new"])

    async def key() -> str:
        return next(keys)

    async with saying({"mood": "ok"}) as service:
        service.token = "new"
        async with opened(model(service, api_key=key, base_url=service.url + "/v1/")) as enricher:
            assert await enricher.lookup("T") == {"mood": "ok"}
    assert [request.headers["authorization"] for request in service.requests] == ["Bearer old", "Bearer new"]
    assert {request.path for request in service.requests} == {"/v1/chat/completions"}


async def test_M1_a_service_without_a_key_gets_no_header() -> None:
    async with saying({"mood": "ok"}) as service, opened(model(service)) as enricher:
        await enricher.lookup("T")
    assert not [name for name in ("authorization", "api-key") if name in service.requests[0].headers]


def test_M1_the_schema_is_taken_in_the_order_of_its_columns_with_null_where_it_is_allowed() -> None:
    schema = pa.schema(
        [
            pa.field("b", pa.string(), nullable=False),
            pa.field("a", pa.struct([pa.field("y", pa.float64(), False), pa.field("x", pa.bool_())])),
            pa.field("tags", pa.list_(pa.field("item", pa.large_string(), False)), False),
        ]
    )
    assert row_schema(schema) == {
        "type": "object",
        "properties": {
            "b": {"type": "string"},
            "a": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"y": {"type": "number"}, "x": {"type": ["boolean", "null"]}},
                        "required": ["y", "x"],
                        "additionalProperties": False,
                    },
                    {"type": "null"},
                ]
            },
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["b", "a", "tags"],
        "additionalProperties": False,
    }
    assert [*row_schema(schema)["properties"]] == ["b", "a", "tags"]


def test_M1_the_shape_of_an_answer_is_checked_at_any_depth() -> None:
    schema = row_schema(pa.schema([("a", pa.list_(pa.struct([("x", pa.int32())])))]))
    assert stray({"a": [{"x": 1}, None]}, schema) is None
    assert stray({"a": None}, schema) is None
    assert stray({"a": [{"x": 1}, {}]}, schema) == "the field 'a[1].x' is missing"
    assert stray({"a": [{"x": 1, "y": 2}]}, schema) == "the field 'a[0].y' is not a column"
    assert stray({"b": 1}, schema) == "the field 'a' is missing"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": ""}, "model is ''"),
        ({"model": "\ud800"}, "model is"),
        ({"prompt": "no column"}, "prompt names no column"),
        ({"prompt": "{{text}}"}, "prompt names no column"),
        ({"prompt": None}, "prompt is of type NoneType"),
        ({"system": " "}, "system is empty"),
        ({"api_key": "sk\n"}, r"api_key \(not shown.*printable ASCII"),
        ({"api_key": 7}, "api_key is of type int"),
        ({"base_url": "localhost:1"}, "base_url .*does not begin with http"),
        ({"base_url": "https://host/openai/deployments/{name}"}, "base_url has a brace"),
        ({"price": 0.15}, r"price is 0.15; .*\(input, output\)"),
        ({"price": (1, -1)}, "price is"),
        ({"price": (1, 10**400)}, "price is"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": 10**400}, "temperature is"),
        ({"extra": {"messages": []}}, "extra has 'messages'"),
        ({"extra": [1]}, "extra is of type list"),
        ({"max_tokns": 1}, "max_tokens"),
        ({"response_format": {}}, "it is made of schema="),
        ({"top_p": 1}, "extra="),
    ],
)
def test_M1_a_wrong_argument_is_refused_when_the_enricher_is_made(options: Any, says: str) -> None:
    given = {"model": "small", "prompt": "{text}", "schema": "mood string"} | options
    with pytest.raises(ConfigurationError, match=says):
        ModelEnricher(given.pop("model"), **given)


def several(change: Any = lambda rows: rows, **options: Any) -> FakeService:
    """A service that answers each text of a list with its length, from the last to the first."""

    def answer(request: FakeRequest) -> Any:
        texts = json.loads(asked_of(request)) if asked_of(request)[:1] == "[" else None
        if texts is None:
            return completion({"mood": asked_of(request), "n": 1.5})
        rows = [{"number": one["number"], "row": {"mood": one["text"], "n": 1.5}} for one in reversed(texts)]
        return completion({"rows": change(rows)}, **options)

    return FakeService(handler=answer)


async def test_M1_a_batch_sends_the_prompts_of_several_rows_with_their_numbers_and_gives_each_its_row() -> None:
    keys = [('a "b"\n', 1), ("é{who}", 2), ("c", 3)]
    async with several() as service:
        enricher = model(
            service,
            prompt="{{x}} {text}: {n}",
            schema="mood string, n decimal(4,1)",
            system="Briefly.",
            max_tokens=20,
            batch=3,
        )
        assert enricher.max_batch == 3
        async with opened(enricher):
            found = await enricher.lookup_many([keys[0], (None, 1), *keys[1:]])
            alone = await enricher.lookup_many([keys[0]])
    prompts = [f"{{x}} {text}: {n}" for text, n in keys]
    rows = [{"mood": prompt, "n": Decimal("1.5")} for prompt in prompts]
    assert found == [rows[0], None, *rows[1:]]
    assert alone == rows[:1]
    many, one = (request.json() for request in service.requests)
    assert json.loads(many["messages"][1]["content"]) == [{"number": i, "text": t} for i, t in enumerate(prompts)]
    assert many["messages"][0]["content"].endswith("with its number.\n\nBriefly.")
    assert (many["max_tokens"], one["max_tokens"]) == (60, 20)
    assert one["messages"] == [{"role": "system", "content": "Briefly."}, {"role": "user", "content": prompts[0]}]
    schema = many["response_format"]["json_schema"]["schema"]
    row = one["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["rows"]["items"]["properties"] == {"number": {"type": "integer"}, "row": row}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (lambda rows: rows[:-1], {}),
        (lambda rows: [*rows, rows[0]], {}),
        (lambda rows: [rows[0] | {"number": 7}, *rows[1:]], {}),
        (lambda rows: [rows[0] | {"number": rows[1]["number"]}, *rows[1:]], {}),
        (lambda rows: [rows[0] | {"row": {"mood": 1, "n": 1}}, *rows[1:]], {}),
        (lambda rows: [rows[0] | {"row": None}, *rows[1:]], {}),
        (lambda rows: [rows[0]["row"], *rows[1:]], {}),
        (lambda _: None, {}),
        (lambda rows: rows, {"finish": "length"}),
        (lambda rows: rows, {"refusal": "no"}),
    ],
)
async def test_M1_a_batch_whose_answer_is_not_right_is_divided(change: Any, options: Any) -> None:
    async with (
        several(change, **options) as service,
        Lookup(model(service, schema="mood string, n decimal(4,1)", batch=2), batching=2) as lookup,
    ):
        found = await asyncio.gather(*map(lookup.get, ["a", "b"]))
    assert [row["mood"] for row in found if isinstance(row, dict)] == ["a", "b"]
    assert len(service.requests) == 3


# -- vectors (M2)


def embedding(service: FakeService, **options: Any) -> EmbeddingEnricher:
    return EmbeddingEnricher("small", **({"base_url": service.url + "/v1"} | options))


def of_text(text: str) -> list[float]:
    return [float(len(text)), 0.5, -1]


async def test_M2_each_text_gets_its_vector_by_index_many_texts_in_a_request() -> None:
    texts = ["x" * n + '"é\n{keys}' for n in range(25)]
    async with vectors(of_text) as service:
        enricher = embedding(service, text="review", max_batch=10, api_key="sk-test")
        assert enricher.schema() == pa.schema([("embedding", pa.list_(pa.field("element", pa.float32())))])
        assert enricher.key_schema().names == ["review"]
        async with Lookup(enricher, batching=10) as lookup:
            found = await asyncio.gather(*map(lookup.get, texts))
    assert found == [{"embedding": of_text(text)} for text in texts]
    assert sorted(len(request.json()["input"]) for request in service.requests) == [5, 10, 10]
    for request in service.requests:
        assert (request.path, request.headers["authorization"]) == ("/v1/embeddings", "Bearer sk-test")
        assert {*request.json()} == {"model", "input"}


async def test_M2_one_text_is_a_list_of_one_and_numbers_are_sent_as_text() -> None:
    async with vectors(of_text) as service, opened(embedding(service, dimensions=3)) as enricher:
        assert await enricher.lookup("four") == {"embedding": [4.0, 0.5, -1.0]}
        assert await enricher.lookup_many([12, None, True]) == [
            {"embedding": [2.0, 0.5, -1.0]},
            None,
            {"embedding": [4.0, 0.5, -1.0]},
        ]
    assert [request.json() for request in service.requests] == [
        {"model": "small", "input": ["four"], "dimensions": 3},
        {"model": "small", "input": ["12", "true"], "dimensions": 3},
    ]


@pytest.mark.parametrize(
    "places", [[0, 0], [0, 2], [1], [0, 1, 2], [None, None], ["0", "1"], [False, True], [0.0, 1.0]], ids=str
)
async def test_M2_a_list_without_each_place_once_is_an_error_of_all_its_texts(places: list[Any]) -> None:
    data = [{"index": place, "embedding": [1.0]} for place in places]
    async with FakeService(handler=lambda _: {"data": data}) as service, opened(embedding(service)) as enricher:
        error = await failure(enricher, "a", "b")
    assert "each of 0 to 1 was expected once" in str(error)
    assert error.any_key


NO_COMPLETIONS: list[Any] = [{}, [], {"choices": []}, {"choices": [{}]}, {"error": {"message": "x"}}, 7]
NO_VECTORS: list[Any] = [{}, [], {"data": {}}, {"error": "x"}]


@pytest.mark.parametrize(
    ("make", "answer", "says"),
    [
        *((model, answer, "which is not a chat completion; correct base_url") for answer in NO_COMPLETIONS),
        *((embedding, answer, "which is not a list of embeddings; correct base_url") for answer in NO_VECTORS),
    ],
)
async def test_M1_M2_an_answer_of_another_form_is_an_error_that_names_base_url(
    make: Any, answer: Any, says: str
) -> None:
    async with FakeService(handler=lambda _: FakeAnswer(answer)) as service, opened(make(service)) as enricher:
        error = await failure(enricher, "T")
    assert says in str(error)
    assert error.retryable is False


@pytest.mark.parametrize("make", [model, embedding])
async def test_M1_M2_a_missing_path_or_model_is_an_error_of_all_texts_and_no_miss(make: Any) -> None:
    answer = FakeAnswer({"error": {"message": "no model 'x'"}}, 404)
    async with FakeService(handler=lambda _: answer) as service, opened(make(service)) as enricher:
        error = await failure(enricher, "a", "b")
    assert "404" in str(error)
    assert ("no model 'x'" in str(error)) is (make is model), "words about several texts may hold one"
    assert (error.any_key, error.retryable) == (True, False)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"embedding": [1.0, 2.0]}, "the embedding has 2 numbers, and dimensions is 3"),
        ({"embedding": [1.0, "x", 2.0]}, "a number is needed"),
        ({"embedding": [1.0, 1e300, 2.0]}, "it is too large"),
        ({"embedding": "AACAPw=="}, "an array is needed"),
        ({"embedding": None}, "has no embedding"),
        ({}, "has no embedding"),
    ],
)
async def test_M2_what_is_no_vector_is_an_error_of_its_text(entry: Any, says: str) -> None:
    data = [{"index": 0} | entry]
    async with (
        FakeService(handler=lambda _: {"data": data}) as service,
        opened(embedding(service, dimensions=3)) as enricher,
    ):
        error = await failure(enricher, "a")
    assert "key 'a': " in str(error)
    assert says in str(error)
    assert error.retryable is False


async def test_M2_a_text_that_the_service_refuses_does_not_disturb_the_others() -> None:
    def answer(request: FakeRequest) -> Any:
        texts = request.json()["input"]
        if "" in texts:
            return FakeAnswer({"error": {"message": "input cannot be empty"}}, 400)
        return {"data": [{"index": i, "embedding": of_text(text)} for i, text in enumerate(texts)]}

    async with FakeService(handler=answer) as service, Lookup(embedding(service), batching=8) as lookup:
        found = await asyncio.gather(*map(lookup.get, ["a", "bb", "", "ccc"]), return_exceptions=True)
    assert [row["embedding"][0] for row in found if isinstance(row, dict)] == [1.0, 2.0, 3.0]
    assert "input cannot be empty" in str(found[2])


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("text", "", "text is ''"),
        ("text", ["a", "b"], "text is"),
        ("text", "a b", "text is 'a b'"),
        ("price", "0.02", "price is '0.02'"),
        ("price", float("nan"), "price is nan"),
        ("model", "\ud800", "model is"),
        ("prompt", "x", "prompt"),
    ],
)
def test_M2_a_wrong_argument_is_refused_when_the_enricher_is_made(option: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        EmbeddingEnricher(**{"model": "small", option: value})
