"""Damage of every kind, repaired from the data or a copy: afterwards all files are what they were, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from semistream.cli import app
from semistream.core.errors import CorruptPageError, NotARelationError
from semistream.relation.relation import Relation
from semistream.relation.repair import RepairError, repair
from semistream.relation.verify import find_faults

PAGE = 512


def master(text_key: bool, repeats: int = 1, rows: int = 900) -> pa.Table:
    keys = np.repeat(np.arange(rows // repeats), repeats)
    names = [f"name {number} " + "x" * (number % 37) for number in range(len(keys))]
    return pa.table({"id": [f"k{key}" for key in keys] if text_key else keys, "name": names})


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("shard-*")}


def spoil(path: Path, kind: str, page: int, *, offset: int = 100, size: int = 1, zeros: bool = False) -> Path:
    """Damage a page of the shard's file of one kind; return the file."""
    file = sorted(path.glob(f"shard-*.{kind}"), key=lambda found: -found.stat().st_size)[0]
    with open(file, "r+b") as opened:
        opened.seek(page * PAGE + offset)
        old = opened.read(size)
        opened.seek(page * PAGE + offset)
        opened.write(bytes(size) if zeros else bytes(byte ^ 0x55 for byte in old))
    return file


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("text_key", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_pages_are_built_anew_from_the_data(tmp_path, shards, text_key, zeros):
    path, data = tmp_path / "r", master(text_key)
    Relation.build(data, path, "id", page_size=PAGE, shards=shards).close()
    before = contents(path)
    for page in (0, 1, 4):
        file = spoil(path, "pages", page, **({"offset": 0, "size": PAGE, "zeros": True} if zeros else {}))
    with Relation.open(path) as relation, pytest.raises(CorruptPageError, match="semistream repair"):
        relation.to_table()
    repaired = repair(path, data.to_reader)
    assert contents(path) == before
    assert [(one.file, one.page) for one in repaired] == [(str(file), page) for page in (0, 1, 4)]
    assert {one.proof for one in repaired} == {"keys and counts" if zeros else "checksum"}
    assert repair(path) == []


def test_a_key_over_several_pages(tmp_path):
    path, data = tmp_path / "r", master(False, repeats=30)
    Relation.build(data, path, "id", page_size=PAGE).close()
    before = contents(path)
    pages = len(before[next(name for name in before if name.endswith(".pages"))]) // PAGE
    for page in range(1, pages, 5):
        spoil(path, "pages", page)
        repair(path, data.to_reader)
        assert contents(path) == before, f"page {page} of {pages}"
    spoil(path, "pages", 1)
    spoil(path, "pages", 2)
    with pytest.raises(RepairError, match="share the rows of one key"):
        repair(path, data.to_reader)


@pytest.mark.parametrize("shards", [1, 2])
def test_pages_of_updates_and_what_older_versions_share(tmp_path, shards):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE, shards=shards, fill=0.7).close()
    semistream.upsert(path, pa.table({"id": np.arange(0, 40), "name": ["changed"] * 40}))
    semistream.delete(path, pa.array(np.arange(100, 160)))
    with Relation.open(path) as relation:
        now = relation.to_table()
        assert list(find_faults(relation)) == [], "pages that moved are in the index where they should be"
    before = contents(path)
    last = len(before[next(name for name in before if name.endswith(".pages"))]) // PAGE - 1
    spoil(path, "pages", last)
    spoil(path, "delta", 1)
    assert len(repair(path, now.to_reader)) == 2
    assert contents(path) == before
    # A page that only the first version has: the data of today is not what was there.
    spoil(path, "pages", 0)
    with pytest.raises(RepairError, match=r"do not have its checksum|other keys"):
        repair(path, now.to_reader)
    assert len(repair(path, data.to_reader)) == 1
    assert contents(path) == before


def test_files_that_are_cut_or_gone(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE, shards=2).close()
    before = contents(path)
    pages = sorted(path.glob("*.pages"))
    pages[0].unlink()
    with open(pages[1], "r+b") as file:
        file.truncate(5 * PAGE + 17)
    with pytest.raises(NotARelationError, match="semistream repair"):
        Relation.open(path)
    repair(path, data.to_reader)
    assert contents(path) == before


def test_an_index_is_made_of_its_pages(tmp_path):
    path, data = tmp_path / "r", master(True, repeats=20)
    Relation.build(data, path, "id", page_size=PAGE).close()
    before = contents(path)
    next(path.glob("*.index")).write_bytes(b"nothing")
    assert [one.page for one in repair(path)] == [-1]
    assert contents(path) == before
    next(path.glob("*.index")).unlink()
    spoil(path, "pages", 3)
    with pytest.raises(RepairError, match="so is the index"):
        repair(path, data.to_reader)


def test_other_data_is_refused(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE).close()
    spoil(path, "pages", 2)
    spoiled = contents(path)
    with pytest.raises(RepairError, match="other keys"):
        repair(path, data.slice(0, 5).to_reader)
    changed = data.set_column(1, "name", [[name.upper() for name in data["name"].to_pylist()]])
    with pytest.raises(RepairError, match="do not have its checksum"):
        repair(path, changed.to_reader)
    with pytest.raises(RepairError, match="lacks R's column 'name'"):
        repair(path, data.select(["id"]).to_reader)
    with pytest.raises(RepairError, match=r"1 pages are damaged .*page 2 of .*give the data"):
        repair(path)
    assert contents(path) == spoiled
    assert [one.proof for one in repair(path, changed.to_reader, trust=True)] == ["keys and counts"]
    with Relation.open(path) as relation:
        assert relation.to_table().num_rows == data.num_rows


def test_from_the_command_line(tmp_path):
    path, data = tmp_path / "r", master(False)
    pq.write_table(data, tmp_path / "master.parquet")
    Relation.build(data, path, "id", page_size=PAGE).close()
    shutil.copytree(path, tmp_path / "backup")
    before = contents(path)
    for source in ("backup", "master.parquet"):
        spoil(path, "pages", 2)
        outcome = CliRunner().invoke(app, ["repair", str(path), "--from", str(tmp_path / source)])
        assert outcome.exit_code == 0, outcome.output
        assert "page 2 of" in outcome.output
        assert "Repaired 1" in outcome.output
        assert contents(path) == before
    assert "Nothing is damaged" in CliRunner().invoke(app, ["repair", str(path)]).output
