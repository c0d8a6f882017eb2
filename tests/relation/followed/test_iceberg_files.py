"""Iceberg snapshots that only other engines write: compactions, and partitions by any transform."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan, StartsWith
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform, TruncateTransform

import semistream
from followed_histories import OPTIONS, IcebergHistory, check_versions, followed
from iceberg_writing import append_files, compact_files, files_of, rows_in, swap_files, written
from semistream.relation.followed.follower import Step
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import followed_commit

pytestmark = pytest.mark.slow


def test_a_compaction_is_recorded_and_its_files_are_not_read(tmp_path):
    """The files that it removed are already gone, as after an expiry of snapshots."""
    source, path = IcebergHistory(tmp_path, 0), tmp_path / "relation"
    for _ in range(3):
        source.append()
    followed(source.follower(path, key="id", **OPTIONS))
    old = files_of(source.table)
    assert len(old) == 4
    compact_files(source.table, old)
    snapshot = source.table.current_snapshot()
    assert snapshot.summary.operation.value == "replace"
    assert len(files_of(source.table)) == 1
    for file in [*old, *files_of(source.table)]:
        Path(file.file_path.removeprefix("file://")).rename(tmp_path / Path(file.file_path).name)
    [step] = followed(source.follower(path))
    assert (step.operation, step.upserted, step.deleted, step.bytes_written) == ("follow", 0, 0, 0)
    assert step.commit == followed_commit(manifests.load(path).properties).commit == str(snapshot.snapshot_id)
    assert manifests.load(path, 2).shards == manifests.load(path, 1).shards
    assert source.follower(path).lag().commits == 0
    for file in files_of(source.table):
        (tmp_path / Path(file.file_path).name).rename(file.file_path.removeprefix("file://"))
    source.append()
    source.delete()
    assert len(followed(source.follower(path))) == 2
    check_versions(source, path, {1})


BEGIN = datetime(2024, 2, 27, 21)
"""Every second row is 60 years older: days before 1970 are negative."""
COLUMNS = pa.schema({"id": pa.int64(), "region": pa.string(), "name": pa.string(), "at": pa.timestamp("us")})


def row(key: int, text: str = "product") -> dict[str, Any]:
    """Return a row; each column but the key is NULL in some rows."""
    moment = BEGIN + timedelta(hours=5 * (key % 12), days=-21_915 * (key % 2))
    return {
        "id": key,
        "region": (None, "eu", "us", "ä/ö = %")[key % 4],
        "name": None if key % 7 == 0 else f"{'abc' * (key % 3)}{text} {key}",
        "at": None if key % 11 == 0 else moment,
    }


class Partitioned:
    """A partitioned table, the rows that it must have, and the relation that follows it."""

    def __init__(self, root: Path, fields: dict[str, Transform[Any, Any]]) -> None:
        from pyiceberg.catalog import load_catalog

        self.path = root / "r"
        self.options = {"type": "sql", "uri": f"sqlite:///{root}/c.db", "warehouse": f"file://{root}/w"}
        catalog = load_catalog("test", **self.options)
        catalog.create_namespace("shop")
        self.table: Table = catalog.create_table("shop.products", schema=COLUMNS)
        self.partition_by(fields)
        self.rows: dict[int, dict[str, Any]] = {}

    def partition_by(self, fields: dict[str, Transform[Any, Any]]) -> None:
        with self.table.update_spec() as update:
            for name, transform in fields.items():
                update.add_field(name, transform)

    def append(self, keys: range) -> None:
        new = {key: row(key) for key in keys}
        append_files(self.table, written(self.table, pa.Table.from_pylist(list(new.values()), COLUMNS)))
        self.rows |= new

    def swap(self, number: int, keep: int, changed: str = "") -> int:
        """Rewrite a file with some of its rows, changed or not; return how many are gone."""
        file = files_of(self.table)[number]
        old = rows_in(self.table, [file]).cast(COLUMNS).sort_by("id").to_pylist()
        kept = [{**one, "region": changed, "name": changed} if changed else one for one in old[:keep]]
        swap_files(self.table, [file], written(self.table, pa.Table.from_pylist(kept, COLUMNS)) if kept else [])
        for one in old:
            del self.rows[one["id"]]
        self.rows |= {one["id"]: one for one in kept}
        return len(old) - len(kept)

    def check(self, upserted: int, deleted: int) -> None:
        """Follow one commit, which has these changes, and compare all rows."""
        steps: list[Step] = []
        semistream.follow(
            "shop.products", self.path, key="id", catalog="test", options=self.options, page_size=512,
            report=steps.append,
        )  # fmt: skip
        assert [(one.upserted, one.deleted) for one in steps] == [(upserted, deleted)]
        with Relation.open(self.path) as relation:
            assert relation.to_table().sort_by("id").to_pylist() == [self.rows[key] for key in sorted(self.rows)]


def day(number: int) -> BooleanExpression:
    begin, end = (datetime(2024, 2, 27) + timedelta(days=one) for one in (number, number + 1))
    return And(GreaterThanOrEqual("at", begin.isoformat()), LessThan("at", end.isoformat()))


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"region": BucketTransform(2), "at": DayTransform(), "id": TruncateTransform(40)}, day(1)),
        ({"region": IdentityTransform()}, EqualTo("region", "eu")),
        ({"id": BucketTransform(4)}, None),
        ({"name": TruncateTransform(3)}, StartsWith("name", "abc")),
        ({"at": DayTransform()}, day(1)),
    ],
    ids=["several", "identity", "bucket", "truncate", "day"],
)
def test_partitions(tmp_path, fields, whole):
    """Appends, rewritten files, whole partitions that go, rows that move to another, compactions, another spec."""
    source = Partitioned(tmp_path, fields)
    source.append(range(80))
    assert len(files_of(source.table)) >= 3
    source.check(80, 0)
    source.append(range(80, 110))
    source.check(30, 0)
    gone = source.swap(-1, 2)
    assert gone
    source.check(0, gone)
    gone = source.swap(-1, 3, changed="xyz")
    source.check(3, gone)
    if whole is None:
        source.check(0, source.swap(0, 0))
    else:
        before = files_of(source.table)
        source.table.delete(whole)
        left = {one.file_path for one in files_of(source.table)}
        assert left < {one.file_path for one in before}, "no file is rewritten"
        keys = rows_in(source.table, [one for one in before if one.file_path not in left])["id"].to_pylist()
        assert keys
        for key in keys:
            del source.rows[key]
        source.check(0, len(keys))
    compact_files(source.table, files_of(source.table))
    source.check(0, 0)
    source.partition_by({"name": BucketTransform(3)} if "name" not in fields else {"id": BucketTransform(3)})
    source.append(range(200, 230))
    source.check(30, 0)
    for number in (0, -1):  # a file of each
        gone = source.swap(number, 0)
        source.check(0, gone)
    compact_files(source.table, files_of(source.table), pieces=2)
    source.check(0, 0)


def test_files_without_the_column_that_partitions_them(tmp_path):
    """As of a migrated Hive table: the value of an identity partition is in the metadata only."""
    source = Partitioned(tmp_path, {"region": IdentityTransform()})
    source.append(range(40))
    source.check(40, 0)
    new = {key: {**row(key), "region": "eu" if key < 50 else "us"} for key in range(40, 60)}
    files = written(source.table, pa.Table.from_pylist(list(new.values()), COLUMNS))
    assert len(files) == 2
    for file in files:
        path = file.file_path.removeprefix("file://")
        whole = pq.ParquetFile(path).read()
        pq.write_table(whole.drop_columns(["region"]), path)
    append_files(source.table, files)
    source.rows |= new
    source.check(20, 0)
