"""What fits into a deadline of SSIJ with an ideal cache and the best plans of reads."""

from __future__ import annotations

import dataclasses
import math

import pytest

from semistream_lab.experiments.papers.reasons.deadline_reasons import DeadlineLimit

PAGE = 8192 / 100e6
LIMIT = DeadlineLimit(25_000, 3.125, 3750, seek=0.0085, transfer=PAGE, max_scan=200)


def test_few_tuples_cost_a_seek_each_and_many_cost_a_pass() -> None:
    missed = LIMIT.missed_keys(100)
    assert 10 < missed < 100
    # a key lies on four pages or five, and some keys are neighbours
    assert 0.5 * missed * 0.0085 < LIMIT.seconds(100) <= missed * (0.0085 + 5 * PAGE)
    assert 0.9 * LIMIT.scan_seconds < LIMIT.seconds(1 << 20) <= LIMIT.scan_seconds
    assert LIMIT.scan_seconds == pytest.approx(391 * 0.0085 + 78_125 * PAGE)


def test_rates_rise_with_the_deadline_until_two_passes_fit() -> None:
    rates = [LIMIT.rate(seconds) for seconds in (1.0, 3.0, 6.0, 12.0)]
    assert rates == sorted(rates)
    assert rates[-1] < 22_000
    assert LIMIT.rate(2.1 * LIMIT.scan_seconds) == math.inf


def test_all_of_r_in_memory_keeps_any_deadline() -> None:
    assert dataclasses.replace(LIMIT, cached_pages=80_000).rate(0.001) == math.inf
