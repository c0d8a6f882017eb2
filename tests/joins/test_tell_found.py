"""Results can tell which tuples have a partner, also where R's own columns are NULL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "hybridjoin", "cachejoin", "partitioned_join", "oracle"])
@pytest.mark.parametrize("text", [False, True])
def test_a_last_column_says_who_has_a_partner(tmp_path: Path, algorithm: str, text: bool) -> None:
    ids = np.arange(0, 3000, 2)
    keys = [f"k{i}" for i in ids] if text else ids
    table = pa.table({"id": keys, "value": pa.array(ids, mask=ids % 3 == 0)})
    asked = np.random.default_rng(1).integers(0, 3000, 2000)
    stream = pa.record_batch({"key": pa.array([f"k{i}" for i in asked] if text else asked, mask=asked % 11 == 0)})
    with semistream.Relation.build(table, tmp_path / "r", key="id", page_size=4096) as relation:
        join = semistream.create(algorithm, relation, on="key", memory="400KB")
        join.tell_found("there")
        results = pa.Table.from_batches(join.process([stream]))
    assert results.column_names == ["key", "value", "there"]
    assert results.num_rows == asked.size
    for key, value, there in zip(*results.to_pydict().values(), strict=True):
        number = None if key is None else int(str(key).removeprefix("k"))
        assert there == (number is not None and number % 2 == 0)
        assert value == (number if there and number is not None and number % 3 else None)
