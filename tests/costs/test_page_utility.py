"""Pages of R that have rows of two keys: how many there are, and that they are cached before others."""

from __future__ import annotations

import math

import pytest

from semistream.costs import Setting, load_constants
from semistream.costs.basis.page_utility import PageClasses, _above, kept_pages
from semistream.costs.basis.popularity import key_classes
from semistream.costs.ssij import _looked_up
from semistream.joins.ssij.ssij_layout import Thresholds


def pages(fill: float, rows_per_key: int = 320, exponent: float = 0.0, shape: str = "noperm") -> PageClasses:
    setting = Setting.planned(
        400_000, 128, fill=fill, rows_per_key=rows_per_key, exponent=exponent, shape=shape,
        constants=load_constants("disk-2010"),
    )  # fmt: skip
    return PageClasses.of(setting, key_classes(setting), 1000)


@pytest.mark.parametrize("shape", ["noperm", "random"])
def test_of_an_even_stream_only_pages_of_two_keys_are_cached_as_long_as_there_are_some(shape):
    found = pages(0.8, shape=shape)
    two = found.shared * found.count.sum()
    one, both = kept_pages(found, two / 2, cycle=50_000.0, kept=0.0)
    assert both.max() > 0.4
    assert one.max() < 0.01
    one, both = kept_pages(found, 4 * two, cycle=50_000.0, kept=0.0)
    assert both.min() > 0.99
    assert float((found.count * one).sum()) * (1 - found.shared) == pytest.approx(3 * two, rel=0.02)


def test_keys_that_begin_with_pages_share_none():
    found = pages(1.0)
    a_page = round(400_000 / found.count.sum())
    if 320 % a_page == 0:
        assert found.pages_a_key == found.each
    aligned = pages(1.0, rows_per_key=a_page * 5)
    assert aligned.pages_a_key == pytest.approx(5.0, rel=0.01)
    assert aligned.shared == pytest.approx(0.0, abs=0.01)
    assert pages(1.0, rows_per_key=a_page * 5 + 1).pages_a_key == pytest.approx(6.0, rel=0.01)


def test_frequent_keys_anywhere_in_r_have_pages_with_two_others():
    found = pages(0.8, exponent=1.0, shape="random")
    held = (found.count * found.shared * found.hotter).sum()
    assert held == pytest.approx(found.shared * found.count.sum(), rel=1e-6)
    assert found.hotter[0] == pytest.approx(2.0, abs=0.05)
    assert found.hotter[-1] < 1.0


@pytest.mark.parametrize(
    ("missed", "looked_up"), [(1.0, 50_000), (0.9999, 55_700), (0.99, 58_000), (0.8, 66_500), (0.78, 70_500)]
)
def test_a_phase_begins_with_one_batch_more_or_less_near_a_border(missed, looked_up):
    """At 0.9999 five tuples are hits, four of a key: once in three or four times none is, and 50 000 are enough."""
    found = _looked_up(Thresholds(12_500, 50_000, 12_500), 8_000.0, missed, 1 / 12_500)
    assert found == pytest.approx(looked_up, rel=0.01)


@pytest.mark.parametrize("mean", [0.01, 0.3, 4.0, 6.1, 30.0])
def test_the_few_pages_far_above_the_mean_are_counted(mean):
    for count in range(1, 60):
        exact = 1.0 - math.fsum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
        if exact > 1e-6:
            assert _above(mean, 1.0, float(count)) == pytest.approx(exact, rel=0.3), count


def test_utility_that_is_kept_varies_less_than_what_comes_anew():
    """Halved with each phase, 8 on average are what a Poisson count of 12 is, times two thirds: of variance 5.3."""
    assert _above(8.0, 2 / 3, 13.0) == pytest.approx(0.0285, rel=0.02)
    assert _above(8.0, 1.0, 13.0) == pytest.approx(0.0638, rel=0.02)
