"""`make simulate`: simulations of `enrich` from many seeds, what was crossed with what, and what failed, made small."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

from asyncio_operator.testing import Simulation
from asyncio_operator_proof.history.event_format import Event
from asyncio_operator_proof.simulation.features import FAULTS, OPTIONS, features_of

TOGETHER = 50
"""Seeds that a process gets at once."""

LONGEST = 60
"""Seconds of real time after which a simulation hangs."""

SHOWN = 5
"""Failures that are made small and printed: one of each law first."""


class Results(NamedTuple):
    """Of some seeds.

    Attributes:
        used: how often each feature was used, and each pair of features.
        failures: seeds with what is wrong.
    """

    seeds: int
    events: int
    used: Counter[tuple[str, ...]]
    failures: list[tuple[int, str]]


def main(seeds: int, first: int, jobs: int) -> bool:
    """Run simulations; whether all are well."""
    began = time.monotonic()
    done, events, used = 0, 0, Counter[tuple[str, ...]]()
    failures: list[tuple[int, str]] = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for results in pool.imap_unordered(_run, _portions(seeds, first)):
            done += results.seeds
            events += results.events
            used += results.used
            for seed, wrong in results.failures:
                print(f"seed {seed}: {wrong[:300]}", flush=True)
            failures += results.failures
            if done % 1000 == 0:
                print(f"{done:,} seeds, {done / (time.monotonic() - began):.1f} a second", flush=True)
    took = time.monotonic() - began
    print("\n".join(_table(used)))
    print(f"{done:,} seeds in {took:.0f} s: {done / took:.1f} a second; {events:,} events; {len(failures)} failures")
    for seed in _different(failures):
        print(f"\n# seed {seed}, made small")
        print(_small(seed), flush=True)
    return not failures


def _portions(seeds: int, first: int) -> Iterator[range]:
    return (range(begin, min(begin + TOGETHER, first + seeds)) for begin in range(first, first + seeds, TOGETHER))


def _run(seeds: range) -> Results:
    events, used = 0, Counter[tuple[str, ...]]()
    failures = []
    signal.signal(signal.SIGALRM, _hangs)
    for seed in seeds:
        simulation = Simulation(seed)
        history: Iterable[Event] = ()
        signal.alarm(LONGEST)
        try:
            found = simulation.violations()
            history = simulation.run()
            events += len(history)
        except Exception as error:
            found = [f"Y1: {type(error).__name__}: {error}"]
        finally:
            signal.alarm(0)
        features = sorted(features_of(simulation.scenario, history))
        used.update((one,) for one in features)
        used.update(itertools.combinations(features, 2))
        if found:
            failures.append((seed, found[0]))
    return Results(len(seeds), events, used, failures)


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"the simulation has run for {LONGEST} s of real time")


def _different(failures: list[tuple[int, str]]) -> list[int]:
    """Seeds of failures that differ, the most different ones first."""
    by_law: dict[str, list[int]] = {}
    for seed, wrong in sorted(failures):
        by_law.setdefault(wrong.replace(" ", ":", 1).partition(":")[0], []).append(seed)
    turns = itertools.zip_longest(*by_law.values())
    return [seed for turn in turns for seed in turn if seed is not None][:SHOWN]


def _small(seed: int) -> str:
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(10 * LONGEST)
    try:
        small = Simulation(seed).shrunk()
        return f"# {small.violations()[0]}\n{small.program()}"
    except Exception as error:
        return f"# it cannot be made small: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _table(used: Counter[tuple[str, ...]]) -> Iterator[str]:
    """How often each option was used, and how often together with each fault."""
    width = max(map(len, OPTIONS))
    yield f"{'':{width}} {'alone':>9}" + "".join(f"{name[:9]:>10}" for name in FAULTS)
    yield f"{'':{width}} {'':>9}" + "".join(f"{used[name,]:>10,}" for name in FAULTS)
    for option in OPTIONS:
        crossed = (used[min(option, fault), max(option, fault)] for fault in FAULTS)
        yield f"{option:{width}} {used[option,]:>9,}" + "".join(f"{count:>10,}" for count in crossed)
    features = sorted((*OPTIONS, *FAULTS))
    never = [pair for pair in itertools.combinations(features, 2) if not used[pair]]
    rarest = min((used[pair], pair) for pair in itertools.combinations(features, 2) if used[pair])
    count = len(features) * (len(features) - 1) // 2 - len(never)
    yield f"pairs of features: {count:,}, each crossed {rarest[0]:,} times or more"
    if never:
        more = f", and {len(never) - SHOWN:,} more; take more seeds" if len(never) > SHOWN else ""
        yield f"never crossed: {', '.join(' x '.join(pair) for pair in never[:SHOWN])}{more}"
