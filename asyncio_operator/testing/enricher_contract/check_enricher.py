"""The contract of enrichers, as a plain check: for the enrichers of users, and for those of this package.

    check_enricher(lambda: MyEnricher(url), known={"JFK": {"city": "New York"}}, missing=["XXX"], secrets=[password])

It raises AssertionError unless the enrichers that the function gives keep the contract. The error names the rule and
what is wrong. It needs no test framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from asyncio_operator.enricher import Found
from asyncio_operator.errors import describe_error
from asyncio_operator.testing.enricher_contract import lifecycle, rules, steps
from asyncio_operator.testing.enricher_contract.poison import rule_poison
from asyncio_operator.testing.enricher_contract.rules import Check, Make
from asyncio_operator.testing.own_loops import require_no_loop

# First come the rules on which all others rest: without them every other rule would fail, or take long.
RULES = (
    lifecycle.rule_close,
    steps.rule_loop_is_free,
    *rules.RULES,
    *lifecycle.RULES,
)


def check_enricher(
    make: Make,
    *,
    known: Mapping[Any, Found] | Iterable[Any] | None = None,
    missing: Iterable[Any] | None = None,
    poison: Iterable[Any] | None = None,
    secrets: Iterable[str] = (),
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    patience: float = 10.0,
) -> None:
    """Check that an enricher keeps the contract. It runs its own loops and makes some dozens of lookups.

    Without `known` and `missing` it looks nothing up, and checks the rules that need no key: schema, life and pickles.

    Args:
        make: returns a new enricher at each call. All of them must be equal and use the same source.
        known: keys that are found: a mapping to the expected row or rows, or only the keys; at least one. None: none is
            known.
        missing: keys of the same type that are not found; at least one. None: none is known.
        poison: keys of the same type whose lookup alone fails, such as one whose row cannot be converted. Each is put
            into a batch of 200 keys, or of `max_batch`, and must cost one row. None: none is known.
        secrets: texts that must appear nowhere, such as a password that `make` uses.
        loop_factory: makes the loops; by default asyncio's own. `VirtualTimeLoop` suits enrichers without sockets.
        patience: the maximum seconds for one call, for the end of a cancelled call, and for `close`.

    Raises:
        ConfigurationError: an argument is wrong. Nothing was checked.
        AssertionError: a rule is broken. The message begins with the rule's name.
    """
    require_no_loop("check_enricher", "check")
    check = Check(make, known, missing, secrets, loop_factory, patience, poison)
    for rule in (*RULES, rule_poison) if check.poison else RULES:
        try:
            rule(check)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{rule.__name__} ({rule.__doc__}): {check.without_secrets(what)}") from error
