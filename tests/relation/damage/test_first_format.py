"""Relations of the first format, without checksum and binding: read, updated and repaired, and nothing raw or lost."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import semistream
from damage import KINDS, PAGE, Specimen, read
from semistream.cli import app
from semistream.core.errors import NotARelationError, SemistreamError
from semistream.relation.damage.repair import RepairError, repair
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.checksum import seal
from semistream.relation.storage.index_file import index_to_bytes, load_index
from semistream.relation.storage.map_file import load_map, map_to_bytes


def to_first_format(path: Path) -> None:
    """Write all files as the first release did."""
    shards = {shard for number in manifests.versions(path) for shard in manifests.load(path, number).shards}
    texts = {}
    for number in manifests.versions(path):
        document = json.loads((path / manifests.name_of(number)).read_text())
        del document["checksum"]
        document["format_version"] = 1
        for shard in document["shards"]:
            del shard["unbound"]
        texts[number] = json.dumps(document, indent=1)
    contents: dict[str, bytes] = {}
    for shard in shards:
        for name, _ in shard.page_files:
            frames = np.fromfile(path / name, np.uint8).reshape(-1, PAGE)
            seal(frames, 0)
            contents[name] = frames.tobytes()
        first, continues = load_index(path / shard.index_file, shard.index_entries)
        contents[shard.index_file] = index_to_bytes(shard.index_file, first, continues, bound=False)
        if shard.map_file is not None:
            contents[shard.map_file] = map_to_bytes(shard.map_file, *load_map(path, shard), bound=False)
    for name, content in contents.items():
        (path / name).write_bytes(content)
    for number, text in texts.items():
        (path / manifests.name_of(number)).write_text(text)


@pytest.fixture(scope="module", params=[kind for kind in KINDS if kind not in ("empty", "packed")])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    specimen = Specimen(request.param, tmp_path_factory.mktemp(request.param))
    to_first_format(specimen.path)
    specimen.sound = specimen.contents()
    return specimen


def notes(path: Path) -> str:
    return " ".join(json.loads(CliRunner().invoke(app, ["inspect", str(path), "--check", "--json"]).stdout)["notes"])


def test_it_is_read_and_updated_and_upgraded(old: Specimen, tmp_path: Path) -> None:
    assert {version: read(old.path, version) for version in old.versions} == old.readings
    path = tmp_path / "r"
    shutil.copytree(old.path, path)
    with Relation.open(path) as relation:
        assert list(find_faults(relation)) == []
        before, clustered, shards = relation.to_table(), relation.clustered, relation.shard_count
    said = notes(path)
    assert "format 1" in said
    assert "no checksum" in said
    assert ("do not compact" in said) == (shards > 1 and len(old.versions) > 1)
    if clustered:
        semistream.upsert(path, pa.table({"id": [3, 4], "name": ["three", "four"]}))
        assert "no checksum" not in notes(path), "its manifest is of the second format"
        assert "of format 1" in notes(path), "some files are not"
        with Relation.open(path) as relation:
            now = dict(zip(*relation.to_table().to_pydict().values(), strict=True))
        was = dict(zip(*before.to_pydict().values(), strict=True))
        assert now == was | {3: "three", 4: "four"}
    semistream.compact(path)
    assert notes(path) == ""
    with Relation.open(path) as relation:
        assert list(find_faults(relation)) == []


def test_no_flipped_bit_of_a_manifest_raises_what_is_not_ours(old: Specimen) -> None:
    generator = np.random.default_rng(8)
    for version in old.versions:
        file = old.path / manifests.name_of(version)
        content = old.sound[file.name]
        for bit in generator.choice(8 * len(content), 50, replace=False).tolist():
            changed = bytearray(content)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            old.outcome()  # an error of ours, or rows; without a checksum it cannot promise which
        file.write_bytes(content)


def _edited(path: Path, **fields: Any) -> None:
    file = path / manifests.name_of(1)
    document = json.loads(file.read_text())
    for name, value in fields.items():
        (document if name in document else document["shards"][0])[name] = value
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "fields",
    [
        {"pages_file": "../victim.pages"},
        {"pages_file": "/tmp/victim.pages"},
        {"pages_file": "a/b.pages"},
        {"pages_file": ".."},
        {"pages_file": ".pages"},
        {"pages_file": "x\0.pages"},
        {"pages_file": 7},
        {"index_file": "../victim.index"},
        {"index_file": "manifest-00000001.json"},
        {"pages": -1},
        {"pages": 0},
        {"pages": 2**40},
        {"pages": 3.0},
        {"pages": True},
        {"leaves": -5},
        {"indexed": 3},
        {"last_key": 2**63},
        {"last_key": "9"},
        {"page_bytes": 0},
        {"page_bytes": 2**40},
        {"fill": float("nan")},
        {"version": 2},
        {"version": "1"},
        {"rows": 71},
        {"key": ["absent"]},
        {"clustered": False},
        {"unique": 1},
        {"leaves_file": "a.leaves"},
        {"map_file": "a.map"},
        {"deltas": [["../victim.delta", 1]]},
        {"columns": {"id": "int32", "name": "string"}},
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_touched(tmp_path: Path, fields: dict[str, Any]) -> None:
    path, victim = tmp_path / "r", tmp_path / "victim.pages"
    KINDS["clustered"](path)
    data = Relation.open(path).to_table()
    to_first_format(path)
    victim.write_bytes(b"precious" * 1000)
    _edited(path, **fields)
    before = {file: file.read_bytes() for file in path.glob("[ms]*")}
    with pytest.raises(NotARelationError, match="damaged"):
        Relation.open(path)
    with pytest.raises(RepairError):
        repair(path, data.to_reader)
    assert {file: file.read_bytes() for file in path.glob("[ms]*")} == before
    assert victim.read_bytes() == b"precious" * 1000


def test_a_file_is_not_cut_because_a_manifest_without_checksum_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r"
    KINDS["clustered"](path)
    data = Relation.open(path).to_table()
    to_first_format(path)
    file = next(path.glob("*.pages"))
    content = file.read_bytes()
    _edited(path, pages=len(content) // PAGE - 1)
    for source in (None, data.to_reader):
        with pytest.raises(RepairError, match="either may be wrong"):
            repair(path, source)
    _edited(path, pages=len(content) // PAGE + 1)
    for source in (None, data.to_reader):
        with pytest.raises(RepairError, match="instead of"):
            repair(path, source)
    assert file.read_bytes() == content


def test_pages_of_the_first_format_are_repaired(old: Specimen, tmp_path: Path) -> None:
    path = tmp_path / "r"
    shutil.copytree(old.path, path)
    with Relation.open(path) as relation:
        data, clustered = relation.to_table(), relation.clustered
    file = sorted(path.glob("*.delta") if len(old.versions) > 1 else path.glob("*.pages"))[-1]
    content = bytearray(old.sound[file.name])
    content[101] ^= 4
    file.write_bytes(content)
    with pytest.raises(SemistreamError):
        read(path, old.versions[-1])
    repair(path, data.to_reader if clustered else None)
    assert file.read_bytes() == old.sound[file.name]


def test_a_map_that_earlier_updates_spoiled_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "r"
    KINDS["sharded"](path)
    to_first_format(path)
    shard = next(shard for shard in manifests.load(path).shards if shard.map_file is not None)
    order, page_map = load_map(path, shard)
    order[0] = -3
    assert shard.map_file is not None
    (path / shard.map_file).write_bytes(map_to_bytes(shard.map_file, order, page_map, bound=False))
    with pytest.raises(NotARelationError, match=re.escape("updates of several shards by earlier releases")):
        Relation.open(path)
