"""What answers report to the budget of the running lookup: the limits of the service, and what a call really weighed.

Nothing here fails a lookup: what cannot be read is logged once for each header or unit, and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from asyncio_operator import AsyncOperatorError, ConfigurationError
from asyncio_operator.enricher import billed, describe, hint, settle
from asyncio_operator.services.secrets import Secrets
from enrichers.http.answers import make_extract
from enrichers.http.error_bodies import parsed_error
from enrichers.http.header_values import LARGEST_NUMBER
from enrichers.http.limit_headers import NOTHING, Hints, read_hints
from enrichers.http.session import Answer

logger = logging.getLogger("asyncio_operator.budget")

COUNTED = ("calls", "keys")
"""Units that are counted, and not read from answers."""

SHOWN = 200

Usage = Mapping[str, str | Callable[[Any], Any]]
"""For each unit a dotted path into the answer, or a function of it."""


class Heard(NamedTuple):
    """An answer and what it reports. `error` is the JSON of an answer that is no success, if it is JSON."""

    answer: Answer
    hints: Hints
    error: object


class Reports:
    """Passes on what the answers of one enricher report.

    Args:
        subject: names the enricher in the log.
        usage: where an answer says what it weighed.
        hints: whether what answers say about limits is passed on.
        secrets: what a log must not show.
    """

    def __init__(self, subject: str, usage: Usage, hints: bool, secrets: Secrets) -> None:
        self._subject = subject
        self._usage = readers(usage, secrets.show)
        self._passes_on = hints
        self._secrets = secrets
        self._logged: set[str] = set()

    def heard(self, answer: Answer) -> Heard:
        """What an answer reports. Its hints go to the budget, and the usage of an error too."""
        success = 200 <= answer.status < 300
        billed(success)
        error = None if success else parsed_error(answer.body)
        if success and not self._passes_on:
            return Heard(answer, NOTHING, error)
        now = datetime.now(UTC).timestamp()
        hints = read_hints(answer.status, answer.headers.items(), error, now)
        if self._passes_on:
            for header, why in hints.ignored:
                self._log(header, f"the header {header} is ignored: {why}")
            # The budget may know of limits as low as these, and would still start the next call after a refusal.
            wait = hints.wait if answer.status in (403, 429) else hints.retry_after
            if hints.limits or wait is not None:
                hint(hints.limits, retry_after=wait)
        if error is not None:
            self.used(error, (), required=False)
        return Heard(answer, hints, error)

    def used(self, parsed: Any, keys: Sequence[Any], required: bool = True) -> None:
        """Settle what an answer to keys weighed. Units that it does not report keep their estimates.

        Args:
            required: whether it is logged if the answer does not report a unit, and a budget keeps its estimate.
        """
        weights, problems = {}, {}
        for unit, read in self._usage.items():
            try:
                value = read(parsed)
                if (amount := _amount(value)) is not None:
                    weights[unit] = amount
                    continue
                shown = self._secrets.show(value, SHOWN)
                problems[unit] = f"it is {shown}, and must be a number from 0 to {LARGEST_NUMBER:g}"
            except AsyncOperatorError as error:
                problems[unit] = self._secrets.line(str(error), SHOWN)
        if settle(weights) and required:
            for unit, problem in problems.items():
                self._log(f"usage {unit}", f"usage[{unit!r}] is ignored, and the estimate counts: {problem}")

    def _log(self, what: str, problem: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            logger.warning("%s: %s. This is logged once", self._subject, problem)


def readers(usage: Usage, show: Callable[..., str] = describe) -> dict[str, Callable[[Any], Any]]:
    """For each unit the function that reads its amount from a parsed answer.

    Raises:
        ConfigurationError: `usage` is not a mapping of units to paths and functions.
    """
    if not isinstance(usage, Mapping):
        raise ConfigurationError(
            f"usage is {describe(usage)}; it must be a mapping from units to dotted paths into the answer, such as "
            '{"tokens": "usage.total_tokens"}'
        )
    found = {}
    for unit, path in usage.items():
        if not isinstance(unit, str) or unit in COUNTED:
            counted = "which is counted" if unit in COUNTED else "which is not text"
            raise ConfigurationError(f'usage has the unit {describe(unit)}, {counted}; a unit is a word like "tokens"')
        where = f"usage[{unit!r}]"
        reader = make_extract(where, path, show)
        if reader is None:
            raise ConfigurationError(f"{where} is None; it must be a dotted path, or a function of the parsed answer")
        found[unit] = reader
    return found


def _amount(value: Any) -> float | None:
    """The value if it can be an amount. JSON gives whole numbers, floats and, if a column is decimal, decimals."""
    try:
        amount = None if isinstance(value, bool | str) or value is None else float(value)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return amount if amount is not None and 0 <= amount <= LARGEST_NUMBER else None
