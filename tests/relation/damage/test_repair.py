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
from semistream.relation.damage.repair import RepairError, repair
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage.checksum import file_seed, seal

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
    with pytest.raises(RepairError, match=r"do not match its checksum|keys differ"):
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


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_could_not_be_filled_is_left_as_it_was(tmp_path, gone):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE, shards=2).close()
    whole = contents(path)
    shutil.copytree(path, tmp_path / "copy")
    file = min(path.glob("*.pages"))
    file.unlink() if gone else file.write_bytes(whole[file.name][: 5 * PAGE + 17])
    before = contents(path)
    other = pa.table({"id": data["id"].to_numpy() * 3 + 1, "name": data["name"]})
    with pytest.raises(RepairError):
        repair(path, other.to_reader)
    assert contents(path) == before
    # a copy that has but one of the pages gives that, and no zeros after it
    good = whole[file.name][7 * PAGE : 8 * PAGE]
    (tmp_path / "copy" / file.name).write_bytes(bytes(7 * PAGE) + good + bytes(len(whole[file.name]) - 8 * PAGE))
    with pytest.raises(RepairError):
        repair(path, copy=tmp_path / "copy")
    kept = 0 if gone else 5 * PAGE + 17
    assert file.read_bytes() == whole[file.name][:kept] + bytes(7 * PAGE - kept) + good
    repair(path, data.to_reader)
    assert contents(path) == whole


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
    with pytest.raises(RepairError, match="keys differ"):
        repair(path, data.slice(0, 5).to_reader)
    changed = data.set_column(1, "name", [[name.upper() for name in data["name"].to_pylist()]])
    with pytest.raises(RepairError, match="do not match its checksum"):
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


def test_an_index_of_updated_pages_is_made_of_them(tmp_path):
    path, data = tmp_path / "r", master(False, repeats=6)
    Relation.build(data, path, "id", page_size=PAGE, fill=0.8, shards=2).close()
    semistream.upsert(path, pa.table({"id": np.repeat(np.arange(20, 40), 9), "name": ["changed " * 4] * 180}))
    semistream.delete(path, pa.array(np.arange(60, 90)))
    before = contents(path)
    for file in path.glob("*.index"):
        file.write_bytes(b"nothing")
    assert {(one.page, one.proof) for one in repair(path)} == {(-1, "pages")}
    assert contents(path) == before


@pytest.mark.parametrize("kind", ["leaves", "index"])
def test_what_leads_to_scattered_rows_is_made_of_the_pages(tmp_path, kind):
    path = tmp_path / "r"
    data = master(False, repeats=3).take(np.random.default_rng(1).permutation(900))
    Relation.build(data, path, "id", page_size=PAGE, shards=2, clustered=False).close()
    before = contents(path)
    for file in path.glob(f"*.{kind}"):
        file.write_bytes(before[file.name][:100] + b"!!!!" + before[file.name][104:])
    repaired = repair(path)
    assert {one.proof for one in repaired} == {"pages"}
    assert len(repaired) == 2
    assert contents(path) == before
    for file in path.glob("*.leaves"):
        file.unlink()
    repair(path)
    assert contents(path) == before
    spoil(path, "leaves", 1, size=2)
    spoil(path, "pages", 3, size=2)
    with pytest.raises(RepairError, match=r"leaves of .* are damaged, and pages too") as caught:
        repair(path, data.to_reader)
    assert "it is not clustered" in str(caught.value)


def test_all_that_could_not_be_repaired_is_said_and_all_else_is_repaired(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE, shards=3).close()
    before = contents(path)
    first, second, third = sorted(path.glob("*.pages"))
    first.write_bytes(before[first.name] + b"more")
    with open(second, "r+b") as file:
        file.truncate(3 * PAGE)
    content = bytearray(before[third.name])
    content[300:302] = b"!!"
    content[PAGE + 99] ^= 1
    third.write_bytes(content)
    outcome = CliRunner().invoke(app, ["repair", str(path)])
    assert outcome.exit_code != 0
    assert "Repaired 2" in outcome.output, "the end that was too much, and the flipped bit"
    message = str(outcome.exception) + outcome.output
    assert f"{second} has 1,536 bytes" in message.replace("\n", "")
    assert "1 pages are damaged" in message
    assert first.read_bytes() == before[first.name]
    assert second.read_bytes() == before[second.name][: 3 * PAGE], "not a byte was touched"
    with pytest.raises(RepairError) as caught:
        repair(path)
    assert list(caught.value.repaired) == []
    repair(path, data.to_reader)
    assert contents(path) == before


def test_a_sound_page_past_the_end_is_never_cut_off(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE).close()
    file = next(path.glob("*.pages"))
    content = file.read_bytes()
    page = np.zeros((1, PAGE), np.uint8)
    seal(page, len(content) // PAGE, file_seed(file.name))
    file.write_bytes(content + page.tobytes())
    with pytest.raises(RepairError, match="past the end is intact"):
        repair(path, data.to_reader)
    assert file.read_bytes() == content + page.tobytes()


def test_a_manifest_comes_from_a_copy_of_this_relation_only(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE).close()
    Relation.build(data, tmp_path / "other", "id", page_size=PAGE).close()
    shutil.copytree(path, tmp_path / "copy")
    file = path / "manifest-00000001.json"
    sound = file.read_bytes()
    file.write_bytes(sound[:200])
    with pytest.raises(RepairError, match="more than one bit is wrong"):
        repair(path, data.to_reader, copy=tmp_path / "other")
    assert file.read_bytes() == sound[:200]
    assert [one.proof for one in repair(path, copy=tmp_path / "copy")] == ["copy"]
    assert file.read_bytes() == sound


def test_only_the_checksum_of_a_page_is_damaged(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE).close()
    before = contents(path)
    spoil(path, "pages", 2, offset=0, size=8)
    assert [one.proof for one in repair(path, data.to_reader)] == ["checksum"]
    assert contents(path) == before


def test_everything_is_looked_at_by_inspect(tmp_path):
    path, data = tmp_path / "r", master(False)
    Relation.build(data, path, "id", page_size=PAGE, shards=2).close()
    semistream.delete(path, data["id"])
    checked = CliRunner().invoke(app, ["inspect", str(path), "--check"])
    assert checked.exit_code == 0, checked.output
    with Relation.open(path) as relation:
        assert relation.row_count == 0
        assert list(find_faults(relation)) == [], "a relation that was emptied"
    (path / "manifest-00000001.json").write_text("{}")
    with Relation.open(path) as relation:
        assert [Path(fault.file).name for fault in find_faults(relation)] == ["manifest-00000001.json"]


def test_leaves_that_lead_elsewhere_are_found(tmp_path):
    path = tmp_path / "r"
    data = master(False).take(np.random.default_rng(1).permutation(900))
    Relation.build(data, path, "id", page_size=PAGE, clustered=False).close()
    with Relation.open(path) as relation:
        assert list(find_faults(relation)) == []
    file = next(path.glob("*.leaves"))
    frames = np.fromfile(file, np.uint8).reshape(-1, PAGE)
    rows = int(frames[2, 12:16].view(np.uint32)[0])
    at = (32 + 9 * rows + 7) // 8 * 8
    frames[2, at] ^= 1  # the first of its keys is in the next page, or the one before
    seal(frames, 0, file_seed(file.name))
    frames.tofile(file)
    with Relation.open(path) as relation:
        assert [fault.message for fault in find_faults(relation)] == [
            f"the leaves of shard 0 of {path} do not list the pages that hold the keys; build the relation again"
        ]
