"""The keys that changed between two versions: all of those, and none besides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.relation.relation import Relation
from semistream.relation.updates import compact, delete, update, upsert
from semistream.relation.version_changes import changed_keys


def _table(keys: np.ndarray, salt: int = 0, *, text: bool) -> pa.Table:
    values = [f"{key * 7 + salt}" * (1 + key % 9) for key in keys.tolist()] if text else keys * 7 + salt
    return pa.table({"id": keys, "value": pa.array(values)})


@pytest.mark.parametrize("text", [False, True], ids=["fixed rows", "rows that vary"])
@pytest.mark.parametrize("shards", [1, 3])
def test_exactly_the_keys_that_changed(tmp_path: Path, text: bool, shards: int) -> None:
    path = tmp_path / "r"
    keys, gone, new = np.arange(0, 4000, 2), list(range(200, 300, 2)), list(range(3001, 3101, 2))
    with Relation.build(_table(keys, text=text), path, "id", page_size=1024, shards=shards) as first:
        home = first.home
        upsert(path, _table(np.array([10, 11, 500]), 1, text=text))
        before_last = upsert(path, _table(np.array([10, 1000, 1002]), 2, text=text))
        # 1000 comes back as it was at first, 1004 is given what it has, new keys split pages, and a page loses all rows
        last = update(
            path,
            upserts=pa.concat_tables([_table(np.array([1000, 1004]), text=text), _table(np.array(new), text=text)]),
            deletes=pa.array(gone),
        )

        def changed(before: int, after: int) -> list[int]:
            parts = [changed_keys(path, before, after, shard=shard) for shard in range(shards)]
            for shard, part in enumerate(parts):
                assert part is not None
                assert (home(part) == shard).all()
            return np.sort(np.concatenate(parts)).tolist()

        assert changed(1, last) == sorted([10, 11, 500, 1002, *gone, *new])
        assert changed(before_last, last) == sorted([1000, *gone, *new])
        assert changed(last, last) == []


def test_keys_with_several_rows(tmp_path: Path) -> None:
    path = tmp_path / "r"
    keys = np.repeat(np.arange(50), 40)  # each over several pages
    rows = pa.table({"id": keys, "value": np.arange(keys.size)})
    Relation.build(rows, path, "id", page_size=512).close()
    other = pa.table({"id": np.full(39, 7), "value": np.arange(280, 319)})  # one row less
    assert changed_keys(path, 1, upsert(path, other)).tolist() == [7]


def test_what_cannot_be_told(tmp_path: Path) -> None:
    path = tmp_path / "r"
    Relation.build(_table(np.arange(500), text=False), path, "id", page_size=1024).close()
    second = delete(path, pa.array([3]))
    assert changed_keys(path, 1, second, most_pages=1) is None
    assert changed_keys(path, 77, second) is None
    assert changed_keys(path, 1, second, shard=1) is None
    assert changed_keys(path, second, compact(path)) is None
