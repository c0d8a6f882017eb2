"""Arrays that change their length, whoever still looks at them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from semistream.structures.elastic import ElasticArrays


@pytest.mark.parametrize("count", [3, 10, 10_000])
def test_what_was_there_stays(count: int) -> None:
    arrays = ElasticArrays()
    numbers = arrays("numbers", 10, np.int64)
    numbers[:] = np.arange(10)
    del numbers
    numbers = arrays.resize("numbers", count)
    assert numbers.size == count
    assert numbers[:10].tolist() == list(range(min(10, count)))


def test_a_view_that_is_held_is_left_alone() -> None:
    arrays = ElasticArrays()
    numbers = arrays("numbers", 10, np.int64)
    numbers[:] = np.arange(10)
    longer = arrays.resize("numbers", 2000)
    longer[:10] += 100
    assert numbers.tolist() == list(range(10))
    assert longer[:10].tolist() == list(range(100, 110))
    shorter = arrays.resize("numbers", 5)
    assert shorter.tolist() == list(range(100, 105))
    assert arrays.copies == 2


def test_a_view_that_nobody_can_reach_is_no_hindrance() -> None:
    arrays = ElasticArrays()
    circle: list[Any] = [arrays("numbers", 10, np.int64)]
    circle.append(circle)
    gc.disable()
    try:
        del circle
        arrays.resize("numbers", 20)
        assert arrays.copies == 0
    finally:
        gc.enable()
