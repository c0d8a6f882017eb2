"""Joins on ranges (``condition="between"``): every type of bound gives what SQL's ``BETWEEN`` gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.joins import algorithms, find
from semistream.relation.relation import Relation

RANGED = [name for name in algorithms() if "between" in find(name).conditions]


@pytest.mark.parametrize("algorithm", RANGED)
def test_ranges_of_one_key_each_find_it_in_any_shard(tmp_path: Path, algorithm: str) -> None:
    keys = np.arange(0, 1500, 2)
    with Relation.build(pa.table({"k": keys, "v": -keys}), tmp_path / "r", "k", page_size=512, shards=3) as relation:
        join = semistream.create(algorithm, relation, on=["a", "b"], condition="between", memory=300_000)
        result = pa.Table.from_batches(join.process([pa.record_batch({"a": np.arange(1600), "b": np.arange(1600)})]))
    found = dict(zip(result["a"].to_pylist(), result["v"].to_pylist(), strict=True))
    assert result.num_rows == 1600
    assert found == {key: -key if key % 2 == 0 and key < 1500 else None for key in range(1600)}
