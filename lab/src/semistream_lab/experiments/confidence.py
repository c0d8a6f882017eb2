"""Confidence intervals of means, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["interval"]

# Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean.

    >>> round(interval([10.0, 11.0, 9.0]), 2)
    2.48
    """
    n = len(values)
    if n < 2:
        return 0.0
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return _STUDENT[min(n - 1, len(_STUDENT)) - 1] * math.sqrt(variance / n)
