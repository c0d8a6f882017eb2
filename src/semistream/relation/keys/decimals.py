"""Decimals by their unscaled numbers, and in another scale, exactly.

Arrow divides some decimals of 256 bits wrongly: ``2**64 - 1`` with 40 decimal places becomes 18446744069032746375
(release 26.0). It multiplies them correctly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from semistream.core.arrays import Bools

__all__ = ["decimal_of", "rescaled"]

_DIGITS = 76
"""Digits of the longest decimals."""
_LIMB = np.uint64(32)
"""Bits of a digit in divisions; the divisor, up to ``10**9``, fits into it."""
_MASK = np.uint64(0xFFFFFFFF)


def rescaled(array: pa.Array, scale: int) -> pa.Array:
    """Return decimals with 76 digits and another scale; NULL where that scale cannot hold the value exactly.

    >>> from decimal import Decimal
    >>> rescaled(pa.array([Decimal("1.50"), Decimal("-1.25"), None]), 1).to_pylist()
    [Decimal('1.5'), None, None]
    """
    dropped = array.type.scale - scale
    wide = array.cast(pa.decimal256(_DIGITS, array.type.scale))
    if dropped <= 0:
        limit = decimal_of(10 ** max(0, _DIGITS + dropped), wide.type)
        fits = pc.less(pc.abs(wide), limit) if dropped else pa.scalar(True)
        return pc.if_else(fits, wide, None).cast(pa.decimal256(_DIGITS, scale))
    words, exact = _divided(_limbs(wide), dropped)
    divided = pa.Array.from_buffers(pa.decimal256(_DIGITS, scale), len(wide), [None, pa.py_buffer(words)])
    return pc.if_else(pc.and_(wide.is_valid(), pa.array(exact)), divided, None)


def _divided(limbs: NDArray[np.uint64], digits: int) -> tuple[NDArray[Any], Bools]:
    """Return numbers without their last decimal ``digits``, and whether these are zeros."""
    negative = (limbs[:, 7:] >> np.uint64(31)) > 0
    limbs = np.where(negative, _negated(limbs), limbs)
    exact = np.ones(len(limbs), np.bool_)
    for done in range(0, digits, 9):
        divisor = np.uint64(10 ** min(9, digits - done))
        rest = np.zeros(len(limbs), np.uint64)
        for at in range(7, -1, -1):
            limbs[:, at], rest = np.divmod((rest << _LIMB) | limbs[:, at], divisor)
        exact &= rest == 0
    return np.where(negative, _negated(limbs), limbs).astype("<u4"), exact


def _negated(limbs: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return numbers of the opposite sign, in two's complement."""
    limbs = limbs ^ _MASK
    carry = np.ones(len(limbs), np.uint64)
    for at in range(8):
        limbs[:, at] += carry
        carry = limbs[:, at] >> _LIMB
        limbs[:, at] &= _MASK
    return limbs


def _limbs(wide: pa.Array) -> NDArray[np.uint64]:
    """Return the 32-bit digits of numbers, the least significant first; undefined where a number is NULL."""
    words = np.frombuffer(wide.buffers()[1], "<u4", 8 * (wide.offset + len(wide)))
    return words[8 * wide.offset :].reshape(-1, 8).astype(np.uint64)


def decimal_of(unscaled: int, kind: pa.DataType) -> pa.Scalar:
    """Return the decimal of type ``kind``, a ``decimal256``, with this unscaled number.

    >>> decimal_of(-125, pa.decimal256(76, 2)).as_py()
    Decimal('-1.25')
    """
    words = (unscaled % (1 << 256)).to_bytes(32, "little")
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(words)])[0]
