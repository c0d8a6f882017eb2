"""The tuner's splits against brute force: every point of a grid, by the models."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from semistream.core.errors import BudgetTooSmallError
from semistream.costs import Setting, costs_of, load_constants, modelled
from semistream.tuner import best_split

pytestmark = pytest.mark.slow

DISK = load_constants("disk-2010")
SETTING = Setting.planned(2_000_000, exponent=1.0, constants=DISK)
MEMORY = 12_000_000
PAGES = np.unique(np.geomspace(1, 1000, 22).astype(int)).tolist()
SHARES = [0.02, 0.05, 0.08, *np.linspace(0.1, 0.9, 17).round(2).tolist()]

GRIDS: dict[str, dict[str, list[Any]]] = {
    "inlj": {"in_flight": [1, 4, 16, 64, 256, 1024]},
    "meshjoin": {"partition_pages": list(range(1, 1200, 7))},
    "r_meshjoin": {"disk_pages": list(range(1, 1200, 7))},
    "partitioned_join": {"partition_pages": PAGES},
    "hybridjoin": {"partition_pages": PAGES, "in_flight": [1, 2, 8, 64, 256]},
    "x_hybridjoin": {"partition_pages": PAGES, "pinned_pages": [0, *PAGES], "in_flight": [1, 16]},
    "cmeshjoin": {"cache_share": SHARES, "partition_pages": PAGES},
    "cachejoin": {"cache_share": SHARES, "partition_pages": PAGES, "in_flight": [1, 16]},
    "front+inlj": {"cache_share": SHARES, "in_flight": [1, 16, 256]},
    "front+x_hybridjoin": {"cache_share": SHARES, "partition_pages": PAGES[::2], "pinned_pages": [0, 20, 100]},
    "p_cachejoin": {"cache_share": SHARES[::2], "partition_pages": PAGES[::2], "buffer_share": [0.002, 0.01, 0.05]},
    "op_cachejoin": {"cache_share": SHARES[::4], "partition_pages": PAGES[::3], "buffer_share": [0.005, 0.02]},
    "ssij": {
        "input_tuples": [500, 5_000, 20_000], "buffer_tuples": np.geomspace(1e4, 2e5, 8).astype(int).tolist(),
        "max_scan": [10, 50, 200, 800],
    },
    "front+ssij": {
        "cache_share": SHARES[::3], "buffer_tuples": np.geomspace(5e3, 1e5, 6).astype(int).tolist(),
        "max_scan": [50, 200],
    },
    "adaptivejoin": {"window": np.geomspace(100, 3e5, 24).astype(int).tolist()},
}  # fmt: skip


def test_every_split_is_searched():
    assert set(GRIDS) == set(modelled())


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", modelled())
def test_split_is_within_a_twentieth_of_the_best_of_a_grid(algorithm):
    costs, grid = costs_of(algorithm), GRIDS[algorithm]
    found = best_split(costs, SETTING, MEMORY)
    tried: list[tuple[float, dict[str, Any]]] = []
    for values in itertools.product(*grid.values()):
        options = dict(zip(grid, values, strict=True))
        try:
            tried.append((costs.quick(SETTING, MEMORY, **options).rate, options))
        except BudgetTooSmallError:
            continue
    # where the quick model is not the full one, the grid's best by the one are compared by the other
    tried.sort(key=lambda one: -one[0])
    best = max(costs.predict(SETTING, MEMORY, **options).rate for _, options in tried[:8])
    assert found.rate >= 0.95 * best


@pytest.mark.parametrize("share", [0.01, 0.1])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_cmeshjoin_is_split_as_the_derivative_says(share, exponent):
    # CMESHJOIN's optimum takes processing for free and the rate behind for proportional to memory
    from semistream.costs.basis.front_stage import best_cache

    setting = Setting.planned(20_000_000, exponent=exponent, constants=DISK)
    memory = int(2.4e9 * share)
    found = best_split(costs_of("cmeshjoin"), setting, memory)
    held = max(16.0, best_cache(setting, 14 / 16 * memory))
    by_derivative = costs_of("cmeshjoin").rate(
        setting, memory, partition_pages=found.options["partition_pages"],
        cache_share=held * setting.cached_bytes / memory * 16 / 14,
    )  # fmt: skip
    assert found.rate >= 0.99 * by_derivative


def test_given_options_are_not_tuned():
    found = best_split(costs_of("cmeshjoin"), SETTING, MEMORY, fixed={"cache_share": 0.5})
    assert found.options["cache_share"] == 0.5
    assert found.options["partition_pages"] > 1


def test_a_budget_for_nothing_is_refused():
    with pytest.raises(BudgetTooSmallError, match="needs about") as refused:
        best_split(costs_of("cachejoin"), SETTING, 20_000)
    assert refused.value.minimum > 20_000
