"""The commands that make and remove versions."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from semistream.cli import main
from semistream.relation.relation import Relation
from semistream.relation.versions.pins import version_for


def semistream(*arguments: object) -> SimpleNamespace:
    """Run a command in this process, which takes a tenth of what another would."""
    printed, told, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["semistream", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        sys.argv = argv
    return SimpleNamespace(returncode=code, stdout=printed.getvalue(), stderr=told.getvalue())


@pytest.mark.slow
def test_upsert_delete_history_compact_vacuum(tmp_path):
    path = tmp_path / "r"
    Relation.build(pa.table({"id": [1, 2, 3], "name": ["apple", "fig", "pear"]}), path, "id")
    pa.csv.write_csv(pa.table({"name": ["date", "kiwi"], "id": [2, 4]}), tmp_path / "new.csv")
    pq.write_table(pa.table({"id": [1], "reason": ["sold out"]}), tmp_path / "gone.parquet")
    assert "version 2" in semistream("upsert", tmp_path / "new.csv", path).stdout
    assert "version 3" in semistream("delete", tmp_path / "gone.parquet", path).stdout
    assert Relation.open(path).to_table().to_pydict() == {"id": [2, 3, 4], "name": ["date", "pear", "kiwi"]}
    assert version_for(path, "some-query", 0) == 3
    assert "version 4" in semistream("compact", path).stdout
    listed = json.loads(semistream("history", path, "--json").stdout)
    assert [(version["number"], version["rows"]) for version in listed] == [(1, 3), (2, 4), (3, 3), (4, 3)]
    assert [version["operation"] for version in listed] == ["build", "upsert", "delete", "compact"]
    for version in listed:
        with Relation.open(path, version=version["number"]) as opened:
            assert opened.page_count == version["pages"], "as inspect says"
    assert "changed pages" in semistream("history", path).stdout
    removed = semistream("vacuum", path, "--older-than", "0")
    assert "Removed" in removed.stdout, removed
    assert "version 3 is kept: a micro-batch of query some-query read it" in removed.stdout
    assert "version 4 is kept: it is the newest" in removed.stdout
    left = json.loads(semistream("history", path, "--json").stdout)
    assert [version["number"] for version in left] == [3, 4], "the pinned version and the newest stay"
    semistream("vacuum", path, "--older-than", "0", "--idle-days", "0")
    assert len(json.loads(semistream("history", path, "--json").stdout)) == 1, "the query will not come back"


@pytest.mark.slow
def test_evolve(tmp_path):
    path = tmp_path / "r"
    rows = {"id": [1, 2], "name": ["apple", "fig"], "price": pa.array([3, 4], pa.int32()), "old": ["x", "y"]}
    Relation.build(pa.table(rows), path, "id")
    changes = ["--add", "stock=int32", "--add", "day=date32", "--default", "stock=7", "--drop", "old"]
    changed = semistream("evolve", path, *changes, "--rename", "name=title", "--widen", "price=int64")
    assert "version 2" in changed.stdout, changed
    assert "id int64, title string, price int64, stock int32, day date32[day]." in changed.stdout
    assert Relation.open(path).to_table().to_pylist() == [
        {"id": 1, "title": "apple", "price": 3, "stock": 7, "day": None},
        {"id": 2, "title": "fig", "price": 4, "stock": 7, "day": None},
    ]
    (tmp_path / "new.csv").write_text("id,title,price,stock,day,origin\n2,date,5,1,2026-01-02,IT\n")
    assert "version 3" in semistream("upsert", tmp_path / "new.csv", path).stdout
    assert "origin" not in Relation.open(path).schema.names
    assert "version 4" in semistream("upsert", tmp_path / "new.csv", path, "--evolve").stdout
    assert [row["origin"] for row in Relation.open(path).to_table().to_pylist()] == [None, "IT"]
    for wrong, why in (
        (["--drop", "id"], "it is a key column"),
        (["--rename", "title"], "cannot read --rename 'title' as NAME=NEW"),
        (["--rename", "title=a", "--rename", "title=b"], "names 'title' twice"),
        (["--add", "more=int8", "--add", "more=int64"], "--add names 'more' twice"),
        (["--add", "more=nothing"], "cannot read 'more=nothing' as NAME=TYPE"),
        (["--add", "more=int8", "--default", "more=many"], "is not a value of type int8"),
        (["--default", "stock=8"], "no change of columns is given"),
        ([], "no change of columns is given"),
    ):
        refused = semistream("evolve", path, *wrong)
        assert (refused.returncode, why in " ".join(refused.stderr.split())) == (2, True), refused
    assert [one["operation"] for one in json.loads(semistream("history", path, "--json").stdout)] == [
        "build", "evolve", "upsert", "upsert",
    ]  # fmt: skip


@pytest.mark.slow
def test_what_is_wrong_is_said_in_one_message(tmp_path):
    pq.write_table(pa.table({"other": [1]}), tmp_path / "new.parquet")
    refused = semistream("upsert", tmp_path / "new.parquet", tmp_path / "nothing")
    assert refused.returncode == 2
    assert "there is no relation at" in " ".join(refused.stderr.split())
    Relation.build(pa.table({"id": [1]}), tmp_path / "r", "id")
    refused = semistream("upsert", tmp_path / "new.parquet", tmp_path / "r")
    assert refused.returncode == 2
    assert "'id'" in refused.stderr
    assert len(json.loads(semistream("history", tmp_path / "r", "--json").stdout)) == 1


@pytest.mark.slow
def test_names_are_shown_as_they_are(tmp_path):
    """Also those that look like what a terminal's colours are written as; a version that is committed is told of."""
    path = tmp_path / "r[/x]"
    (tmp_path / "all.csv").write_text("[red]id,speed [m/s]\n1,2\n2,3\n")
    (tmp_path / "more.csv").write_text("[red]id,speed [m/s]\n2,3\n2,4\n")
    built = semistream("build", tmp_path / "all.csv", path, "--key", "[red]id", "--unique")
    assert (built.returncode, "[red]id (unique" in built.stdout) == (0, True), built
    changed = semistream("upsert", tmp_path / "more.csv", path)
    assert (changed.returncode, "now have several rows" in changed.stderr) == (0, True), changed
    for command in ("inspect", "head", "history"):
        shown = semistream(command, path)
        assert shown.returncode == 0, shown
        assert ("r[/x]" if command == "history" else "speed [m/s]") in shown.stdout.replace("\n", "")


