from __future__ import annotations

import math

import numpy as np
import pytest

from semistream.workloads.keys.draws import fractions, sequence_seed
from semistream.workloads.keys.zipf import MAX_RANKS, ZipfLaw, _area, _area_inverse, _surely_kept, harmonic

EXPONENTS = [0.0, 0.1, 0.5, 0.9, 0.9995, 0.9999999, 1.0, 1.0000001, 1.0005, 1.2, 2.0, 3.5]


def bins(law: ZipfLaw, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Upper ends of bins, every rank alone at first and ever wider ones then, and their probabilities."""
    ends = np.unique(
        np.concatenate([np.arange(1, min(law.size, 100) + 1), np.geomspace(1, law.size, 120).astype(np.int64)])
    )
    shares = np.array([law.share(int(end)) for end in ends])
    # Rare ranks at the end are put together until enough draws are due.
    kept = (1 - shares) * draws >= 20
    kept[-1] = True
    ends, shares = ends[kept], shares[kept]
    probability = np.diff(shares, prepend=0)
    wide = probability * draws >= 5
    wide[-1] = True
    return ends[wide], np.diff(shares[wide], prepend=0)


@pytest.mark.parametrize("exponent", [*EXPONENTS, 8.0])
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 300, 100_000])
def test_harmonic_is_the_sum(count: int, exponent: float) -> None:
    expected = math.fsum(k**-exponent for k in range(1, count + 1))
    assert harmonic(count, exponent) == pytest.approx(expected, rel=1e-13)


def test_harmonic_of_many_terms() -> None:
    assert harmonic(10**9, 1.0) == pytest.approx(math.log(10**9) + 0.5772156649015329 + 0.5e-9, rel=1e-14)
    assert harmonic(10**12, 2.0) == pytest.approx(math.pi**2 / 6 - 1e-12, rel=1e-14)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_probabilities_sum_to_one(exponent: float) -> None:
    law = ZipfLaw(10_000, exponent)
    probability = law.probability(np.arange(1, 10_001))
    assert probability.sum() == pytest.approx(1, rel=1e-12)
    assert probability[:300].sum() == pytest.approx(law.share(300), rel=1e-12)
    assert law.share(0) == 0
    assert law.share(10**9) == 1


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("size", [2, 10, 5_000, 1_000_000, 1_000_000_000])
def test_draws_follow_the_law(size: int, exponent: float, surprise) -> None:
    law = ZipfLaw(size, exponent)
    ranks = law.ranks(sequence_seed(3, "law", size), 0, 400_000)
    assert ranks.min() >= 1
    assert ranks.max() <= size
    ends, probability = bins(law, ranks.size)
    observed = np.bincount(np.searchsorted(ends, ranks), minlength=ends.size)
    assert surprise(observed, probability) < 4


def test_the_test_above_sees_a_wrong_law(surprise) -> None:
    law = ZipfLaw(5_000, 1.0)
    ends, probability = bins(law, 400_000)
    # HYBRIDJOIN's printed generator: the integer part of a draw from the density 1/x.
    printed = np.exp(fractions(sequence_seed(3, "printed"), 0, 400_000) * math.log(5_001)).astype(np.int64)
    near = ZipfLaw(5_000, 1.01).ranks(sequence_seed(3, "near"), 0, 400_000)
    for ranks in (printed, near):
        assert surprise(np.bincount(np.searchsorted(ends, ranks), minlength=ends.size), probability) > 8


@pytest.mark.parametrize(("exponent", "beyond"), [(0.5, 10**8), (1.0, 10**8), (1.0005, 10**8), (1.5, 10**5)])
def test_single_rare_ranks_are_resolved(exponent: float, beyond: int, surprise) -> None:
    """In the tail of 10⁹ ranks neighbours are all but equally likely: so are the remainders of the rank."""
    ranks = ZipfLaw(10**9, exponent).ranks(sequence_seed(5, "tail"), 0, 2_000_000)
    tail = ranks[ranks > beyond]
    for modulus in (2, 3, 8):
        assert surprise(np.bincount(tail % modulus, minlength=modulus), np.full(modulus, 1 / modulus)) < 4


@pytest.mark.parametrize("exponent", [e for e in EXPONENTS if e > 0])
def test_what_is_kept_without_a_look_is_never_to_be_rejected(exponent: float) -> None:
    surely = _surely_kept(exponent)
    assert 0 < surely < 0.5
    for rank in [*range(2, 2000), 10_000, 50_000]:
        border = _area_inverse(_area(rank + 0.5, exponent) - rank**-exponent, exponent)
        assert rank - border >= surely - 1e-6


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_area_and_its_inverse(exponent: float) -> None:
    for x in (0.7, 1.5, 17.0, 1e5, 1e9):
        # Seen from its far end, area at exponents above 1 is tiny, and the inverse is as exact there.
        assert _area_inverse(_area(x, exponent), exponent) == pytest.approx(x, rel=1e-10)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5])
def test_cutting_changes_nothing(exponent: float) -> None:
    law, seed = ZipfLaw(10**6, exponent), sequence_seed(9, "cut")
    whole = law.ranks(seed, 1000, 500)
    assert np.array_equal(whole, np.concatenate([law.ranks(seed, 1000, 1), law.ranks(seed, 1001, 499)]))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 50.0, 500.0])
def test_one_rank_and_extreme_exponents(exponent: float) -> None:
    seed = sequence_seed(1, "extreme")
    assert (ZipfLaw(1, exponent).ranks(seed, 0, 1000) == 1).all()
    ranks = ZipfLaw(10**9, exponent).ranks(seed, 0, 10_000)
    assert ranks.min() >= 1
    assert ranks.max() <= 10**9
    if exponent >= 50:
        assert (ranks == 1).all()


@pytest.mark.parametrize(
    ("size", "exponent"), [(0, 1.0), (MAX_RANKS + 1, 1.0), (10, -0.1), (10, math.inf), (10, math.nan)]
)
def test_bad_laws_are_refused(size: int, exponent: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        ZipfLaw(size, exponent)
