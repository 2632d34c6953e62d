"""openaivec: `Series.aio.responses` of pandas, against a service that answers like a model of OpenAI. `spark` uses its
pandas UDF, `answers_udf`.

It sends several keys in a request, as many as it finds best (`batch_size=None`), and each key once. Its own retries
have no more attempts than those of the others; they keep to `Retry-After` where it is at most 8 seconds.

The tokens of a request are counted in bytes here: the file of the real encoding has to be fetched from the network.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import openai  # type: ignore[import-not-found]
import openaivec  # type: ignore[import-not-found]
import pandas as pd
import tiktoken  # type: ignore[import-not-found]
from openaivec import RetryPolicy
from openaivec import pandas_ext as _accessors  # noqa: F401
from openaivec.spark_ext import responses_udf, setup  # type: ignore[import-not-found]

from benchmarks.peers.functions import ATTEMPTS, INSTRUCTIONS
from benchmarks.peers.task import SERVED, Answer, Task, serve

MODEL = "gpt-5.1"

BYTES = tiktoken.Encoding(
    "o200k_base", pat_str=r".", mergeable_ranks={bytes([one]): one for one in range(256)}, special_tokens={}
)


def _set_client(task: Task) -> openai.AsyncOpenAI:
    tiktoken.registry.ENCODINGS["o200k_base"] = BYTES
    client = openai.AsyncOpenAI(api_key="none", base_url=f"{task.url}/v1", timeout=task.patience)
    openaivec.set_async_client(client)
    return client


def answers_udf(spark: Any, task: Task) -> Any:
    """A function of Spark's columns."""
    from pyspark.sql.pandas.functions import pandas_udf

    setup(spark, api_key="none", responses_model_name=MODEL)
    asked = responses_udf(INSTRUCTIONS, max_concurrency=task.capacity, retry_policy=RetryPolicy(max_attempts=ATTEMPTS))

    def answers(keys: Iterator[pd.Series]) -> Iterator[pd.Series]:
        _set_client(task)
        yield from asked.func(keys)

    # Spark reads the kind of the UDF from these.
    answers.__annotations__ = {"keys": Iterator[pd.Series], "return": Iterator[pd.Series]}
    return pandas_udf(answers, "string")  # type: ignore[call-overload]


async def _answers(task: Task) -> list[Any]:
    client = _set_client(task)
    openaivec.set_responses_model(MODEL)
    series = pd.Series([str(key) for key in task.values()])
    results = await series.aio.responses(
        INSTRUCTIONS,
        max_concurrency=task.capacity,
        show_progress=False,
        retry_policy=RetryPolicy(max_attempts=ATTEMPTS),
    )
    await client.close()
    return results.tolist()  # type: ignore[no-any-return]


def measure(task: Task) -> Answer:
    """Do a task."""
    if task.work not in SERVED or not task.count:
        return Answer(cannot="asks models only")
    started = time.perf_counter()
    answers = asyncio.run(_answers(task))
    seconds = time.perf_counter() - started
    found = sum(answer is not None for answer in answers)
    return Answer(seconds, len(answers), found, dict(Counter(answer or "" for answer in answers)))


if __name__ == "__main__":
    serve(measure)
