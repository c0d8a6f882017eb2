"""A relation in a real HDFS."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import NotARelationError, StorageError
from semistream.relation import updates
from semistream.relation.relation import Relation
from semistream.relation.stores import object_store
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.relation.versions.pins import version_for

ROWS = 100_000


def test_everything_works_with_a_real_file_system(hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMISTREAM_LOCAL_DIR", str(tmp_path / "tier"))
    path = f"{hdfs}/ware house/products"
    table = pa.table({"id": np.arange(ROWS), "name": [f"{number:090d}" for number in range(ROWS)]})
    with Relation.build(table, path, key="id", shards=2) as relation:
        assert relation.nbytes > 8 << 20
        assert relation.to_table().sort_by("id").equals(table)
    with pytest.raises(NotARelationError, match="no relation at"):
        Relation.open(f"{hdfs}/nothing")

    def write(mine: int) -> None:
        for turn in range(3):
            updates.upsert(path, pa.table({"id": [ROWS + 10 * mine + turn], "name": [f"{mine} {turn}"]}))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in updates.history(path)] == [1, 2, 3, 4, 5, 6, 7]
    with Relation.open(path, local="2MB") as relation:
        assert relation.to_table().num_rows == ROWS + 6
        assert relation.counters.requests > 0
    place = place_of(path)
    assert isinstance(place, StorePath)
    assert version_for(place, "query", 1) == 7
    assert updates.compact(path) == 8
    assert version_for(place, "query", 1) == 7
    assert updates.vacuum(path) == [], "all are younger than an hour"
    assert not place.store.put_if_absent(f"{place.key}/manifest-00000001.json", b"another")
    assert not [status for status in place.store.below(place.key) if ".unfinished" in status.key]
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    object_store._opened.clear()
    with pytest.raises(StorageError, match="does not permit it"):
        updates.upsert(path, pa.table({"id": [1], "name": ["mine"]}))
