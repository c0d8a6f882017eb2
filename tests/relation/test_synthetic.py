"""The relation that makes its pages on demand behaves as the same one on disk."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.clock import VirtualClock
from semistream.joins import create
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation


@pytest.mark.parametrize(("rows", "rows_per_key", "stride"), [(1, 1, 1), (1000, 1, 3), (1000, 7, 2), (500, 200, 1)])
def test_equals_a_relation_on_disk(tmp_path, rows, rows_per_key, stride):
    made_up = synthetic_relation(rows, rows_per_key=rows_per_key, key_stride=stride, page_bytes=2048)
    table = made_up.to_table()
    assert table.column("id").to_pylist() == [i // rows_per_key * stride for i in range(rows)]
    on_disk = Relation.build(table, tmp_path / "r", "id", page_size=2048)
    assert on_disk.page_count == made_up.page_count
    for page in range(made_up.page_count):
        frames = [relation.frames(1) for relation in (made_up, on_disk)]
        for relation, frame in zip((made_up, on_disk), frames, strict=True):
            relation.read(np.array([page]), frame)
        # everything but the checksum
        assert np.array_equal(frames[0][:, 8:], frames[1][:, 8:])
        assert np.array_equal(
            page_keys(frames[0], made_up.layout.stride)[1], page_keys(frames[1], made_up.layout.stride)[1]
        )
    keys = np.arange(-2, rows // rows_per_key * stride + 3)
    for ours, theirs in ((made_up.locate(keys), on_disk.locate(keys)),):
        assert np.array_equal(ours.bounds, theirs.bounds)
        assert np.array_equal(ours.pages, theirs.pages)


def test_a_hundred_million_tuples_are_joined_in_virtual_time():
    clock = VirtualClock()
    relation = synthetic_relation(100_000_000, clock=clock)
    stream = pa.record_batch({"id": np.arange(0, 100_000_000, 1_000_003), "q": np.arange(100)})
    join = create("hybridjoin", relation, on="id", how="inner", memory="64MB", partition_pages=1)
    results = list(join.process([stream]))
    assert sum(batch.num_rows for batch in results) == 100
    assert join.stats.pages_read == 100
    assert clock.now() == pytest.approx(100 * (0.0085 + 8192 / 100e6))