def test_upsert_counts_rows_with_a_null_key(tmp_path):
    path = tmp_path / "r"
    Relation.build(pa.table({"id": [1, None], "name": ["apple", "none"]}), path, "id").close()
    pq.write_table(pa.table({"id": [None, 2, None], "name": ["none", "fig", "none"]}), tmp_path / "new.parquet")
    pq.write_table(pa.table({"id": [3], "name": ["kiwi"]}), tmp_path / "more.parquet")
    assert "2 rows were left out: their key is NULL" in semistream("upsert", tmp_path / "new.parquet", path).stderr
    assert semistream("upsert", tmp_path / "more.parquet", path).stderr == ""
    found = json.loads(semistream("inspect", path, "--json").stdout)
    assert found["rows"] == 3
    assert found["rows_with_null_key_left_out"] == 3, "since the build"


@pytest.mark.slow
def test_secondary_indexes(tmp_path):
    path = tmp_path / "r"
    rows = pa.table({"id": [1, 2, 3], "name": ["apple", "fig", "pear"], "kind": [1, 1, 2]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    assert semistream("build", tmp_path / "rows.parquet", path, "--key", "id", "--index", "kind,name").returncode == 0
    added = semistream("index", path, "--by", "name")
    assert (added.returncode, added.stderr) == (0, "")
    assert "version 2" in added.stdout
    assert "indexes: kind and name, name" in " ".join(added.stdout.split())
    found = json.loads(semistream("inspect", path, "--json", "--check").stdout)
    assert [(one["key"], one["rows"]) for one in found["secondary_indexes"]] == [(["kind", "name"], 3), (["name"], 3)]
    assert found["faults"] == []
    assert semistream("index", path, "--by", "name", "--drop").returncode == 0
    again = semistream("index", path, "--by", "name", "--drop")
    assert again.returncode == 2
    assert "no index on name; it can be joined on its key, id, and on kind, name" in " ".join(again.stderr.split())


def test_history_of_a_key_that_is_not_there(tmp_path):
    rows = pa.table({"id": ["a"], "since": [1]})
    Relation.build(rows, tmp_path / "r", "id", valid_from="since").close()
    assert "has no row of b" in semistream("history", tmp_path / "r", "b").stdout
    assert json.loads(semistream("history", tmp_path / "r", "b", "--json").stdout) == []
    assert json.loads(semistream("history", tmp_path / "r", "a", "--json").stdout) == [{"id": "a", "since": "1"}]
