"""Models against the contract of all enrichers, and in Spark: what is paid for, shown and kept."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncio_operator import Budget, ConfigurationError, Enricher, Journal
from asyncio_operator.testing import FakeRequest, FakeService, check_enricher
from enrichers import EmbeddingEnricher, ModelEnricher
from tests.enrichers.model_service import asked_of, completion, model, vectors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEY = "sk-s3cr3t-0123456789"
SYSTEM = "You work for Zephyr Corporation, and nobody may know."


def judged(request: FakeRequest) -> Any:
    text = asked_of(request)
    if "refuse" in text:
        return completion(None, refusal="I cannot.", usage=(10, 2))
    return completion({"mood": text[-4:], "stars": len(text)}, usage=(100, 10))


def test_M1_M2_M4_models_and_vectors_keep_the_contract_of_all_enrichers() -> None:
    def mood(service: FakeService) -> Enricher:
        return model(service, prompt="Of {text}", schema="mood string, stars int", system=SYSTEM, api_key=lambda: KEY)

    def vector(service: FakeService) -> Enricher:
        return EmbeddingEnricher("small", base_url=service.url, api_key=lambda: KEY, max_batch=4)

    moods = {"good": {"mood": "good", "stars": 7}, "é\n": {"mood": "f é\n", "stars": 5}}
    with FakeService(handler=judged) as service:
        check_enricher(lambda: mood(service), known=moods, secrets=[KEY, SYSTEM])
    found = {"good": {"embedding": [4.0, 0.5]}, "é\n": {"embedding": [2.0, 0.5]}}
    with vectors(lambda text: [float(len(text)), 0.5]) as service:
        check_enricher(lambda: vector(service), known=found, secrets=[KEY])


@pytest.mark.spark
def test_M1_M3_M4_in_spark_each_text_is_paid_for_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from asyncio_operator.spark import enrich, plan, read_journal

    caplog.set_level(logging.INFO)
    limits = Budget("models in spark", spend={"usd": 1.0})
    journal = Journal(str(tmp_path / "journal"))
    texts = spark.createDataFrame(
        [(f"{i % 10} good", i % 3) for i in range(30)] + [("refuse", 1)], "text string, n int"
    )
    with FakeService(handler=judged) as service:

        def judge(**options: Any) -> ModelEnricher:
            return model(
                service,
                prompt="Review {n} of Zephyr: {text}",
                schema="mood string NOT NULL, stars int",
                system=SYSTEM,
                api_key=KEY,
                price=(1.0, 10.0),
                **options,
            )

        def asked(**options: Any) -> Any:
            return enrich(
                texts,
                judge(**options),
                on=["n", "text"],
                budget=limits,
                journal=journal,
                on_error="null",
                status_column="model",
            )

        rows = asked(max_tokens=50).collect()
        assert len(service.requests) == 31
        found = [row for row in rows if row.model.status == "found"]
        assert {row.mood for row in found} == {"good"}
        [failed] = [row for row in rows if row.model.status == "failed"]
        assert "key (1, 'refuse'): the model refuses to answer: 'I cannot.'" in failed.model.error_message
        assert (failed.model.http_status, failed.model.retryable) == (200, False)
        assert limits.statistics().units["usd"].used == pytest.approx((30 * 200 + 30) * 1e-6)

        again = asked(max_tokens=50)
        assert again.where("model.source = 'journal'").count() == 30
        assert len(service.requests) == 32  # an error is asked for again, once
        with pytest.raises(ConfigurationError, match="max_tokens=#"):
            asked(max_tokens=51).collect()
        planned = plan(texts, judge(), on=["n", "text"], budget=limits)
        assert "usd" in str(planned)
    shown = f"{failed.model.error_message} {again._jdf.queryExecution().toString()} {planned} {caplog.text}"
    shown += "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    for secret in (KEY, "Zephyr", "nobody"):
        assert secret not in shown
    assert "refuse" not in caplog.text
    assert read_journal(spark, journal).where("_found").count() == 30
