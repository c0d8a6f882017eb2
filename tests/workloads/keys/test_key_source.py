from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.workloads import KeySource, UniformKeys, ZipfKeys
from semistream_lab.workloads import LocalityKeys, ShiftingKeys

SOURCES: list[KeySource] = [
    UniformKeys(1000, seed=1),
    ZipfKeys(1000, 0.0, seed=1),
    ZipfKeys(1000, 1.0, "noperm", seed=1),
    ZipfKeys(10**9, 1.0, "random", seed=1),
    ZipfKeys(50, 1.5, "random", seed=1),
    LocalityKeys(1000, intervals=20, interval_rows=7, seed=1),
    LocalityKeys(1000, intervals=3, interval_rows=100, exponent=0.5, shape="random", seed=1),
    ShiftingKeys(1000, shifts=(1, 10, 11, 120), seed=1),
]


@pytest.mark.parametrize("source", SOURCES, ids=repr)
@given(lengths=st.lists(st.integers(0, 60), max_size=6), start=st.integers(0, 200))
def test_keys_do_not_depend_on_how_they_are_cut(source: KeySource, lengths: list[int], start: int) -> None:
    starts = start + np.cumsum([0, *lengths])
    parts = [source.keys(int(begin), length) for begin, length in zip(starts, lengths, strict=False)]
    whole = source.keys(start, sum(lengths))
    assert whole.dtype == np.int64
    assert np.array_equal(whole, np.concatenate([*parts, whole[:0]]))


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_a_pickled_source_gives_the_same_keys(source: KeySource) -> None:
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert np.array_equal(again.keys(5, 500), source.keys(5, 500))


@pytest.mark.parametrize("source", SOURCES, ids=repr)
def test_keys_are_in_range_and_the_seed_matters(source: KeySource) -> None:
    keys = source.keys(0, 5000)
    assert keys.min() >= 0
    assert keys.max() < source.size
    other = pickle.loads(pickle.dumps(source))
    object.__setattr__(other, "seed", 2)
    assert not np.array_equal(other.keys(0, 5000), keys)


@pytest.mark.parametrize("source", SOURCES, ids=repr)
@pytest.mark.parametrize(("start", "count"), [(-1, 5), (0, -1)])
def test_positions_before_the_stream_are_refused(source: KeySource, start: int, count: int) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        source.keys(start, count)


def test_keys_of_a_seed_stay_what_they_are() -> None:
    """Results that name a seed must be reproducible with later versions."""
    assert UniformKeys(1000, seed=42).keys(0, 6).tolist() == [572, 241, 286, 40, 712, 861]
    assert ZipfKeys(1000, 1.0, "noperm", seed=42).keys(0, 6).tolist() == [34, 24, 405, 244, 14, 38]
    assert ZipfKeys(1000, 1.0, "random", seed=42).keys(0, 6).tolist() == [359, 906, 195, 154, 7, 321]


