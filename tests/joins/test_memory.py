"""The process grows by no more than a join's budget and a fixed allowance, however long the stream.

The short version of ``semistream.joins.bench_memory``: a million tuples, one fresh process a join.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import semistream
from semistream.joins import find
from semistream.joins.bench_memory import ALLOWANCE, MemorySpec, measure_apart, prepare

SPEC = MemorySpec(rows=200_000, tuples=1_000_000, batch_rows=20_000, direct=False)
BOUNDED = [algorithm for algorithm in semistream.algorithms() if find(algorithm).bounded]

# A run this short has no right to the whole allowance. All joins measured took 3 to 9 MB of it.
SHORT_ALLOWANCE = ALLOWANCE // 2
# Eight bytes a tuple: what a join that keeps but one number of each would take.
MOST_CREEP = 8 * SPEC.tuples // 2


@pytest.fixture(scope="module")
def relation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(SPEC, tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("algorithm", BOUNDED)
def test_resident_memory_stays_within_the_budget(algorithm: str, relation: Path) -> None:
    growth = measure_apart(algorithm, relation, SPEC, memory="10%")
    assert growth.tuples == SPEC.tuples
    assert growth.peak_reserved <= growth.budget
    assert growth.beyond <= SHORT_ALLOWANCE, f"grew by {growth.growth:,} B with a budget of {growth.budget:,} B"
    assert growth.creep <= MOST_CREEP, f"grew by {growth.creep:,} B in the second half of the stream"
