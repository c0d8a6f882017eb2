"""A relation in a store of a real server: what it answers is understood, and its conditional puts are relied on."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import NotARelationError, StorageError
from semistream.relation import updates
from semistream.relation.damage.repair import repair
from semistream.relation.relation import Relation
from semistream.relation.stores import object_store
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.relation.versions.pins import version_for

R = "s3://bucket/ware house/products+1"
ROWS = 200_000


def test_everything_works_with_a_real_server(s3proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": s3proxy, "AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "very-secret-word",
        "AWS_REGION": "us-east-1", "SEMISTREAM_LOCAL_DIR": str(tmp_path / "tier"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    object_store._opened.clear()
    table = pa.table({"id": np.arange(ROWS), "name": [f"{number:060d}" for number in range(ROWS)]})
    with Relation.build(table, R, key="id", shards=1) as relation:  # in parts: 15 MB in one object
        assert relation.nbytes > 8 << 20
        assert relation.to_table().equals(table)
    with pytest.raises(NotARelationError, match="no relation at"):
        Relation.open("s3://bucket/nothing")
    with pytest.raises(StorageError, match="no such bucket"):
        Relation.open("s3://no-such-bucket-here/r")

    def write(mine: int) -> None:
        for turn in range(3):
            updates.upsert(R, pa.table({"id": [ROWS + 10 * mine + turn], "name": [f"{mine} {turn}"]}))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in updates.history(R)] == [1, 2, 3, 4, 5, 6, 7]
    with Relation.open(R, local="2MB") as relation:
        assert relation.row_count == ROWS + 6
        assert relation.to_table().num_rows == ROWS + 6
    assert version_for(place_of(R), "query", 1) == 7
    assert updates.compact(R) == 8
    place = place_of(R)
    assert isinstance(place, StorePath)
    index = place / next(name for name in place.entries() if name.endswith(".index"))
    index.store.put(index.key, b"damaged")
    assert [one.file for one in repair(R)] == [str(index)]
    assert updates.vacuum(R) == [], "all are younger than an hour"
    assert version_for(place, "query", 1) == 7
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    object_store._opened.clear()
    with pytest.raises(StorageError, match=r"does not permit it.*credentials") as raised:
        Relation.open(R)
    assert "another" not in str(raised.value)
