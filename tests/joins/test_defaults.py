"""What a join does if nothing is said: no row of the stream is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import semistream


@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_rows_without_a_partner_stay(algorithm: str, tmp_path: Path) -> None:
    with semistream.Relation.build(pa.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "r", key="id") as relation:
        join = semistream.create(algorithm, relation, on="id", memory="4MB")
        found = pa.Table.from_batches(join.process([pa.record_batch({"id": [2, 9, None]})]))
    assert sorted(found.to_pylist(), key=str) == [
        {"id": 2, "name": "b"}, {"id": 9, "name": None}, {"id": None, "name": None},
    ]  # fmt: skip
