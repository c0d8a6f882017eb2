"""Changes that make history: `upsert` and `delete` with ``at=``."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from faulty_disks import Crash, Died, MortalDisk, installed
from semistream import Relation
from semistream.core.errors import RelationBuildError
from semistream.relation.changes.history_changes import moment_of
from semistream.relation.keys.valid_times import ValidTimes

KINDS: list[Crash] = ["killed", "power lost", "reordered", "torn"]
SCHEMA = pa.schema({"id": pa.int64(), "price": pa.int64(), "since": pa.int64(), "until": pa.int64()})


def build(path: Path, rows: list[tuple[Any, ...]], **options: Any) -> Relation:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
    table = pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)
    return Relation.build(table, path, "id", page_size=512, valid_from="since", valid_to="until", **options)


def rows_of(relation: Relation) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in relation.to_table().sort_by([("id", "ascending"), ("since", "ascending")]).to_pylist()
    ]


def changed(ids: list[int], prices: list[int]) -> pa.Table:
    return pa.table({"id": ids, "price": prices})


def test_the_current_row_ends_and_a_new_one_begins(tmp_path: Path) -> None:
    with build(tmp_path / "r", [(1, 10, 0, 5), (1, 11, 5, None), (2, 20, 0, 3), (3, 30, 0, None)]) as relation:
        assert relation.upsert(changed([1, 2, 9], [12, 21, 90]), at=7) == 2
        after = [
            (1, 10, 0, 5),
            (1, 11, 5, 7),
            (1, 12, 7, None),
            (2, 20, 0, 3),
            (2, 21, 7, None),
            (3, 30, 0, None),
            (9, 90, 7, None),
        ]
        assert rows_of(relation) == after
        assert relation.upsert(changed([1, 2, 9], [12, 21, 90]), at=7) == 3  # repeated
        assert rows_of(relation) == after
        relation.delete(pa.array([1, 2, 5]), at=8)
        relation.delete(pa.array([9]), at=7)  # it was never valid
        assert rows_of(relation) == [
            (1, 10, 0, 5),
            (1, 11, 5, 7),
            (1, 12, 7, 8),
            (2, 20, 0, 3),
            (2, 21, 7, 8),
            (3, 30, 0, None),
        ]
        relation.compact()
        assert relation.row_count == 6
    with Relation.open(tmp_path / "r", version=1) as first:
        assert first.row_count == 4


def test_a_change_inside_history_is_refused(tmp_path: Path) -> None:
    with build(tmp_path / "r", [(1, 10, 0, 5), (1, 11, 5, None)]) as relation:
        for change in (lambda: relation.upsert(changed([1], [9]), at=4), lambda: relation.delete(pa.array([1]), at=4)):
            with pytest.raises(RelationBuildError, match=r"earlier than the begin of 1 rows.*such as 1; .*without at="):
                change()
        assert relation.version == 1
        with pytest.raises(RelationBuildError, match="sets for all rows"):
            relation.upsert(pa.table({"id": [1], "price": [1], "since": [9]}), at=9)
        with pytest.raises(RelationBuildError, match="several rows, such as 1"):
            relation.upsert(changed([1, 1], [8, 9]), at=9)
        with pytest.raises(RelationBuildError, match="no time of 'since'"):
            relation.upsert(changed([1], [8]), at="yesterday")


def test_without_ends_a_delete_is_refused(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "since": pa.array([0], pa.timestamp("us"))})
    with Relation.build(table, tmp_path / "r", "id", valid_from="since") as relation:
        relation.upsert(pa.table({"id": [1]}), at="2026-01-01")
        assert relation.to_table()["since"].to_pylist() == [dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 1)]
        with pytest.raises(RelationBuildError, match="no column for their end"):
            relation.delete(pa.array([1]), at="2026-01-02")
    with (
        Relation.build(pa.table({"id": [1]}), tmp_path / "p", "id") as plain,
        pytest.raises(RelationBuildError, match="needs a history"),
    ):
        plain.upsert(pa.table({"id": [1]}), at=3)


@pytest.mark.parametrize("shards", [1, 3])
def test_changes_agree_with_a_model(tmp_path: Path, shards: int) -> None:
    random = np.random.default_rng(shards)
    model: dict[int, list[list[Any]]] = {key: [[key, 0, 0, None]] for key in range(40)}
    relation = build(tmp_path / "r", [tuple(row) for rows in model.values() for row in rows], shards=shards)
    for moment in range(1, 40):
        ids = random.choice(60, 12, replace=False)
        up, down = ids[:8], ids[8:]
        for key in ids.tolist():
            rows = model.setdefault(key, [])
            if rows and rows[-1][3] is None:
                rows[-1][3] = moment
            if key in up:
                rows.append([key, moment, moment, None])
        relation.update(upserts=changed(up.tolist(), [moment] * 8), deletes=pa.array(down), at=moment)
    assert rows_of(relation) == sorted(tuple(row) for rows in model.values() for row in rows)
    for index in relation.indexes:
        index.check()
        times = [relation.times.begins(batch) for batch in relation.to_batches(1)]
        assert index.times.size == index.first.size <= len(times) + 1


@pytest.mark.parametrize(
    ("kind", "at", "moment"),
    [
        (pa.date32(), "2026-01-01", 20454),
        (pa.date32(), dt.date(2026, 1, 1), 20454),
        (pa.timestamp("ms"), "2026-01-01 12:00:00", 1767268800000),
        (pa.timestamp("ns"), dt.datetime(2026, 1, 1), 1767225600 * 10**9),
        (pa.timestamp("s", "UTC"), "2026-01-01T00:00:00Z", 1767225600),
        (pa.timestamp("s", "UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 1767225600),
        (pa.int32(), 7, 7),
        (pa.timestamp("us"), pa.scalar(5, pa.timestamp("us")), 5),
        (pa.timestamp("s"), pa.scalar(2**60, pa.timestamp("s")), 2**60),  # a year that Python does not have
        (pa.timestamp("ns", "UTC"), pa.scalar(1_000_000_001, pa.timestamp("ns", "UTC")), 1_000_000_001),
        (pa.timestamp("us"), "0001-01-01", -62135596800 * 10**6),  # nanoseconds have neither of these years
        (pa.timestamp("ms"), dt.datetime(9999, 12, 31), 253402214400 * 10**3),
        (pa.timestamp("us"), np.datetime64("2026-01-01"), 1767225600 * 10**6),
        (pa.uint64(), 2**64 - 2, 2**63 - 2),
    ],
)
def test_moments(kind: pa.DataType, at: Any, moment: int) -> None:
    assert moment_of(ValidTimes.of(pa.schema({"since": kind}), "since"), at) == moment


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (pa.date32(), "2026-01-01 12:00:00"),
        (pa.date32(), dt.datetime(2026, 1, 1, 12)),
        (pa.timestamp("s"), "2026-01-01 00:00:00.5"),
        (pa.int8(), 300),
        (pa.timestamp("s"), None),
        (pa.date32(), pa.scalar(86_401, pa.timestamp("s"))),
        (pa.timestamp("us"), "2026-01-01T00:00:00Z"),
        (pa.timestamp("us"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        (pa.int32(), dt.date(2026, 1, 1)),
        (pa.uint64(), 2**64),
    ],
)
def test_moments_that_the_type_cannot_hold(kind: pa.DataType, at: Any) -> None:
    with pytest.raises(RelationBuildError):
        moment_of(ValidTimes.of(pa.schema({"since": kind}), "since"), at)


def test_an_index_with_times_is_made_of_its_pages(tmp_path: Path) -> None:
    with build(
        tmp_path / "r", [(key, key, begin, None) for key in range(60) for begin in range(5)], shards=2
    ) as relation:
        relation.upsert(changed(list(range(0, 60, 7)), [0] * 9), at=9)
    path = tmp_path / "r"
    before = {file.name: file.read_bytes() for file in path.glob("*.index")}
    for file in path.glob("*.index"):
        file.write_bytes(b"nothing")
    assert {one.proof for one in semistream.repair(path)} == {"pages"}
    assert {file.name: file.read_bytes() for file in path.glob("*.index")} == before


def test_earlier_releases_refuse_a_history(tmp_path: Path) -> None:
    build(tmp_path / "r", [(1, 10, 0, None)]).close()
    (file,) = (tmp_path / "r").glob("manifest-*.json")
    document = json.loads(file.read_text())
    assert (document["format_version"], document["valid_from"], document["valid_to"]) == (4, "since", "until")


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_leaves_one_version_or_the_other(tmp_path: Path, kind: Crash) -> None:
    base, root = tmp_path / "base", tmp_path / "work"
    old = [(1, 10, 0, 5), (1, 11, 5, None), (2, 20, 0, None)]
    new = [(1, 10, 0, 5), (1, 11, 5, 7), (1, 12, 7, None), (2, 20, 0, None)]
    build(base / "r", old).close()
    disk, stop = None, 0
    while disk is None or disk.dead:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(base, root)
        disk, done = MortalDisk(root, stop), False
        with installed(disk):
            try:
                semistream.upsert(root / "r", changed([1], [12]), at=7)
                done = True
            except Died:
                pass
        disk.crash(kind, seed=stop)
        with Relation.open(root / "r") as relation:
            assert rows_of(relation) == (new if relation.version == 2 else old)
            assert relation.version == 2 or not done
            relation.upsert(changed([1], [12]), at=7)  # repeated, whatever was left
            assert rows_of(relation) == new
        stop += 1
    assert stop > 4
