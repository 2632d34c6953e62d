"""Decimal numbers at the borders of 64, 128 and 256 bits, and of what types of decimals hold."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation, localcontext

import pyarrow as pa
from hypothesis import strategies as st

BORDERS = [
    2**63,
    2**64,
    2**127,
    2**128,
    3 * 2**128,
    2**255,
    2**256,
    *(10**n for n in (9, 18, 19, 20, 30, 37, 38, 76, 100)),
]

KINDS = [
    pa.decimal128(38, 18),
    pa.decimal128(38, 0),
    pa.decimal128(38, 38),
    pa.decimal128(10, 2),
    pa.decimal128(1, 0),
    # PyArrow 18 does not have these two.
    getattr(pa, "decimal64", pa.decimal128)(18, 4),
    getattr(pa, "decimal32", pa.decimal128)(9, 2),
    pa.decimal256(76, 18),
    pa.decimal256(76, 76),
]


def _near(border: int, step: int, scale: int, sign: int) -> Decimal:
    with localcontext() as context:
        context.prec = 400
        return Decimal(sign * (border + step)).scaleb(-scale)


numbers = st.builds(
    _near,
    st.sampled_from(BORDERS) | st.integers(0, 10**40),
    st.integers(-2, 2),
    st.sampled_from([0, 0, 0, 2, 10, 18, 19, 38, 57, 61, 100, -20, -61]),
    st.sampled_from([1, -1]),
)
"""Numbers of up to 140 digits, most of them near a border, with any number of digits after the point."""


def fitted(number: Decimal, kind: pa.DataType) -> Decimal | None:
    """The number if a type of decimals holds it with all its digits."""
    if not number.is_finite():
        return None
    with localcontext() as context:
        context.prec = 400
        try:
            made = number.quantize(Decimal(1).scaleb(-kind.scale))
        except InvalidOperation:
            return None
        fits = made == number and abs(number) < Decimal(10) ** (kind.precision - kind.scale)
    return made if fits else None
