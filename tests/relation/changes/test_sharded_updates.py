"""Updates of relations with several shards: each shard is read alone too, as the tasks of a cluster do."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import RelationBuildError
from semistream.relation.changes.invariants import check_relation
from semistream.relation.damage.verify import find_faults
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.map_file import load_map

Model = dict[int, list[int]]


def table(model: Model) -> pa.Table:
    """Return the rows of a model: a key and its values."""
    return pa.table(
        {
            "id": pa.array([key for key, values in model.items() for _ in values], pa.int64()),
            "v": pa.array([value for values in model.values() for value in values], pa.int64()),
        }
    )


def content(relation: Relation) -> list[tuple[int, int]]:
    found = relation.to_table()
    return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def wanted(model: Model) -> list[tuple[int, int]]:
    return sorted((key, value) for key, values in model.items() for value in values)


def changes(rng: random.Random, step: int) -> tuple[Model, list[int]]:
    """Keys of one row or of a hundred, so that shards gain and lose pages by turns."""
    upserts = {key: [key * 1000 + step + i for i in range(rng.choice([1, 100]))] for key in rng.sample(range(60), 12)}
    return upserts, rng.sample(range(60), rng.choice([0, 8]))


def alone(path: Path, shards: int, model: Model) -> None:
    """Assert that each shard, opened alone, has its keys' rows, and a join finds all of them."""
    for shard in range(shards):
        with Relation.open(path, shards=[shard]) as relation:
            keys = np.arange(60)
            mine = keys[relation.key.shards(keys, shards) == shard]
            rows = [pair for pair in wanted(model) if pair[0] in set(mine.tolist())]
            assert content(relation) == rows
            assert relation.row_count == len(rows)
            join = semistream.create("hybridjoin", relation, on="id", how="inner", memory="1MB")
            results = list(join.process([pa.record_batch({"id": mine})]))
            assert sum(result.num_rows for result in results) == len(rows)


@pytest.mark.parametrize("shards", [2, 3, 5])
def test_versions_of_all_shards_together_and_of_each_alone(tmp_path: Path, shards: int) -> None:
    rng = random.Random(shards)
    model: Model = {key: [key] * rng.choice([1, 100]) for key in range(60)}
    path = tmp_path / "r"
    Relation.build(table(model), path, "id", page_size=512, shards=shards).close()
    for step in range(5):
        upserts, deletes = changes(rng, step)
        semistream.update(path, upserts=table(upserts), deletes=pa.array(deletes, pa.int64()))
        for key in deletes:
            model.pop(key, None)
        model |= upserts
        with Relation.open(path) as relation:
            check_relation(relation)
            assert content(relation) == wanted(model)
            assert relation.row_count == len(wanted(model))
            assert list(find_faults(relation)) == []
        for shard in manifests.load(path).shards:
            if shard.map_file is not None:
                order, page_map = load_map(path, shard)
                page_map.check()
                assert order.size == 0 or (order.min() >= 0 and order.max() < page_map.page_count)
                assert page_map.changed.size == 0 or page_map.changed[-1] < page_map.page_count
        alone(path, shards, model)
    semistream.compact(path)
    alone(path, shards, model)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_in_memory_no_page_passes_from_shard_to_shard(tmp_path: Path, shards: int) -> None:
    rng = random.Random(10 + shards)
    model: Model = {key: [key] * rng.choice([1, 100]) for key in range(60)}
    with Relation.build(table(model), tmp_path / "r", "id", page_size=512, shards=shards) as relation:
        for step in range(20):
            upserts, deletes = changes(rng, step)
            change = relation.apply(table(upserts), deletes=pa.array(deletes, pa.int64()))
            for key in deletes:
                model.pop(key, None)
            model |= upserts
            assert np.all(np.diff(change.pages) > 0), "a page is named twice"
            check_relation(relation)
            assert content(relation) == wanted(model)


def test_an_update_that_came_to_nothing_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """Two updates worked out for the same version share no memory: the one that is installed is what it was."""
    model: Model = {key: [key] for key in range(200)}
    with Relation.build(table(model), tmp_path / "r", "id", page_size=512) as relation:
        relation.apply(table({5: [5, 5]}))  # from now on there is room behind the pages that changed
        first = relation.prepare(table({key: [-1] for key in range(50)}))
        relation.prepare(table({key: [-2] for key in range(100, 200)}))
        relation.install(first)
        check_relation(relation)
        assert content(relation) == wanted(model | {5: [5, 5]} | {key: [-1] for key in range(50)})


def test_keys_of_shards_that_are_not_open_are_refused(tmp_path: Path) -> None:
    model: Model = {key: [key] for key in range(200)}
    Relation.build(table(model), tmp_path / "r", "id", page_size=512, shards=3).close()
    keys = np.arange(200)
    with Relation.open(tmp_path / "r", shards=[0, 2]) as relation:
        homes = relation.key.shards(keys, 3)
        mine = {int(key): [-1] for key in keys[homes != 1]}
        relation.apply(table(mine))
        assert content(relation) == wanted(mine)
        check_relation(relation)
        with pytest.raises(RelationBuildError, match="2 of 3"):
            relation.apply(table({int(keys[homes == 1][0]): [-1]}))
        assert content(relation) == wanted(mine)
