"""What a Delta log may contain, and what may happen to it while it is followed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import quote, unquote

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


@pytest.mark.parametrize("moment", ["yesterday", None, [1]])
def test_a_commit_without_a_time(tmp_path, moment):
    """What a writer puts into commitInfo is its own affair."""
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, pa.table({"id": [1]}))
    (log,) = (table / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    told = [{"commitInfo": {"timestamp": moment}} if "commitInfo" in action else action for action in actions]
    log.write_text("\n".join(map(json.dumps, told)))
    semistream.follow(table, path, key="id")
    assert rows(path) == [{"id": 1}]


def removal(table: Path, rename: str = "") -> None:
    """Commit the removal of the only file, whose path is encoded in another way, and whose partition is left out."""
    (log,) = (table / "_delta_log").glob("*.json")
    (add,) = (found["add"] for found in map(json.loads, log.read_text().splitlines()) if "add" in found)
    action = {"path": quote(unquote(add["path"]) + rename, safe="/"), "deletionTimestamp": 1, "dataChange": True}
    assert action["path"] != add["path"]
    (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"remove": action}))


def test_a_removed_file_whose_path_is_encoded_in_another_way(tmp_path):
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, pa.table({"id": [1], "part": ["é b"]}), partition_by=["part"])
    semistream.follow(table, path, key="id")
    removal(table)
    semistream.follow(table, path)
    assert rows(path) == []


def test_a_removed_file_that_the_table_does_not_have(tmp_path):
    table, path = tmp_path / "table", tmp_path / "r"
    write_deltalake(table, pa.table({"id": [1], "part": ["a"]}), partition_by=["part"])
    semistream.follow(table, path, key="id")
    removal(table, rename="x")
    with pytest.raises(FollowError, match=r"removes the file part=a/.*x, which version 0 does not have; rebuild"):
        semistream.follow(table, path)
    assert rows(path) == [{"id": 1, "part": "a"}]
