"""An open relation commits versions and moves to them, alone or with joins attached."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from open_files import open_files
from semistream.errors import (
    BrokenJoinError,
    BudgetTooSmallError,
    CommitConflictError,
    NotARelationError,
    SemistreamError,
    UpdateTooLargeError,
)
from semistream.relation.changes.invariants import check_relation
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.synthetic import synthetic_relation

ROWS = 2000
SCHEMA = pa.schema([pa.field("id", pa.int64())])


def rows(ids: object, value: int) -> pa.Table:
    ids = np.array(list(ids))  # type: ignore[call-overload]
    return pa.table({"id": ids, "v": np.full(ids.size, value)})


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    Relation.build(rows(range(ROWS), 0), tmp_path / "r", key="id", page_size=512, shards=request.param).close()
    return tmp_path / "r"


def content(relation: Relation) -> dict[int, int]:
    table = relation.to_table()
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def joined(join: semistream.joins.Join, ids: object) -> list[int | None]:
    results = list(join.process([pa.record_batch({"id": pa.array(list(ids))})]))  # type: ignore[call-overload]
    table = pa.Table.from_batches(results).sort_by("id")
    return table["v"].to_pylist()  # type: ignore[no-any-return]


def test_a_relation_moves_to_the_versions_it_commits(path: Path) -> None:
    expected = dict.fromkeys(range(ROWS), 0)
    with Relation.open(path) as relation, Relation.open(path) as other:
        assert relation.upsert(rows([5, ROWS + 1], 7)) == relation.version == 2
        expected |= {5: 7, ROWS + 1: 7}
        assert content(relation) == expected
        assert relation.delete(pa.array([0, 1])) == relation.version == 3
        assert relation.update(upserts=rows([2], 9), deletes=pa.array([3])) == 4
        for key in (0, 1, 3):
            del expected[key]
        expected[2] = 9
        assert content(relation) == expected
        assert relation.overlay.nbytes < 100, "changed pages are read from files"
        assert relation.compact() == relation.version == 5
        assert content(relation) == expected
        check_relation(relation)
        assert [version.operation for version in relation.history()] == [
            "build", "upsert", "delete", "delete and upsert", "compact",
        ]  # fmt: skip
        assert relation.manifest == manifests.load(path)
        assert relation.vacuum(older_than=-1)
        assert [version.number for version in relation.history()] == [1, 5], "one that is open stays"
        assert (other.version, set(content(other).values())) == (1, {0}), "others keep what they opened"
        assert other.refresh() == other.version == 5
        assert content(other) == expected


@pytest.mark.parametrize("algorithm", ["adaptivejoin", "hybridjoin", "inlj", "meshjoin", "cachejoin", "ssij"])
def test_joins_follow(path: Path, algorithm: str) -> None:
    with Relation.open(path) as relation:
        join = semistream.create(algorithm, relation, on="id", how="left", memory="2MB")
        asked = [*range(0, ROWS, 7), ROWS + 5]
        assert joined(join, asked) == [*([0] * (len(asked) - 1)), None]
        for value in (1, 2):
            number = relation.upsert(rows([*asked[::2], ROWS + 5 + value], value))
            assert number == relation.version == manifests.latest(path)
            changed = [value if place % 2 == 0 else 0 for place in range(len(asked))]
            assert joined(join, asked) == [*changed[:-1], value if len(asked) % 2 else None]
        assert relation.compact() == relation.version == 4
        assert relation.delete(pa.array(asked[:3])) == 5
        assert joined(join, asked)[:4] == [None, None, None, 0]
        with Relation.open(path) as stored:
            assert content(stored) == content(relation)
        relation.vacuum(older_than=-1)
        assert joined(join, asked)[:4] == [None, None, None, 0], "its files stay"


@pytest.mark.parametrize("algorithm", semistream.algorithms())
def test_a_join_that_has_seen_no_row_sees_what_was_opened_again(path: Path, algorithm: str) -> None:
    with Relation.open(path) as relation:
        join = semistream.create(algorithm, relation, on="id", how="left", memory="2MB")
        relation.upsert(rows(range(0, 3 * ROWS, 2), 1))
        assert joined(join, [0, 1, 2, 3, ROWS + 2]) == [1, 0, 1, 0, 1]


def test_what_a_join_refuses_is_not_committed(path: Path) -> None:
    with Relation.open(path) as relation:
        join = semistream.create("inlj", relation, on="id", memory=60_000, schema=SCHEMA)
        with pytest.raises(UpdateTooLargeError):
            relation.upsert(rows(range(20_000), 1))
        assert (relation.version, relation.revision, manifests.latest(path)) == (1, 0, 1)
        assert joined(join, [1, 2]) == [0, 0]


def test_another_writer_was_first(path: Path) -> None:
    with Relation.open(path) as alone, Relation.open(path) as attached:
        join = semistream.create("inlj", attached, on="id", how="left", memory="1MB", schema=SCHEMA)
        semistream.upsert(path, rows([1], 1))
        before = join.budget.parts()
        with pytest.raises(CommitConflictError, match="open the relation again"):
            attached.upsert(rows([2], 2))
        assert join.budget.parts() == before
        assert (attached.version, attached.revision) == (1, 0)
        assert joined(join, [1, 2]) == [0, 0]
        with pytest.raises(SemistreamError, match="1 joins hold pages of version 1"):
            attached.refresh()
        assert alone.upsert(rows([2], 2)) == 3
        assert (content(alone)[1], content(alone)[2]) == (1, 2)


def test_what_is_in_memory_only_is_not_lost(path: Path) -> None:
    with Relation.open(path) as relation:
        relation.apply(rows([1], 1))
        for work in (relation.compact, relation.refresh, lambda: relation.upsert(rows([2], 2))):
            with pytest.raises(SemistreamError, match="lose 1 updates that apply made only in memory"):
                work()
        assert (content(relation)[1], relation.version, relation.revision) == (1, 1, 1)


def test_what_cannot_be_changed_is_refused(path: Path) -> None:
    with pytest.raises(SemistreamError, match="has none"):
        synthetic_relation(1000).upsert(rows([1], 1))
    with Relation.open(path, shards=[0]) as relation:
        if relation.shard_count > 1:
            with pytest.raises(SemistreamError, match="1 of 3 shards"):
                relation.delete(pa.array([1]))


def test_a_patch_of_before_does_not_fit_what_was_opened_again(path: Path) -> None:
    with Relation.open(path) as relation:
        patch = relation.prepare(rows([1], 1))
        relation.upsert(rows([2], 2))
        with pytest.raises(SemistreamError, match="prepare it again"):
            relation.install(patch)


def test_repair_through_an_open_relation(tmp_path: Path) -> None:
    data = rows(range(ROWS), 3)
    with Relation.build(data, tmp_path / "r", key="id", page_size=512) as relation:
        with (tmp_path / "r" / relation.manifest.shards[0].pages_file).open("r+b") as file:  # type: ignore[union-attr]
            file.seek(3 * 512 + 100)
            file.write(b"!!")
        with pytest.raises(SemistreamError, match="checksum"):
            relation.to_table()
        assert [one.page for one in relation.repair(data.to_reader)] == [3]
        assert relation.to_table().sort_by("id").equals(data)


def test_a_manifest_does_not_change(path: Path) -> None:
    with Relation.open(path) as relation:
        manifest = relation.manifest
        assert manifest is not None
        with pytest.raises(TypeError):
            manifest.properties["operation"] = "none"  # type: ignore[index]
        with pytest.raises(AttributeError):
            manifest.version = 7  # type: ignore[misc]
        assert pickle.loads(pickle.dumps(manifest)) == manifest
        with pytest.raises(TypeError):
            pickle.loads(pickle.dumps(manifest)).properties["operation"] = "none"


def test_opening_and_updating_read_a_manifest_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int | None] = []
    load = manifests.load

    def counted(path: object, version: int | None = None) -> manifests.Manifest:
        read.append(version)
        return load(path, version)  # type: ignore[arg-type]

    monkeypatch.setattr(manifests, "load", counted)
    Relation.open(path).close()
    assert read == [None]
    read.clear()
    semistream.upsert(path, rows([1], 1))
    assert len(read) <= 2, "the version that is changed, and what the writer must not remove"


def test_a_join_made_of_a_path_owns_its_relation(path: Path) -> None:
    with semistream.create("inlj", path, on="id", how="left", memory="1MB") as join:
        assert joined(join, [1, ROWS + 1]) == [0, None]
        assert open_files(path)
    assert not open_files(path)
    with pytest.raises(BrokenJoinError, match="is closed"):
        join.offer(pa.record_batch({"id": [1]}))
    with pytest.raises(NotARelationError):
        semistream.create("inlj", path / "none", on="id")
    with pytest.raises(BudgetTooSmallError):
        semistream.create("auto", str(path), on="id", memory=10)
    assert not open_files(path)


def test_a_join_that_is_closed_leaves_its_relation_open(path: Path) -> None:
    with Relation.open(path) as relation:
        with semistream.create("inlj", relation, on="id", how="left", memory="1MB", schema=SCHEMA) as join:
            assert joined(join, [1]) == [0]
        relation.upsert(rows([1], 1))
        assert relation.overlay.ids.size == 0, "nothing follows any more"
        assert content(relation)[1] == 1
