"""Reviews of customers, classified and embedded by a model: within its limits, within a sum of money, each text once.

    python -m examples.model_calls
    python -m examples.model_calls --rows 20000
    python -m examples.model_calls --spend 0.01

The service speaks as OpenAI's does, runs in this program, and needs no network. It limits requests and tokens
in a minute, answers 429 to what is more, and counts the money. A minute of this service lasts two seconds, so
that you need not wait. `classified` and `embedded`, below, do the work. The rest starts the service and Spark, and
prints.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from examples.stage import Stage, job, local_spark, positive, require_java, run, step, workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from asyncio_operator import Budget
    from asyncio_operator.spark import EnrichmentMetrics
    from asyncio_operator.testing import FakeRequest, FakeService

MINUTE = 2.0
"""Seconds of a minute of the service."""

CALLS, TOKENS = 400, 20_000
"""What the service allows in a minute."""

PRICE = (2.0, 8.0)
"""Dollars for a million tokens: of what is sent, and of answers."""

TEXTS_PER_CALL = 50
"""Texts in one request for embeddings."""

QUESTION = "Say of this review: is it positive or negative, what is it about, and must a person read it today?"

ANSWER_TOKENS = 20
"""The maximum of tokens in an answer. A request reserves them beforehand."""

TOKEN = "demo-token"


def budget(spend: float) -> Budget:
    """What all tasks may use together. A little less than the service allows: requests do not travel equally fast."""
    from asyncio_operator import Budget, Limit

    return Budget(
        "model-calls",
        Limit(CALLS * 95 // 100, per=MINUTE),
        Limit(TOKENS * 95 // 100, per=MINUTE, unit="tokens"),
        spend={"usd": spend},
    )


def classified(texts: DataFrame, url: str, limits: Budget, metrics: EnrichmentMetrics) -> DataFrame:
    """The texts with what the model says of each, as columns, and with the reason where it says nothing useful."""
    from asyncio_operator.spark import enrich
    from enrichers import ModelEnricher

    model = ModelEnricher(
        "small",
        prompt="{text}",
        schema="sentiment string NOT NULL, topic string, urgent boolean NOT NULL",
        system=QUESTION,
        base_url=url + "/v1",
        api_key=TOKEN,
        price=PRICE,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
    )
    return enrich(
        texts,
        model,
        on="text",
        budget=limits,
        timeout=60.0,
        on_error="null",
        status_column="model",
        metrics=metrics,
    )


def embedded(texts: DataFrame, url: str, limits: Budget, metrics: EnrichmentMetrics) -> DataFrame:
    """The texts with a vector for each. The endpoint takes many texts in one request."""
    from asyncio_operator import Batching
    from asyncio_operator.spark import enrich
    from enrichers import EmbeddingEnricher

    vectors = EmbeddingEnricher(
        "vectors", base_url=url + "/v1", api_key=TOKEN, price=PRICE[0], max_batch=TEXTS_PER_CALL
    )
    # A request waits up to a second for its texts: fewer requests matter more here than time.
    full = Batching(TEXTS_PER_CALL, linger=1.0)
    return enrich(texts, vectors, on="text", batching=full, budget=limits, timeout=60.0, metrics=metrics)


# -- the service

TOPICS = ("delivery", "quality", "price", "support")


class Model:
    """What the service answers, and what it has earned. It reads reviews as simply as this."""

    def __init__(self) -> None:
        self.earned = 0.0

    def answer(self, request: FakeRequest) -> Any:
        """The answer to a request for a chat or for embeddings; None for anything else."""
        body = request.json()
        if request.path == "/v1/chat/completions":
            content = self._read(body["messages"][-1]["content"])
            prompt = sum(tokens_of(one["content"]) for one in body["messages"])
            message = {"role": "assistant", "content": content}
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            return answer | self._used(prompt, tokens_of(content))
        if request.path == "/v1/embeddings":
            vectors = [{"index": place, "embedding": vector(text)} for place, text in enumerate(body["input"])]
            return {"data": vectors} | self._used(sum(map(tokens_of, body["input"])), 0)
        return None

    def _read(self, review: str) -> str:
        if "???" in review:
            return "I am not sure what this means."
        topic = next((one for one in TOPICS if one in review), "other")
        sentiment = "negative" if "bad" in review or "late" in review else "positive"
        return json.dumps({"sentiment": sentiment, "topic": topic, "urgent": "refund" in review})

    def _used(self, prompt: int, answer: int) -> dict[str, Any]:
        self.earned += (prompt * PRICE[0] + answer * PRICE[1]) / 1e6
        return {"usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}}


def tokens_of(text: str) -> int:
    """How this service counts the tokens of a text."""
    return len(text) // 4 + 1


def vector(text: str) -> list[float]:
    """Eight numbers drawn from a text."""
    drawn = random.Random(zlib.crc32(text.encode()))
    return [round(drawn.uniform(-1, 1), 3) for _ in range(8)]


def reserved(request: FakeRequest) -> dict[str, float]:
    """What the service counts of a request before it answers: the texts, and the longest answer that is allowed."""
    body = request.json()
    texts = [one["content"] for one in body["messages"]] if "messages" in body else body["input"]
    return {"tokens": sum(map(tokens_of, texts)) + body.get("max_tokens", 0)}


def service(model: Model) -> FakeService:
    """The service. Inside the `with` block it runs on a thread."""
    from asyncio_operator import Limit
    from asyncio_operator.testing import FakeService

    return FakeService(
        handler=model.answer,
        latency=lambda drawn: drawn.uniform(0.02, 0.08),
        limits=[Limit(CALLS, per=MINUTE), Limit(TOKENS, per=MINUTE, unit="tokens")],
        headers="openai",
        weigh=reserved,
        usage={"tokens": "usage.total_tokens"},
        token=TOKEN,
    )


# -- the demo


def reviews_of(spark: SparkSession, rows: int) -> DataFrame:
    """Reviews, of which many have the same text, as in life."""
    said_of = [
        f"{topic} was {word}{more}" for topic in TOPICS for word in ("good", "bad", "late", "fine") for more in MORE
    ]
    drawn = random.Random(1)
    texts: Sequence[tuple[int, str]] = [(number, drawn.choice(said_of)) for number in range(rows)]
    return spark.createDataFrame(texts, "id long, text string").repartition(2)


MORE = ["", ", I want a refund", " ???", *(f", order {number}" for number in range(20))]


def demo(stage: Stage, options: argparse.Namespace) -> None:
    """Runs the whole demo."""
    require_java()
    directory = stage.enter(workspace("model-calls"))
    model = Model()
    with step("Starting the service and Spark"):
        api = stage.enter(service(model))
        spark = stage.enter(local_spark(directory, spark__app__name="model-calls"))
        from asyncio_operator.spark import EnrichmentMetrics
    limits, metrics = budget(options.spend), EnrichmentMetrics(spark)
    reviews = reviews_of(spark, options.rows).cache()
    # Each text once, whatever partition it is in. Both lookups are one pass over them.
    texts = reviews.select("text").distinct()
    print(f"{options.rows:,} reviews with {texts.count():,} different texts.")
    answered = embedded(classified(texts, api.url, limits, metrics), api.url, limits, metrics)
    result = reviews.join(answered, "text", "left").cache()
    started = time.perf_counter()
    try:
        with step("Asking the model; tasks done:"), job(spark):
            result.count()
        show(result)
        print(metrics)
    finally:
        tell(api, model, limits, time.perf_counter() - started)


def show(result: DataFrame) -> None:
    """Print a sample of reviews, and what became of all."""
    print()
    result.orderBy("id").selectExpr(
        "id", "text", "sentiment", "topic", "urgent", "slice(embedding, 1, 2) AS embedding", "model.status"
    ).show(8, truncate=32)
    reason = "regexp_extract(model.error_message, 'key .*?: (the .*)', 1) AS reason"
    result.selectExpr("model.status", reason).groupBy("status", "reason").count().orderBy("status").show(truncate=60)


def tell(api: FakeService, model: Model, limits: Budget, seconds: float) -> None:
    """Print what was used, and what the service says of it."""
    print()
    units = limits.statistics().units
    refused = sum(request.status == 429 for request in api.requests)
    tokens = sum(request.weights["tokens"] for request in api.requests if request.status == 200)
    print(f"{len(api.requests):,} requests with {tokens:,.0f} tokens in {seconds:.1f} s.")
    print(
        f"Spent: {units['usd'].used:.4f} of {units['usd'].allowed:.4f} dollars; "
        f"the service has earned {model.earned:.4f}."
    )
    print(f"Refused with 429: {refused or 'none'}. Windows with too much: {len(api.windows_exceeded()) or 'none'}.")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="model_calls", description="Classify and embed reviews with a (fake) model.")
    parser.add_argument("--rows", type=positive, default=5_000, help="the number of reviews (default: 5,000)")
    parser.add_argument("--spend", type=float, default=1.0, help="the dollars that the job may spend (default: 1)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(run(lambda stage: demo(stage, chosen)))
