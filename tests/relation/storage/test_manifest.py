"""The manifest: whole or not there, and whatever is wrong with it is said plainly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.core.errors import CommitConflictError, NotARelationError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage import manifest_check
from semistream.relation.storage.manifest import Manifest, ShardFiles

SHARD = ShardFiles("s.pages", "s.index", None, rows=3, pages=1, leaves=0, last_key=-(2**63), unique=True)
MANIFEST = Manifest(
    schema=pa.schema({"id": pa.int32(), "tags": pa.list_(pa.dictionary(pa.int8(), pa.string()))}, {"made": "by hand"}),
    key=("id",),
    page_bytes=4096,
    fill=0.8,
    clustered=True,
    shards=(SHARD, replace(SHARD, pages_file="t.pages", index_file="t.index", rows=4, unique=False)),
    version=7,
    properties={"a": "b"},
)


def test_what_is_written_is_read() -> None:
    back = Manifest.from_json(MANIFEST.to_json(), Path("m"))
    assert back == MANIFEST
    assert back.schema.equals(MANIFEST.schema, check_metadata=True)
    assert (back.rows, back.unique) == (7, False)


def test_the_highest_number_is_the_version(tmp_path: Path) -> None:
    assert manifests.latest(tmp_path) is None
    assert manifests.latest(tmp_path / "nowhere") is None
    for version in (1, 2, 12):
        manifests.commit(tmp_path, replace(MANIFEST, version=version))
    (tmp_path / "manifest-00000099.json.tmp").write_text("")
    assert manifests.latest(tmp_path) == 12
    assert manifests.load(tmp_path).version == 12
    assert manifests.load(tmp_path, 2).version == 2
    with pytest.raises(NotARelationError, match="no version 5; the newest is 12"):
        manifests.load(tmp_path, 5)


def test_of_two_writers_one_wins_and_its_manifest_stays(tmp_path: Path) -> None:
    manifests.commit(tmp_path, MANIFEST)
    with pytest.raises(CommitConflictError, match="another writer"):
        manifests.commit(tmp_path, replace(MANIFEST, fill=1.0))
    assert manifests.load(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest-00000007.json"], "a temporary file was left"


def test_what_is_in_the_file_now_is_read(tmp_path: Path) -> None:
    file = tmp_path / manifests.name_of(7)
    for fill in (0.8, 1.0, 0.8):
        file.write_text(replace(MANIFEST, fill=fill).to_json())
        assert manifests.load(tmp_path).fill == manifests.load(tmp_path, 7).fill == fill
    file.unlink()
    with pytest.raises(NotARelationError, match="has no version 7"):
        manifests.load(tmp_path, 7)


def test_a_flipped_bit_of_a_long_manifest_is_mended() -> None:
    """The tables of packed columns make manifests of tens of KiB."""
    tables = "".join(f"{number * number % 65521:04x}" for number in range(10_000))
    text = replace(MANIFEST, properties={"tables": tables}).to_json().encode()
    assert len(text) > 40_000
    for place in (3, 200, len(text) - 20, len(text) - 1):
        for bit in (0, 3, 7):
            changed = bytearray(text)
            changed[place] ^= 1 << bit
            assert not manifest_check.is_sealed(changed)
            assert manifest_check.mended(bytes(changed)) == text, (place, bit)
    assert manifest_check.mended(text[:900]) is None, "more is missing than a bit"


@pytest.mark.parametrize("cut", [0, 1, 10, 200, -1])
def test_a_truncated_manifest_is_refused(tmp_path: Path, cut: int) -> None:
    manifests.commit(tmp_path, MANIFEST)
    file = tmp_path / "manifest-00000007.json"
    file.write_text(file.read_text()[:cut])
    with pytest.raises(NotARelationError, match=r"manifest-00000007\.json is damaged"):
        manifests.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00garbage", b"[]", b"7", b'"text"', b"{}", b"null", b'{"format": "semistream relation"}'],
)
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest-00000001.json").write_bytes(content)
    with pytest.raises(NotARelationError, match="build the relation again"):
        Relation.open(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("arrow_schema", "AAAA"),
        ("arrow_schema", "not base64!"),
        ("arrow_schema", 5),
        ("page_bytes", "many"),
        ("shards", [{"pages_file": "x"}]),
        ("shards", None),
        ("key", None),
        ("properties", 3),
    ],
)
def test_a_wrong_field_is_refused(tmp_path: Path, field: str, value: object) -> None:
    document = json.loads(MANIFEST.to_json())
    document[field] = value
    (tmp_path / "manifest-00000001.json").write_text(json.dumps(document))
    with pytest.raises(NotARelationError, match="damaged"):
        manifests.load(tmp_path)


def test_another_format_names_both_versions(tmp_path: Path) -> None:
    document = json.loads(MANIFEST.to_json())
    document["format_version"] = 99
    (tmp_path / "manifest-00000001.json").write_text(json.dumps(document))
    with pytest.raises(NotARelationError, match=r"version 99; this release reads .* version \d"):
        manifests.load(tmp_path)


def test_a_path_that_is_no_relation_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotARelationError, match="does not exist"):
        Relation.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotARelationError, match="is a file"):
        Relation.open(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotARelationError, match="without a manifest"):
        Relation.open(tmp_path / "empty")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "shard-0000-abc.pages").write_bytes(b"")
    with pytest.raises(NotARelationError, match="unfinished build"):
        Relation.open(tmp_path / "half")
