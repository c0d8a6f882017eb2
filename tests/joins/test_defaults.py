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


def test_a_stream_may_be_given_as_a_table_or_a_batch_and_mistakes_are_told(tmp_path: Path) -> None:
    products = pa.table({"id": [1, 2], "name": ["a", "b"]})
    with semistream.Relation.build(products, tmp_path / "r", key="id") as relation:
        for given in (pa.table({"id": [2]}), pa.record_batch({"id": [2]})):
            join = semistream.create("adaptivejoin", relation, on="id")
            assert pa.Table.from_batches(join.process(given)).to_pylist() == [{"id": 2, "name": "b"}]
        with pytest.raises(TypeError, match=r"cachejoin has no option 'cache_shar'; did you mean 'cache_share'\?"):
            semistream.create("cachejoin", relation, on="id", cache_shar=0.1)
        with pytest.raises(TypeError, match=r"inlj has no option 'window'; it has .*memory"):
            semistream.create("inlj", relation, on="id", window=5)
    with pytest.raises(TypeError, match=r"takes an open relation, not Table; build one"):
        semistream.create("inlj", products, on="id")
    none = products.slice(0, 0)
    with semistream.Relation.build(none, tmp_path / "none", key="id") as relation:
        join = semistream.create("auto", relation, on="id", memory="1MB")
        assert pa.Table.from_batches(join.process(pa.table({"id": [2]}))).to_pylist() == [{"id": 2, "name": None}]
