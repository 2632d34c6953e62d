"""How `HttpEnricher` writes the numbers of a key."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichers.http.keys import json_of, text_of


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_as_text_has_no_exponent_and_is_read_back_as_the_same(value: float) -> None:
    text = text_of(value)
    assert "e" not in text.lower()
    assert "." in text
    assert repr(float(text)) == repr(value)
    assert repr(json.loads(json_of(value))) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e22, "10000000000000000000000.0"),
        (-1e-7, "-0.0000001"),
        (1.5, "1.5"),
        (Decimal("1E+5"), "100000"),
        (Decimal("1E+500"), "1E+500"),
    ],
)
def test_a_number_as_text(value: Any, text: str) -> None:
    assert text_of(value) == text
