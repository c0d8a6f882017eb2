"""What a Delta log may contain, and what may happen to it while it is followed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from semistream.errors import FollowError
from semistream.relation.followed.follow import catch_up
from semistream.relation.followed.follower import Follower
from semistream.relation.relation import Relation


def rows(path: Path) -> list[dict[str, object]]:
    with Relation.open(path) as relation:
        return relation.to_table().sort_by("id").to_pylist()


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_texts_with_line_ends_of_unicode(tmp_path, end):
    """JSON does not escape these. They are in a log as parts of statistics and of partitions' values."""
    table, path = tmp_path / "table", tmp_path / "r"
    first = pa.table({"id": [1, 2], "name": [f"a{end}b", "c"], "part": ["x", f"y{end}"]})
    write_deltalake(table, first, partition_by=["part"])
    semistream.follow(table, path, key="id")
    DeltaTable(table).update(predicate="id = 2", updates={"name": f"'z{end}'"})
    semistream.follow(table, path)
    assert rows(path) == [{"id": 1, "name": f"a{end}b", "part": "x"}, {"id": 2, "name": f"z{end}", "part": f"y{end}"}]


def test_a_table_that_is_made_again_with_as_many_commits(tmp_path):
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, pa.table({"id": [1], "name": ["old"]}))
    follower = Follower(table, path, "id")
    catch_up(follower)
    shutil.rmtree(table)
    write_deltalake(table, pa.table({"id": [2], "name": ["new"]}))
    for look in (follower.lag, follower.step):
        with pytest.raises(FollowError, match=r"has the id .*; give another path, or rebuild"):
            look()
    assert rows(path) == [{"id": 1, "name": "old"}]
