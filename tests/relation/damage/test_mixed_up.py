"""Versions whose pages are all sound and whose keys are not where they belong, as earlier releases could write them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import semistream
from semistream.cli import app
from semistream.core.errors import NotARelationError
from semistream.relation.damage.repair import repair
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.index_file import index_to_bytes, load_index
from semistream.relation.storage.manifest import Manifest, ShardFiles
from semistream.relation.storage.map_file import load_map, map_to_bytes

Ints = np.ndarray
DATA = pa.table({"id": np.arange(600), "v": np.arange(600) % 7})


def updated(path: Path) -> Manifest:
    """Make a relation of two shards with an update in each."""
    Relation.build(DATA.slice(0, 550), path, "id", page_size=512, shards=2).close()
    semistream.upsert(path, DATA.slice(540))
    return manifests.load(path)


def rewritten(path: Path, shard: ShardFiles, order: Callable[[Ints], Ints], *, bound: bool = True) -> ShardFiles:
    """Write index and map of a shard anew with other pages in them, or in another order."""
    old, page_map = load_map(path, shard)
    first, continues = load_index(path / shard.index_file, shard.index_entries)
    at = order(np.arange(old.size))
    assert shard.map_file is not None
    index_file, map_file = "shard-0009-mixed.index", "shard-0009-mixed.map"
    (path / index_file).write_bytes(index_to_bytes(index_file, first[np.sort(at)], continues[np.sort(at)]))
    pages = old[at] if bound else np.where(np.arange(at.size) == 0, -1, old[at])
    (path / map_file).write_bytes(map_to_bytes(map_file, pages, page_map, bound=bound))
    unbound = shard.unbound if bound else (*shard.unbound, map_file)
    return dataclasses.replace(shard, index_file=index_file, map_file=map_file, indexed=at.size, unbound=unbound)


def exchanged(order: Ints) -> Ints:
    return np.concatenate([order[:3], order[4:5], order[3:4], order[5:]])


DAMAGE: dict[str, tuple[Callable[[Path, tuple[ShardFiles, ...]], tuple[ShardFiles, ...]], str]] = {
    "shards": (lambda _, shards: shards[::-1], "keys of other shards"),
    "order": (
        lambda path, shards: (rewritten(path, shards[0], exchanged), shards[1]),
        "begin before the previous page",
    ),
    "lost": (
        lambda path, shards: (shards[0], rewritten(path, shards[1], lambda order: order[:-1])),
        "not in its index",
    ),
    "rows": (
        lambda _, shards: (
            dataclasses.replace(shards[0], rows=shards[0].rows - 1),
            dataclasses.replace(shards[1], rows=shards[1].rows + 1),
        ),
        "by the manifest",
    ),
    "last key": (
        lambda _, shards: (dataclasses.replace(shards[0], last_key=shards[0].last_key - 1), shards[1]),
        "after the last key",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_it_is_found_and_mended_from_the_data(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "r"
    manifest = updated(path)
    with Relation.open(path) as relation:
        assert list(find_faults(relation)) == []
    assert repair(path, DATA.to_reader) == [], "nothing is made anew that is sound"
    damage, said = DAMAGE[kind]
    shards = damage(path, manifest.shards)
    manifests.commit(path, dataclasses.replace(manifest, version=3, shards=shards))
    with Relation.open(path) as relation:
        assert any(said in fault.message for fault in find_faults(relation)), list(find_faults(relation))
    assert CliRunner().invoke(app, ["inspect", str(path), "--check"]).exit_code == 1
    [made] = repair(path, DATA.to_reader)
    assert made.proof == "data"
    with Relation.open(path) as relation:
        assert relation.version == 4
        assert relation.to_table().sort_by("id").equals(DATA)
        assert relation.shard_count == 2
        assert list(find_faults(relation)) == []


def test_a_map_with_pages_of_another_shard(tmp_path: Path) -> None:
    path = tmp_path / "r"
    manifest = updated(path)
    shards = manifest.shards[0], rewritten(path, manifest.shards[1], lambda order: order, bound=False)
    manifests.commit(path, dataclasses.replace(manifest, version=3, shards=shards))
    with pytest.raises(NotARelationError, match="repair --from"):
        Relation.open(path)
    pq.write_table(DATA, tmp_path / "data.parquet")
    result = CliRunner().invoke(app, ["repair", str(path), "--from", str(tmp_path / "data.parquet")])
    assert result.exit_code == 0, result.output
    assert "a new version built from the data" in result.output.replace("\n", " ")
    with Relation.open(path) as relation:
        assert relation.to_table().sort_by("id").equals(DATA)
        assert list(find_faults(relation)) == []
