"""openaivec: `Series.aio.responses` of pandas, against a service that answers like a model of OpenAI.

It sends several keys in a request, as many as it finds best (`batch_size=None`), and each key once. Its own retries
have no more attempts than those of the others; they keep to `Retry-After` where it is at most 8 seconds.

The tokens of a request are counted in bytes here: the file of the real encoding has to be fetched from the network.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import openai  # type: ignore[import-not-found]
import openaivec  # type: ignore[import-not-found]
import pandas as pd
import tiktoken  # type: ignore[import-not-found]
from openaivec import RetryPolicy
from openaivec import pandas_ext as _accessors  # noqa: F401

from benchmarks.peers.functions import ATTEMPTS
from benchmarks.peers.task import SERVED, Answer, Task, serve

INSTRUCTIONS = "Answer with the name of the row of this key."

BYTES = tiktoken.Encoding(
    "o200k_base", pat_str=r".", mergeable_ranks={bytes([one]): one for one in range(256)}, special_tokens={}
)


async def _answers(task: Task) -> list[Any]:
    client = openai.AsyncOpenAI(api_key="none", base_url=f"{task.url}/v1", timeout=task.patience)
    openaivec.set_async_client(client)
    openaivec.set_responses_model("gpt-5.1")
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
    tiktoken.registry.ENCODINGS["o200k_base"] = BYTES
    serve(measure)
