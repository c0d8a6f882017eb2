"""The relation as joins see it: pages in, rows out, and damage named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import CorruptPageError, KeyColumnError, NotARelationError
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.relation import Relation
from semistream.structures.lookup import PageLookup


def sample(rows: int = 1000, kind: pa.DataType | None = None) -> pa.Table:
    rng = np.random.default_rng(rows)
    ids = rng.permutation(rows)
    key = pa.array(ids) if kind is None else pa.array([f"key {i}" for i in ids], kind)
    return pa.table({"id": key, "row": ids, "text": ["t" * (i % 40) for i in ids.tolist()]})


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_rows_are_gathered_from_pages_in_any_order(tmp_path: Path, clustered: bool, direct: bool) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024, clustered=clustered)
    rng = np.random.default_rng(1)
    with Relation.open(tmp_path / "r", direct=direct) as relation:
        pages = rng.integers(0, relation.page_count, 50)
        frames = relation.frames(50)
        relation.read(pages, frames)
        keys, _, starts = page_keys(frames, relation.layout.stride)
        order = rng.integers(0, keys.size, 500)
        rows = relation.rows(frames.reshape(-1), starts[order])
        assert rows.schema.names == ["row", "text"], "an exact key is not stored twice"
        assert rows.column("row").to_pylist() == keys[order].tolist()
        assert rows.column("text").to_pylist() == ["t" * (key % 40) for key in keys[order].tolist()]
        assert relation.counters.pages == 50
        assert relation.counters.bytes == 50 * 1024


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("frames", [1, 3, 64])
@pytest.mark.parametrize("cap", [1, 10, 10_000])
@pytest.mark.parametrize("clustered", [True, False])
def test_looking_keys_up(tmp_path: Path, share: bool, frames: int, cap: int, clustered: bool) -> None:
    rng = np.random.default_rng(2)
    ids = np.repeat(np.arange(40) * 2, np.resize([1, 3, 50, 1], 40))
    table = pa.table({"id": ids, "row": np.arange(ids.size)})
    relation = Relation.build(table, tmp_path / "r", key="id", page_size=512, clustered=clustered)
    keys = rng.integers(-3, 85, 70)
    lookup = PageLookup(relation, frames, share=share, cap=cap)
    found: list[tuple[int, int]] = []
    before = relation.device.counters.pages
    for match in lookup.match(keys):
        rows = relation.rows(match.data, match.starts).column("row").to_pylist()
        found += zip(match.positions.tolist(), rows, strict=True)
    wanted = [(i, row) for i, key in enumerate(keys.tolist()) for row in np.flatnonzero(ids == key).tolist()]
    assert sorted(found) == sorted(wanted)
    pages = relation.locate(keys).pages
    read = relation.device.counters.pages - before
    assert read == (np.unique(pages).size if share else pages.size)


def test_what_it_is(tmp_path: Path) -> None:
    relation = Relation.build(sample(), tmp_path / "r", key="id", page_size=1024, shards=2)
    assert relation.unique
    assert relation.clustered
    assert relation.page_bytes == 1024
    assert relation.nbytes == relation.page_count * 1024
    assert relation.rows_per_page == pytest.approx(1000 / relation.page_count)
    assert relation.value_schema.names == ["row", "text"]
    assert "1 k rows by key" in repr(relation)
    assert "2 shards" in repr(relation)
    semistream.create("hybridjoin", relation, on="id", how="inner", memory=relation.nbytes // 2)


def test_some_of_the_shards(tmp_path: Path) -> None:
    table = sample(kind=pa.string())
    whole = Relation.build(table, tmp_path / "r", key="id", page_size=512, shards=5)
    keys, _ = whole.key.encode(table.combine_chunks().to_batches()[0])
    home = whole.key.shards(keys, 5)
    for shards in ([0], [3], [1, 4], [4, 1, 0], [0, 1, 2, 3, 4]):
        part = Relation.open(tmp_path / "r", shards=iter(shards))
        here = np.isin(home, shards)
        assert part.row_count == here.sum()
        stream = pa.record_batch({"id": table.column("id").combine_chunks(), "n": np.arange(1000)})
        join = semistream.create("inlj", part, on="id", how="inner")
        found = [n for batch in join.process([stream]) for n in batch.column("n").to_pylist()]
        assert sorted(found) == np.flatnonzero(here).tolist()
    for number in (5, -1):
        with pytest.raises(ValueError, match=rf"shards 0 to 4, not \[{number}\]"):
            Relation.open(tmp_path / "r", shards=[number])


# -- damage -----------------------------------------------------------------------------------------------


def only_file(folder: Path, kind: str) -> Path:
    (file,) = folder.glob(f"*.{kind}")
    return file


@pytest.mark.parametrize("clustered", [True, False])
@pytest.mark.parametrize("algorithm", ["oracle", "inlj", "meshjoin", "hybridjoin"])
def test_a_flipped_bit_is_found_by_every_reader(tmp_path: Path, clustered: bool, algorithm: str) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024, clustered=clustered)
    file = only_file(tmp_path / "r", "pages")
    content = bytearray(file.read_bytes())
    content[5 * 1024 + 700] ^= 16
    file.write_bytes(content)
    relation = Relation.open(tmp_path / "r")
    join = semistream.create(algorithm, relation, on="id", how="inner", memory="1MB")
    with pytest.raises(CorruptPageError, match=r"page 5\b") as caught:
        list(join.process([pa.record_batch({"id": np.arange(1000)})]))
    assert caught.value.page == 5
    assert caught.value.file == str(file)


def test_a_flipped_bit_in_a_leaf_is_found(tmp_path: Path) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024, clustered=False)
    file = only_file(tmp_path / "r", "leaves")
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptPageError, match="leaves"):
        Relation.open(tmp_path / "r").locate(np.array([0]))


def test_a_page_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024)
    file = only_file(tmp_path / "r", "pages")
    content = file.read_bytes()
    file.write_bytes(content[1024:2048] + content[:1024] + content[2048:])
    with pytest.raises(CorruptPageError):
        Relation.open(tmp_path / "r").to_table()


@pytest.mark.parametrize("kind", ["pages", "leaves", "index"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "longer", "empty"])
def test_a_damaged_file_is_named_when_the_relation_is_opened(tmp_path: Path, kind: str, damage: str) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024, clustered=False)
    file = only_file(tmp_path / "r", kind)
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"truncated": content[:-100], "longer": content + b"more", "empty": b""}[damage])
    with pytest.raises(NotARelationError, match=file.name):
        Relation.open(tmp_path / "r")


def test_an_index_of_another_relation_is_refused(tmp_path: Path) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024)
    Relation.build(sample(500), tmp_path / "s", key="id", page_size=1024)
    only_file(tmp_path / "r", "index").write_bytes(only_file(tmp_path / "s", "index").read_bytes())
    with pytest.raises(NotARelationError, match=r"\.index"):
        Relation.open(tmp_path / "r")


def test_names_in_the_result(tmp_path: Path) -> None:
    relation = Relation.build(sample(), tmp_path / "r", key="id")
    stream = pa.schema({"id": pa.int64(), "text": pa.string(), "text_right": pa.string()})
    with pytest.raises(KeyColumnError, match="'text_right'"):
        semistream.create("inlj", relation, on="id", how="inner", schema=stream)
    join = semistream.create("inlj", relation, on="id", how="inner", schema=stream, suffix="_of_r")
    assert join.output_schema.names == ["id", "text", "text_right", "row", "text_of_r"]


def test_a_flipped_bit_in_the_index_is_found(tmp_path: Path) -> None:
    Relation.build(sample(), tmp_path / "r", key="id", page_size=1024)
    file = only_file(tmp_path / "r", "index")
    content = file.read_bytes()
    for at in range(0, len(content), 37):
        damaged = bytearray(content)
        damaged[at] ^= 8
        file.write_bytes(damaged)
        with pytest.raises(NotARelationError, match="checksum differs"):
            Relation.open(tmp_path / "r")
