from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray


def _surprise(observed: NDArray[np.int64], probability: NDArray[np.float64]) -> float:
    expected = probability * observed.sum()
    assert expected.min() >= 5, "bins too small for a chi-square test"
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = observed.size - 1
    # Wilson and Hilferty: the cube root of a chi-square variable over its freedom is close to normal.
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))


@pytest.fixture
def surprise() -> Callable[[NDArray[np.int64], NDArray[np.float64]], float]:
    """How many standard deviations too far counts are from their probabilities (chi-square)."""
    return _surprise