def test_four_fifths_of_the_sales_are_of_a_fifth_of_the_products() -> None:
    """HYBRIDJOIN Fig. 8. The rule holds at exponent 1 for some thousands of products and is exceeded beyond."""
    for size, expected in ((2_000, 0.80), (1_000_000, 0.89)):
        source = ZipfKeys(size, 1.0, "random", seed=7)
        counts = np.sort(np.bincount(source.keys(0, 4_000_000), minlength=size))[::-1]
        hottest = source.hottest(size // 5)
        in_hottest = np.isin(source.keys(0, 100_000), hottest).mean()
        assert source.law.share(size // 5) == pytest.approx(expected, abs=0.005)
        assert in_hottest == pytest.approx(expected, abs=0.01)
        # The best fifth of a sample is a little better than the best fifth of the law.
        assert expected - 0.01 < counts[: size // 5].sum() / counts.sum() < expected + 0.05


def test_noperm_orders_keys_by_frequency() -> None:
    counts = np.bincount(ZipfKeys(100, 1.0, "noperm", seed=1).keys(0, 1_000_000), minlength=100)
    assert counts.argmax() == 0
    assert (np.diff(counts[:20]) < 0).all()
    assert ZipfKeys(100).hottest(5).tolist() == [0, 1, 2, 3, 4]


def test_random_moves_the_same_ranks_to_other_keys() -> None:
    plain, moved = (ZipfKeys(10_000, 1.0, shape, seed=3) for shape in ("noperm", "random"))
    ranks, keys = plain.keys(0, 20_000), moved.keys(0, 20_000)
    assert np.array_equal(moved.hottest(10_000)[ranks], keys)
    # A hundred hot keys lie on a hundred different pages of a hundred keys, or nearly.
    assert len(set((moved.hottest(100) // 100).tolist())) > 50


def test_exponent_zero_is_uniform(surprise) -> None:
    for source in (ZipfKeys(500, 0.0, "random", seed=1), UniformKeys(500, seed=1)):
        assert surprise(np.bincount(source.keys(0, 200_000), minlength=500), np.full(500, 1 / 500)) < 4


@pytest.mark.parametrize("interval", [0, 1, 19, 20, 45])
def test_locality_stays_in_its_part(interval: int, surprise) -> None:
    source = LocalityKeys(size=100_003, intervals=20, interval_rows=50_000, seed=2)
    keys = source.keys(interval * 50_000, 50_000)
    first, beyond = source.part_bounds(interval)
    assert first == (interval % 20) * 100_003 // 20
    assert keys.min() == first
    assert keys.max() < beyond
    # Within its part the first key is the most frequent, as Zipf's law has it.
    law = ZipfKeys(beyond - first, 1.0).law
    ends = np.unique(np.geomspace(1, beyond - first, 30).astype(np.int64))
    shares = np.array([law.share(int(end)) for end in ends])
    observed = np.bincount(np.searchsorted(ends, keys - first + 1), minlength=ends.size)
    assert surprise(observed, np.diff(shares, prepend=0)) < 4


def test_locality_parts_cover_all_keys() -> None:
    source = LocalityKeys(size=1_003, intervals=20)
    bounds = [source.part_bounds(interval) for interval in range(20)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == 1_003
    assert all(left[1] == right[0] for left, right in pairwise(bounds))


def test_a_shift_moves_the_hot_set_and_keeps_the_skew() -> None:
    source = ShiftingKeys(size=100_000, shifts=(200_000, 400_000), seed=4)
    hot = [source.hottest(100, position) for position in (0, 200_000, 400_000)]
    phases = [source.keys(start, 200_000) for start in (0, 200_000, 400_000)]
    shares = np.array([[np.isin(phase, keys).mean() for keys in hot] for phase in phases])
    expected = ZipfKeys(100_000, 1.0).law.share(100)
    assert np.allclose(np.diag(shares), expected, atol=0.01)
    assert (shares[~np.eye(3, dtype=bool)] < 0.05).all()


def test_a_shift_happens_at_its_position() -> None:
    shifted, plain = ShiftingKeys(1000, shifts=(100,), seed=4), ShiftingKeys(1000, shifts=(), seed=4)
    assert np.array_equal(shifted.keys(0, 100), plain.keys(0, 100))
    assert np.mean(shifted.keys(100, 1000) == plain.keys(100, 1000)) < 0.05
    assert shifted.keys(100, 1)[0] != plain.keys(100, 1)[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: UniformKeys(0),
        lambda: ZipfKeys(10, -1.0),
        lambda: ZipfKeys(10, 1.0, "sorted"),  # type: ignore[arg-type]
        lambda: LocalityKeys(10, intervals=0),
        lambda: LocalityKeys(10, intervals=11),
        lambda: LocalityKeys(100, interval_rows=0),
        lambda: LocalityKeys(100, shape="x"),  # type: ignore[arg-type]
        lambda: ShiftingKeys(10, shifts=(5, 5)),
        lambda: ShiftingKeys(10, shifts=(5, 3)),
        lambda: ShiftingKeys(10, shifts=(0,)),
        lambda: ShiftingKeys(0, shifts=()),
    ],
)
def test_bad_sources_are_refused(make) -> None:
    with pytest.raises(ValueError, match="must"):
        make()
