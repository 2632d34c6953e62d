"""The contract of state backends, as plain checks: for the backends of users, and for those of this package.

`check_state_backend(make)` raises AssertionError unless the backends that `make` gives obey the laws of keyed state and
of time to live. The error names the law and what is wrong. All laws are checked, or none. It needs no test framework.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack

from asyncio_operator.errors import ConfigurationError, describe, describe_error
from asyncio_operator.state import StateBackend
from asyncio_operator.testing.state_contract import laws, ttl_laws
from asyncio_operator.testing.state_contract.laws import Make

LAWS = [law for module in (laws, ttl_laws) for name, law in vars(module).items() if name.startswith("law_")]
KEYWORDS = ("clock", "key_groups", "max_parallelism")


def check_state_backend(make: Make) -> None:
    """Checks every law on new backends.

    Args:
        make: returns a new, empty backend at each call. It takes the optional keywords `clock` (which the laws of time
            to live pass), `key_groups` and `max_parallelism` (which `law_s1_range` passes), as in
            ``lambda **options: MyBackend(new_directory(), **options)``.

    Raises:
        ConfigurationError: `make` cannot be called in this way, or gives no StateBackend. No law was checked.
        AssertionError: a law is broken. The message begins with the law's name.
    """
    shown = f"make={describe(make)}"
    example = "such as lambda **options: MyBackend(new_directory(), **options)"
    if not callable(make):
        raise ConfigurationError(f"{shown}: it must be a function that returns a new backend at each call, {example}")
    try:
        signature = inspect.signature(make)
        signature.bind()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{shown} cannot be called without arguments ({error}): {example}") from error
    missing = []
    for keyword in KEYWORDS:
        try:
            signature.bind(**{keyword: None})
        except TypeError:
            missing.append(keyword)
    if missing:
        raise ConfigurationError(
            f"{shown} does not take {', '.join(missing)}, so some laws could not be checked: "
            f"it must pass **options on, {example}"
        )
    backend = make()
    if not isinstance(backend, StateBackend):
        raise ConfigurationError(f"{shown} gave {describe(backend)}: it must give a StateBackend")
    backend.close()
    for law in LAWS:
        try:
            with ExitStack() as made:
                law(lambda made=made, **options: made.enter_context(make(**options)))
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{law.__name__} ({law.__doc__}): {what}") from error
