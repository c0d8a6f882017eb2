"""Filters of relations: of all kinds of keys, after updates, in old versions, and damaged."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from faulty_disks import Died, MortalDisk, installed
from forced_filters import filters_built, forced_filters
from semistream.relation.filters import added_keys, filter_writer
from semistream.relation.filters.key_filter import absent_keys, load_filters
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage import manifest_check
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.shard_files import ShardFilter

COUNT = 400
KINDS: dict[str, tuple[Callable[[int], tuple[object, ...]], list[pa.DataType]]] = {
    "integer": (lambda k: (3 * k - 50,), [pa.int32()]),
    "text": (lambda k: (f"key {k}",), [pa.string()]),
    "decimal": (lambda k: (Decimal(k) / 4,), [pa.decimal128(30, 2)]),
    "date": (lambda k: (datetime.date(1970, 1, 1) + datetime.timedelta(2 * k),), [pa.date32()]),
    "two": (lambda k: (k % 7, f"{k // 7}"), [pa.int16(), pa.large_string()]),
}


@pytest.fixture(autouse=True)
def _of_few_keys() -> Iterator[None]:
    with filters_built():
        yield


def table(kind: str, keys: range | list[int], text: str = "row") -> pa.Table:
    of, types = KINDS[kind]
    columns = [pa.array(column, type) for column, type in zip(zip(*map(of, keys), strict=True), types, strict=True)]
    names = [f"k{at}" for at in range(len(types))]
    return pa.table([*columns, pa.array([f"{text} {key}" for key in keys])], names=[*names, "text"])


def names_of(kind: str) -> list[str]:
    return [f"k{at}" for at in range(len(KINDS[kind][1]))]


def reported_absent(relation: Relation, keys: pa.Table, planes: int = 6) -> np.ndarray:
    """Return which keys the filter reports absent; there must be one."""
    filters = load_filters(relation.place, [shard.filter for shard in relation.stored.shards], planes)
    assert filters is not None
    assert any(filters)
    encoded = relation.key.encode(keys.combine_chunks().to_batches()[0], list(relation.key.names))[0]
    return absent_keys(filters, relation.home, encoded)


@pytest.mark.parametrize("build", [{}, {"shards": 3}, {"clustered": False, "shards": 2}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_r_are_never_reported_absent(tmp_path: Path, kind: str, build: dict[str, object]) -> None:
    with Relation.build(table(kind, range(COUNT)), tmp_path / "r", names_of(kind), page_size=512, **build) as relation:
        for planes in (0, 3, 6):
            assert not reported_absent(relation, table(kind, range(COUNT)), planes).any()
        others = reported_absent(relation, table(kind, range(COUNT, 3 * COUNT)))
        assert others.mean() > 0.95


def test_secondary_indexes_have_filters(tmp_path: Path) -> None:
    emails = [None if key % 5 == 0 else f"{key % 100}@x" for key in range(COUNT)]
    rows = pa.table({"id": range(COUNT), "email": emails})
    Relation.build(rows, tmp_path / "r", "id", page_size=512, indexes=["email"]).close()
    with Relation.open(tmp_path / "r", by="email") as index:
        there = rows.filter(rows["email"].is_valid()).select(["email"])
        assert not reported_absent(index, there).any()
        assert reported_absent(index, pa.table({"email": [f"{key}@y" for key in range(500)]})).mean() > 0.95
    with Relation.open(tmp_path / "r") as relation:
        relation.upsert(pa.table({"id": [1, COUNT], "email": ["new@x", "other@x"]}))
        with relation.by("email") as index:
            assert not reported_absent(index, pa.table({"email": ["new@x", "other@x", "2@x"]})).any()


@pytest.mark.parametrize("kind", ["integer", "two"])
def test_added_keys_are_never_reported_absent(tmp_path: Path, kind: str) -> None:
    with Relation.build(table(kind, range(COUNT)), tmp_path / "r", names_of(kind), page_size=512, shards=2) as relation:
        known = set(range(COUNT))
        files = [shard.filter.file for shard in relation.stored.shards if shard.filter]
        for step in range(4):
            new = [COUNT + 30 * step + at for at in range(20)] + [step, 10 + step]
            gone = table(kind, [COUNT + 30 * (step - 1), 100 + step])
            relation.update(upserts=table(kind, new, "new"), deletes=gone.select(names_of(kind)))
            known |= set(new)  # keys that were deleted may stay in the filter
            assert [shard.filter.file for shard in relation.stored.shards if shard.filter] == files
            assert not reported_absent(relation, table(kind, sorted(known))).any()
        assert sum(shard.filter.added for shard in relation.stored.shards if shard.filter) == 80
        for version in (1, 3):
            with Relation.open(tmp_path / "r", version=version) as earlier:
                there = range(COUNT + (0 if version == 1 else 20))
                assert not reported_absent(earlier, table(kind, there)).any()
                assert reported_absent(earlier, table(kind, range(COUNT + 90, COUNT + 110))).mean() > 0.8
        relation.compact()
        assert [shard.filter.added for shard in relation.stored.shards if shard.filter] == [0, 0]
        rows = relation.to_table()
        assert not reported_absent(relation, rows).any()


def test_equal_keys_add_nothing(tmp_path: Path) -> None:
    with Relation.build(table("text", range(COUNT)), tmp_path / "r", "k0", page_size=512) as relation:
        before = relation.stored.shards[0].filter
        relation.upsert(table("text", [3, 5], "other"))
        after = relation.stored.shards[0].filter
        assert before is not None
        assert after is not None
        assert (after.file, after.added, after.added_file) == (before.file, 0, None)
        assert after.of == relation.stored.shards[0].index_file != before.of


def test_many_added_keys_end_a_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_keys, "_FEW", 10)
    with Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512) as relation:
        relation.upsert(table("integer", [COUNT + at for at in range(12)]))
        added = relation.stored.shards[0].filter
        assert added is not None
        assert added.added == 12 == COUNT // added_keys._PART
        relation.upsert(table("integer", [COUNT + 12]))
        assert relation.stored.shards[0].filter is None
        relation.upsert(table("integer", [1]))
        assert relation.stored.shards[0].filter is None
        relation.compact()
        assert relation.stored.shards[0].filter is not None


def test_vacuum_keeps_the_filters_of_what_it_keeps(tmp_path: Path) -> None:
    with Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512) as relation:
        relation.upsert(table("integer", [COUNT]))
        relation.upsert(table("integer", [COUNT + 1]))
    semistream.vacuum(tmp_path / "r", older_than=-1)
    with Relation.open(tmp_path / "r") as relation:
        assert not reported_absent(relation, table("integer", range(COUNT + 2))).any()
        kept = relation.stored.shards[0].filter
        assert kept is not None
        assert {path.name for path in relation.place.glob("*.added")} == {kept.added_file}
        relation.compact()
    semistream.vacuum(tmp_path / "r", older_than=-1)
    with Relation.open(tmp_path / "r") as relation:
        assert len(list(relation.place.glob("*.filter"))) == 1
        assert not list(relation.place.glob("*.added"))
        assert not reported_absent(relation, table("integer", range(COUNT + 2))).any()


# -- what is not used ------------------------------------------------------------------------------------------


def _flip(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda _: None,
    "empty": lambda _: b"",
    "cut": lambda content: content[:-8],
    "longer": lambda content: content + bytes(8),
    "flipped": _flip,
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("which", ["filter", "added"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_filters_are_not_used(tmp_path: Path, which: str, what: str) -> None:
    with Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512) as relation:
        relation.upsert(table("integer", [COUNT]))
        (file,) = relation.place.glob(f"*.{which}")
        content = DAMAGE[what](file.read_bytes())
        file.unlink()
        if content is not None:
            file.write_bytes(content)
        assert load_filters(relation.place, [shard.filter for shard in relation.stored.shards], 6) is None
        with forced_filters(), relation.lookups("1MB") as lookups:
            found = lookups.get([3 * key - 50 for key in range(COUNT + 1)] + [2], found="there")
        assert found["there"].to_pylist() == [True] * (COUNT + 1) + [False]
        if which == "added":  # a writer cannot know which keys were added before
            relation.upsert(table("integer", [COUNT + 1]))
            assert relation.stored.shards[0].filter is None
    with Relation.open(tmp_path / "r", version=2) as relation:
        assert relation.row_count == COUNT + 1


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    with Relation.build(table("two", range(40)), tmp_path / "r", ["k0", "k1"], page_size=512) as relation:
        (file,) = relation.place.glob("*.filter")
        sound, filters = bytearray(file.read_bytes()), [shard.filter for shard in relation.stored.shards]
        for bit in range(0, 8 * len(sound), 7):
            changed = sound.copy()
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            assert load_filters(relation.place, filters, 6) is None, f"bit {bit}"
        file.write_bytes(sound)
        assert load_filters(relation.place, filters, 6) is not None


def test_a_filter_of_another_shard_is_not_used(tmp_path: Path) -> None:
    with Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512, shards=2) as relation:
        one, other = sorted(relation.place.glob("*.filter"))
        shutil.copy(other, one)
        assert load_filters(relation.place, [shard.filter for shard in relation.stored.shards], 6) is None


def _rewritten(path: Path, change: Callable[[dict[str, object]], object]) -> Manifest:
    """Return the newest manifest as if another release had written it."""
    manifest = manifests.load(path)
    document = json.loads(manifest.to_json())
    change(document)
    document.pop("checksum", None)
    return Manifest.from_json(manifest_check.sealed(json.dumps(document, indent=1)), "test")


def test_filters_of_other_releases(tmp_path: Path) -> None:
    Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512).close()
    manifest = manifests.load(tmp_path / "r")
    shard = manifest.shards[0]
    assert _rewritten(tmp_path / "r", lambda document: None).shards[0].filter == shard.filter is not None
    # An earlier release passes over filters, and does not name them in the versions that it writes.
    assert "filter" not in json.loads(manifest.to_json())["shards"][0]
    assert _rewritten(tmp_path / "r", lambda document: document.pop("filters")).shards[0].filter is None

    def later(document: dict[str, object]) -> None:
        document["filters"][shard.index_file]["form"] = 2

    assert _rewritten(tmp_path / "r", later).shards[0].filter is None
    entry = json.loads(manifest.to_json())["filters"][shard.index_file]
    for wrong in ({"keys": -1}, {"file": "../x.filter"}, {"planes": [1]}, {"upper": "1"}, {"more": 1}, {"added": 3}):
        assert ShardFilter.of_json({**entry, **wrong}) is None, wrong


def test_a_shard_that_changed_loses_a_filter_that_was_not_renewed(tmp_path: Path) -> None:
    Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0", page_size=512).close()
    shard = manifests.load(tmp_path / "r").shards[0]
    assert dataclasses.replace(shard, rows=7).filter is not None
    assert dataclasses.replace(shard, index_file="other.index").filter is None


def test_default_builds_of_few_keys_have_no_filter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_writer, "LEAST_KEYS", 1 << 16)
    with Relation.build(table("integer", range(COUNT)), tmp_path / "r", "k0") as relation:
        assert relation.stored.shards[0].filter is None
        assert "filters" not in relation.stored.to_json()


# -- kills -----------------------------------------------------------------------------------------------------


def _updated(path: Path) -> None:
    semistream.upsert(path, table("integer", [COUNT, COUNT + 1], "new"))


@pytest.mark.parametrize("run", [_updated, semistream.compact], ids=["upsert", "compact"])
def test_kills_between_filter_and_manifest(tmp_path: Path, run: Callable[[Path], object]) -> None:
    Relation.build(table("integer", range(COUNT)), tmp_path / "sound", "k0", page_size=512, shards=2).close()
    semistream.upsert(tmp_path / "sound", table("integer", [COUNT + 5]))
    wanted = np.array([3 * key - 50 for key in range(COUNT + 10)])
    outcomes, at = set(), 0
    while True:
        path = tmp_path / "r"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "sound", path)
        disk = MortalDisk(path, at)
        try:
            with installed(disk):
                run(path)
            died = False
        except Died:
            died = True
        with forced_filters(), Relation.open(path) as relation, relation.lookups("500KB") as lookups:
            there = set(relation.to_table()["k0"].to_pylist())
            found = lookups.get(wanted, found="there")["there"].to_pylist()
            assert found == [key in there for key in wanted.tolist()]
            outcomes.add(relation.version)
        if not died:
            break
        at += 1
    assert outcomes == {2, 3}
