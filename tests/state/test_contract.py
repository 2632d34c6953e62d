"""The laws of keyed state and of time to live, one test per law and backend; the name of the law is the test's id."""

from __future__ import annotations

import pytest

from asyncio_operator.state import HeapStateBackend
from asyncio_operator.testing.state_contract import LAWS, check_state_backend


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_S_E_contract(law, make):
    law(make)


def test_check_state_backend_takes_a_class_or_a_function_with_keywords():
    check_state_backend(HeapStateBackend)
    check_state_backend(lambda **options: HeapStateBackend(**options))  # noqa: PLW0108 - the point is that it is one
