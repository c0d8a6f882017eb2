from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.workloads.keys.draws import fractions, integers, integers_at, scale_to, sequence_seed

SEED = sequence_seed(1, "test")


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63))
def test_scaling_is_the_high_half_of_the_product(word: int, below: int) -> None:
    assert int(scale_to(np.uint64(word), np.uint64(below))) == word * below >> 64


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 2**40))
def test_draws_do_not_depend_on_how_they_are_cut(lengths: list[int], start: int) -> None:
    starts = start + np.cumsum([0, *lengths[:-1]])
    for draw in (fractions, lambda *where: integers(*where, below=1000)):
        whole = draw(SEED, start, sum(lengths))
        parts = [draw(SEED, int(begin), length) for begin, length in zip(starts, lengths, strict=False)]
        assert np.array_equal(whole, np.concatenate([*parts, whole[:0]]))


def test_hashing_positions_is_drawing_at_them() -> None:
    positions = np.array([5, 3, 5, 0])
    assert np.array_equal(integers_at(SEED, positions, 10**6), integers(SEED, 0, 6, 10**6)[positions])


@pytest.mark.parametrize("below", [1, 2, 7, 1000])
def test_integers_are_uniform(below: int, surprise) -> None:
    drawn = integers(SEED, 0, 200_000, below)
    assert drawn.min() >= 0
    assert drawn.max() < below
    if below > 1:
        assert surprise(np.bincount(drawn, minlength=below), np.full(below, 1 / below)) < 4


def test_fractions_are_uniform_and_below_one(surprise) -> None:
    drawn = fractions(SEED, 0, 200_000)
    assert (drawn >= 0).all()
    assert (drawn < 1).all()
    assert surprise(np.histogram(drawn, 100, (0, 1))[0], np.full(100, 0.01)) < 4


def test_neighbours_and_other_sequences_are_uncorrelated() -> None:
    count = 200_000
    drawn = fractions(SEED, 0, count)
    for other in (np.roll(drawn, 1), np.roll(drawn, 2), fractions(sequence_seed(1, "other"), 0, count)):
        assert abs(np.corrcoef(drawn, other)[0, 1]) < 4 / np.sqrt(count)


def test_every_purpose_has_its_own_seed() -> None:
    seeds = {int(sequence_seed(seed, "a", i)) for seed in range(50) for i in range(50)}
    assert len(seeds) == 2500
    assert sequence_seed(1, "a", "b") != sequence_seed(1, "b", "a")
