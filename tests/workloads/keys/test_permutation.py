from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.workloads.keys.permutation import MAX_SIZE, Permutation


@pytest.mark.parametrize("seed", range(3))
def test_small_ones_are_bijections(seed: int) -> None:
    for size in range(1, 400):
        moved = Permutation(size, seed).apply(np.arange(size))
        assert np.array_equal(np.sort(moved), np.arange(size)), size


@pytest.mark.parametrize("size", [2**20, 2**20 + 1, 999_983, 1_000_000, 1023 * 1025])
def test_large_ones_are_bijections(size: int) -> None:
    moved = Permutation(size, seed=5).apply(np.arange(size))
    assert np.array_equal(np.bincount(moved, minlength=size), np.ones(size, dtype=np.int64))


@settings(max_examples=200)
@given(st.integers(1, MAX_SIZE), st.integers(0, 2**63), st.data())
def test_the_inverse_undoes_it(size: int, seed: int, data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), dtype=np.int64)
    permutation = Permutation(size, seed)
    moved = permutation.apply(values)
    assert ((moved >= 0) & (moved < size)).all()
    assert np.array_equal(permutation.invert(moved), values)
    assert np.array_equal(permutation.apply(permutation.invert(values)), values)


@pytest.mark.parametrize("size", [30_000, 10**6, 10**9])
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_scattered_evenly(size: int, seed: int, surprise) -> None:
    moved = Permutation(size, seed).apply(np.arange(2_000))
    even = np.full(40, 1 / 40)
    assert surprise(np.histogram(moved, 40, (0, size))[0], even) < 4
    assert surprise(np.histogram(np.diff(moved) % size, 40, (0, size))[0], even) < 4
    assert abs(np.corrcoef(np.arange(2_000), moved)[0, 1]) < 0.1


def test_seeds_give_different_permutations() -> None:
    values = np.arange(10_000)
    same = np.mean(Permutation(10_000, 1).apply(values) == Permutation(10_000, 2).apply(values))
    assert same < 0.002
    assert np.array_equal(Permutation(10_000, 1).apply(values), Permutation(10_000, 1).apply(values))


def test_every_order_of_a_few_is_possible() -> None:
    orders = {tuple(Permutation(3, seed).apply(np.arange(3)).tolist()) for seed in range(200)}
    assert len(orders) == 6


def test_input_is_left_alone() -> None:
    values = np.arange(100)
    Permutation(100, 1).apply(values)
    assert np.array_equal(values, np.arange(100))


@pytest.mark.parametrize("wrong", [-1, 10])
def test_values_outside_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"{wrong} is not in \[0, 10\)"):
        Permutation(10).apply(np.array([0, wrong]))
    with pytest.raises(ValueError, match="not in"):
        Permutation(10).invert(np.array([wrong]))


@pytest.mark.parametrize("size", [0, -3, MAX_SIZE + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="size"):
        Permutation(size)
