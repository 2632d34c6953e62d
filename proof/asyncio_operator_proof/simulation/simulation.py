"""`Simulation`: runs `enrich` below Spark on virtual time, with a service that fails in every way, from one seed."""

from __future__ import annotations

import re
from typing import Any, Self

from asyncio_operator.errors import ConfigurationError
from asyncio_operator_proof.history.event_format import History
from asyncio_operator_proof.simulation.draw import drawn
from asyncio_operator_proof.simulation.given import MakeEnricher, fitted, require_maker
from asyncio_operator_proof.simulation.judge import broken
from asyncio_operator_proof.simulation.program import program_of
from asyncio_operator_proof.simulation.runs import Outcome, outcome_of
from asyncio_operator_proof.simulation.scenario import Scenario
from asyncio_operator_proof.simulation.shrink import shrunk


class SimulationFailed(AssertionError):  # noqa: N818
    """A simulation broke a law, or gave other rows than a join. The message has a program that fails alone."""


class Simulation:
    """One run of `enrich` below Spark, drawn from a seed: tasks, workers, options, a service, and faults.

    Everything is the code that runs in Spark's Python workers, except for the service, the coordinator of a budget, the
    clocks and the threads: all of it runs on one thread, on virtual time. The same seed has the same history, byte for
    byte, in every process. While one runs, it owns what belongs to the whole process: the source of `random`, the
    log, which is off, and the collector of garbage. So simulations in several threads run one after the other.

        Simulation(7).check()
        Simulation(7, lambda service: MyEnricher(service), mode="unordered", capacity=5).check()

    Args:
        seed: of everything that is drawn.
        enricher: a function of a `SimulatedService` that returns the enricher of a lookup, for each worker; None: one
            that asks the service. `service.ask(keys)` answers, waits and fails, `service.schema` has the columns. An
            enricher that has `lookup_columns` is asked for columns.
        fixed: what is not drawn: options of `enrich` for all lookups; or `lookups` and `tasks` (numbers, or tuples of
            `Lookup` and `Task`), `kind` of the keys ("long" or "string"), `rows` (what the service has, by key),
            `kills`, `compactions`, `clocks`, `coordinator`; `journal=None` for no journal. Keys of `rows` are all int
            or all str; for each it has a mapping, a list of mappings, or None. With `rows`, and with an enricher whose
            columns are the same in each lookup, there is one lookup. Drawn options that the enricher cannot have, such
            as batches, or a journal that cannot store its columns, are left out.

    Raises:
        ConfigurationError: there is no such option, or a value is wrong.

    Attributes:
        scenario: what was drawn.
    """

    def __init__(self, seed: int, enricher: MakeEnricher | None = None, **fixed: Any) -> None:
        if enricher is not None:
            require_maker(enricher)
        self.scenario = drawn(seed, fixed, own=enricher is not None)
        if enricher is not None:
            self.scenario = fitted(self.scenario, enricher, fixed)
        self._make = enricher
        self._outcome: Outcome | None = None

    @classmethod
    def from_scenario(cls, scenario: Scenario, enricher: MakeEnricher | None = None) -> Self:
        """The simulation of a scenario, such as one that a failed simulation has printed."""
        if enricher is not None:
            require_maker(enricher)
        self = cls.__new__(cls)
        self.scenario, self._make, self._outcome = scenario, enricher, None
        return self

    def run(self) -> History:
        """What has happened. A second call returns the same history.

        Raises:
            ConfigurationError: a loop runs in this thread, or the options cannot be had together.
        """
        return self.outcome().history

    def outcome(self) -> Outcome:
        """The history, with the rows and the services."""
        if self._outcome is None:
            self._outcome = outcome_of(self.scenario, self._make)
        return self._outcome

    def violations(self) -> list[str]:
        """What is wrong: sentences that begin with a law. Empty: nothing."""
        return broken(self.scenario, self.outcome())

    def check(self) -> None:
        """Run, and check the rows and the history.

        Raises:
            SimulationFailed: something is wrong. The message has a short program that fails in the same way.
            ConfigurationError: see `run`.
        """
        found = self.violations()
        if not found:
            return
        small, complete = self._made_small()
        again = small.violations()
        if again:
            kinds = set(map(_kind, found))
            first = next((one for one in again if _kind(one) in kinds), again[0])
            short = "A short program" if complete else "A program, which may become shorter with more time,"
            says = f"{short} that fails alone, with: {first}"
        else:
            small = self
            says = (
                "It did not come again in a second run of the same simulation: the enricher may keep something from "
                "one run to the next. The program of the simulation:"
            )
        raise SimulationFailed(f"{found[0]}\n({len(found)} violations.) {says}\n\n{small.program()}")

    def shrunk(self) -> Simulation:
        """A smaller simulation that breaks a law in the same way; this one, if it breaks none or nothing can go."""
        return self._made_small()[0]

    def _made_small(self) -> tuple[Simulation, bool]:
        """The smaller simulation, and whether nothing more can go."""
        kinds = set(map(_kind, self.violations()))
        if not kinds:
            return self, True

        def fails(scenario: Scenario) -> bool:
            if self._make is not None and scenario.kind != self.scenario.kind:
                # The user's enricher may know keys of one kind.
                return False
            try:
                found = Simulation.from_scenario(scenario, self._make).violations()
            except ConfigurationError:
                # What is left contradicts itself.
                return False
            return bool(kinds & set(map(_kind, found)))

        small, complete = shrunk(self.scenario, fails)
        return Simulation.from_scenario(small, self._make), complete

    def program(self) -> str:
        """A program that runs this simulation."""
        return program_of(self.scenario, self._make)


_VARIES = re.compile(r"""'[^']*'|"[^"]*"|\[[^\]]*\]|\{[^}]*\}|\d[\d.]*|events?\b|None\b""")
"""What differs between two sentences of one kind: keys, rows, times and numbers."""


def _kind(violation: str) -> str:
    """The law and the sentence of a violation, without what varies."""
    law = violation.replace(" ", ":", 1).partition(":")[0]
    return f"{law} {_VARIES.sub('', violation.partition('; the service has')[0])}"
