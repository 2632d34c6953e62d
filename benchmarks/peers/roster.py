"""The tables of peers and works. To add a peer: a program, its requirements, and a line here.

If a work would take minutes for a peer, the peer gets fewer rows of it, so that each run takes some seconds. Rows per
second are compared. A program says itself what it cannot do (`Answer.cannot`); other reasons are listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CAPACITY = 100

SPARK = "in Spark, two tasks"
PIPE = "in one pipe"


@dataclass(frozen=True, slots=True)
class Work:
    """A column of the table.

    Attributes:
        task: what `Task.work` is; with "postgres", `distant` tells whether the server is far.
        rows: how many in each group that does it.
        batch: rows of an Arrow batch, in Spark.
        timeout: seconds that a run may take at most.
        models: only peers that ask models do it.
    """

    name: str
    title: str
    task: str
    rows: Mapping[str, int]
    ordered: bool = True
    distant: bool = False
    batch: int = 10_000
    timeout: float = 90.0
    models: bool = False


WORKS = (
    Work("at_once", "at once", "at_once", {SPARK: 1_000_000, PIPE: 100_000}),
    Work("fixed", "10 ms", "fixed", {SPARK: 40_000, PIPE: 20_000}),
    Work("skew", "skew, in order", "skew", {SPARK: 40_000, PIPE: 20_000}),
    Work("small", "skew, 100 rows a batch", "skew", {SPARK: 40_000}, batch=100),
    Work("unordered", "skew, any order", "skew", {SPARK: 40_000, PIPE: 20_000}, ordered=False),
    Work("postgres", "PostgreSQL", "postgres", {SPARK: 40_000, PIPE: 20_000}),
    Work("distant", "PostgreSQL + 2 ms", "postgres", {SPARK: 20_000, PIPE: 8_000}, distant=True),
    Work("http", "HTTP API", "http", {SPARK: 500, PIPE: 500}),
)

TRIALS = (
    Work("q13", "Nexmark q13", "q13", {SPARK: 4_000, PIPE: 4_000}),
    Work("texts", "2,000 texts", "texts", {SPARK: 2_000, PIPE: 2_000}, models=True),
    Work("storm", "429 storms", "storm", {SPARK: 600, PIPE: 600}),
    Work("faults", "faults", "faults", {SPARK: 600, PIPE: 600}),
)
"""Works that are measured one peer at a time. Every answer is counted, and so is every call."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A row of the table.

    Attributes:
        program, side: the module in `programs/`, and which of its ways.
        environment: the name of its requirements; "" for this library, in the environment that runs.
        rows: how many in place of those of the work.
        reason: why it cannot be installed; "" if it can.
        models: it asks models, with several keys in a request.
    """

    name: str
    group: str
    program: str
    side: str = ""
    environment: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    models: bool = False


TIED = {"skew": 4_000}
"""For peers whose order lets a slow row stop the calls."""

BATCHED = {"at_once": 300_000, "small": 4_000}
"""For peers that wait for the end of each batch."""

PEERS = (
    Peer("enrich", SPARK, "spark", "enrich"),
    Peer(
        "blocking client in mapPartitions",
        SPARK,
        "spark",
        "blocking",
        "spark",
        {"at_once": 300_000, "fixed": 400, "skew": 1_000, "small": 1_000, "distant": 2_000, "http": 200, "q13": 400},
    ),
    Peer("thread pool in a pandas UDF", SPARK, "spark", "threads", "spark", BATCHED),
    Peer("arrow.concurrency.level", SPARK, "spark", "arrow", "spark", BATCHED),
    Peer("gather per Arrow batch", SPARK, "spark", "gather", "spark", BATCHED),
    Peer("AsyncWaitOperator", PIPE, "operator"),
    Peer("AsyncWaitOperator, Lookup", PIPE, "operator", "lookup"),
    Peer("streamable", PIPE, "streamable", environment="streamable", rows=TIED),
    Peer("aiostream", PIPE, "aiostream", environment="aiostream", rows=TIED),
    Peer("aiometer", PIPE, "aiometer", environment="aiometer"),
    Peer("Daft", PIPE, "daft", environment="daft"),
    Peer(
        "PyFlink",
        PIPE,
        "pyflink",
        environment="flink",
        rows={
            "at_once": 20_000,
            "fixed": 10_000,
            "skew": 4_000,
            "unordered": 10_000,
            "postgres": 10_000,
        },
    ),
    Peer("Flink, Java", PIPE, "flink", environment="flink", rows=TIED),
)

GUESTS = (
    Peer("Ray Data", PIPE, "ray", environment="ray", rows={"at_once": 20_000}),
    Peer("openaivec", PIPE, "openaivec", environment="openaivec", models=True),
    Peer("Lookup, ModelEnricher", PIPE, "operator", "model", models=True),
    Peer("openaivec, its UDF", SPARK, "spark", "openaivec", "openaivec", models=True),
    Peer("enrich, ModelEnricher", SPARK, "spark", "model", models=True),
    Peer("enrich, ModelEnricher, distinct", SPARK, "spark", "distinct", models=True),
    Peer(
        "SynapseML",
        SPARK,
        "",
        environment="",
        reason="its wheel holds Python wrappers only, and its classes are in a jar from Maven that PyPI does not have",
    ),
)
"""Peers that are measured alone, beside those of the tables: `PEERS` and these have JSON results."""


def base_of(peer: Peer) -> Peer:
    """The side with which a peer is compared: the first of its group."""
    return next(one for one in PEERS if one.group == peer.group)
