"""Decimals in another scale: as Python computes them, or NULL."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from semistream.relation.keys.decimals import rescaled


def expected(value: Decimal | None, scale: int) -> Decimal | None:
    with localcontext(prec=200) as context:
        if value is None:
            return None
        unscaled = value.scaleb(scale, context)
        fits = unscaled == unscaled.to_integral_value() and abs(unscaled) < 10**76
        return value if fits else None


@pytest.mark.parametrize("width", [128, 256])
@pytest.mark.parametrize("own", [0, 2, 14, 20, 37, 60])
def test_values_are_the_same_or_null(width: int, own: int) -> None:
    most = 38 if width == 128 else 76
    if own > most:
        pytest.skip("more places than digits")
    numbers = {sign * ((1 << bits) + more) for bits in range(250) for more in (-2, -1, 0, 1) for sign in (1, -1)}
    zeros = {number * 10**places for number in numbers for places in (1, 9, 14, 40)}
    values: list[Any] = [None]
    with localcontext(prec=200) as context:
        values += [Decimal(n).scaleb(-own, context) for n in sorted(numbers | zeros) if abs(n) < 10**most]
    kind = pa.decimal128(most, own) if width == 128 else pa.decimal256(most, own)
    array = pa.array(values, kind)
    for scale in (0, 1, 5, 19, 40, 76):
        found = rescaled(array.slice(1), scale)
        assert found.type == pa.decimal256(76, scale)
        assert found.to_pylist() == [expected(value, scale) for value in values[1:]]
    assert rescaled(array[:1], 0).to_pylist() == [None]
    assert rescaled(array[:0], 0).to_pylist() == rescaled(array[:0], 70).to_pylist() == []
