"""The contract of state backends, as plain checks: for those who write one, and for ours.

`check_state_backend(make)` raises AssertionError, naming the law and what is wrong, unless backends that `make` gives
obey the laws of keyed state and of time to live. It checks every law or none. It needs no test framework.
"""

from __future__ import annotations

import inspect

from asyncio_operator.errors import ConfigurationError, describe, describe_error
from asyncio_operator.state import StateBackend
from asyncio_operator.testing import state_laws, state_ttl
from asyncio_operator.testing.state_laws import Make

LAWS = (*state_laws.LAWS, *state_ttl.LAWS)
KEYWORDS = ("clock", "key_groups", "max_parallelism")


def check_state_backend(make: Make) -> None:
    """Checks every law on new backends.

    Args:
        make: gives a new, empty backend each time it is called. It takes the keywords `clock` (the laws of time to
            live pass one), `key_groups` and `max_parallelism` (`law_s1_range` passes them), all optional, as in
            ``lambda **options: MyBackend(new_directory(), **options)``.

    Raises:
        ConfigurationError: `make` cannot be called so, or gives no StateBackend; no law was checked.
        AssertionError: a law is broken; the message begins with its name.
    """
    _check_make(make)
    for law in LAWS:
        try:
            law(make)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else describe_error(error)
            raise AssertionError(f"{law.__name__} ({law.__doc__}): {what}") from error


def _check_make(make: Make) -> None:
    """Raises ConfigurationError unless `make` gives a backend and takes the keywords of all laws."""
    shown = f"make={describe(make)}"
    example = "such as lambda **options: MyBackend(new_directory(), **options)"
    if not callable(make):
        raise ConfigurationError(f"{shown}: a function that gives a new backend at every call is needed, {example}")
    try:
        signature = inspect.signature(make)
        signature.bind()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{shown} cannot be called without arguments ({error}): {example}") from error
    missing = [keyword for keyword in KEYWORDS if not _takes(signature, keyword)]
    if missing:
        raise ConfigurationError(
            f"{shown} does not take {', '.join(missing)}, so that not every law could be checked: "
            f"it has to pass **options on, {example}"
        )
    backend = make()
    if not isinstance(backend, StateBackend):
        raise ConfigurationError(f"{shown} gave {describe(backend)}: a StateBackend is needed")
    backend.close()


def _takes(signature: inspect.Signature, keyword: str) -> bool:
    try:
        signature.bind(**{keyword: None})
    except TypeError:
        return False
    return True
