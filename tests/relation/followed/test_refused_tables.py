"""What cannot be followed is reported with the remedy, before anything is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from followed_histories import IcebergHistory, followed
from semistream.core.errors import RelationBuildError
from semistream.errors import ExpiredCommitError, FollowError
from semistream.relation.followed.source_table import SourceUnavailableError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "price": [1.5, 2.5, 3.5]})
    write_deltalake(tmp_path / "table", rows)
    return tmp_path / "table"


def refused(table: str | Path, path: Path, match: str, error: type[Exception] = FollowError, **options: object) -> None:
    there = path.exists()
    with pytest.raises(error, match=match):
        semistream.follow(table, path, **{"key": "id", **options})
    assert path.exists() == there
    assert not list(path.glob("shard-*-*")) or there


def with_action(table: Path, version: int, change: dict) -> None:
    """Append a commit to the log by hand."""
    log = table / "_delta_log" / f"{version:020d}.json"
    log.write_text("\n".join(json.dumps({name: value}) for name, value in change.items()))


def metadata(table: Path) -> dict:
    lines = (table / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    return next(json.loads(line)["metaData"] for line in lines if "metaData" in line)


def test_no_such_table(tmp_path):
    refused(tmp_path / "nowhere", tmp_path / "r", "there is no Delta table at .*nowhere.*_delta_log")


def test_a_history(tmp_path):
    moments = pa.array([1, 2], pa.timestamp("us", "UTC"))
    rows = pa.table({"id": [1, 1], "__START_AT": moments, "__END_AT": moments.take(pa.array([1, None])), "v": [1, 2]})
    write_deltalake(tmp_path / "table", rows)
    refused(tmp_path / "table", tmp_path / "r", "is a history.*add __START_AT to the key")
    assert semistream.follow(tmp_path / "table", tmp_path / "r", key=["id", "__START_AT"]) == 1
    write_deltalake(tmp_path / "table", rows.set_column(0, "id", pa.array([2, 3])), mode="append")
    assert semistream.follow(tmp_path / "table", tmp_path / "r") == 2
    with Relation.open(tmp_path / "r") as relation:
        assert sorted(relation.to_table()["id"].to_pylist()) == [1, 1, 2, 3]


def test_no_such_catalog_or_iceberg_table(tmp_path):
    refused("shop.products", tmp_path / "r", "cannot open the Iceberg catalog 'no'.*type=sql", catalog="no")
    source = IcebergHistory(tmp_path, 0)
    refused(
        "shop.nothing", tmp_path / "r", "there is no table shop.nothing.*namespace and name", catalog="test",
        options=source.options,
    )  # fmt: skip


def test_iceberg_table_without_snapshot(tmp_path):
    source = IcebergHistory(tmp_path, 0)
    source.table.catalog.create_table("shop.empty", schema=pa.schema({"id": pa.int64()}))
    refused("shop.empty", tmp_path / "r", "has no snapshot yet", catalog="test", options=source.options)


def test_key(tmp_path, table):
    refused(table, tmp_path / "r", "declares no key; name the columns", key=None)
    refused(table, tmp_path / "r", "key column 'ident' is not in the relation", ValueError, key="ident")
    refused(table, tmp_path / "r", "cannot be a key.*cast the column", ValueError, key="price")


def test_key_that_is_not_unique(tmp_path, table):
    write_deltalake(table, pa.table({"id": [2], "name": ["again"], "price": [0.0]}), mode="append")
    refused(table, tmp_path / "r", "id must be unique.*such as 2", RelationBuildError)


@pytest.mark.parametrize(
    ("keys", "told"), [([2, 9], "id must be unique in a table"), ([8, 8], "such as 8"), ([2, 2], "such as 2")]
)
def test_key_that_is_no_longer_unique(tmp_path, table, keys, told):
    semistream.follow(table, tmp_path / "r", key="id")
    write_deltalake(table, pa.table({"id": keys, "name": ["x", "y"], "price": [0.0, 1.0]}), mode="append")
    refused(table, tmp_path / "r", f"{told}.*nothing was committed")
    assert manifests.versions(tmp_path / "r") == [1]


def test_deletion_vectors(tmp_path, table):
    changed = metadata(table)
    changed["configuration"] = {"delta.enableDeletionVectors": "true"}
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }  # fmt: skip
    with_action(table, 1, {"protocol": protocol, "metaData": changed})
    refused(table, tmp_path / "r", "deletion vectors.*SET TBLPROPERTIES.*PURGE")


def test_deletion_vectors_that_come_later(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    test_deletion_vectors(tmp_path, table)
    assert manifests.versions(tmp_path / "r") == [1]


def test_column_mapping(tmp_path, table):
    changed = metadata(table)
    changed["configuration"] = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    schema = json.loads(changed["schemaString"])
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"}
    changed["schemaString"] = json.dumps(schema)
    with_action(table, 1, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}, "metaData": changed})
    refused(table, tmp_path / "r", "column mapping.*without it")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("geometry", "column of a type that cannot be read.*geometry.*drop or cast the column"),
        ("decimal(50,2)", "cannot be read.*precision.*drop or cast the column"),
        ("variant", "feature 'variantType'.*DROP FEATURE"),
        ({"type": "array", "elementType": "variant", "containsNull": True}, "feature 'variantType'.*DROP FEATURE"),
    ],
)
def test_types_that_cannot_be_held(tmp_path, table, kind, told):
    changed = metadata(table)
    schema = json.loads(changed["schemaString"])
    schema["fields"].append({"name": "odd", "type": kind, "nullable": True, "metadata": {}})
    changed["schemaString"] = json.dumps(schema)
    features = ["variantType"] if "variant" in str(kind) else []
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    with_action(table, 1, {"protocol": protocol, "metaData": changed})
    refused(table, tmp_path / "r", told)


def test_a_file_and_a_row_that_no_page_holds(tmp_path, table):
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", tmp_path / "r", "there is no Delta table at .*file")
    write_deltalake(table, pa.table({"id": [9], "name": ["x" * 9000], "price": [0.0]}), mode="append")
    refused(table, tmp_path / "r", "larger page_size", RelationBuildError)


def test_files_of_another_format_in_iceberg(tmp_path, monkeypatch):
    from pyiceberg.manifest import DataFile, FileFormat

    source = IcebergHistory(tmp_path, 0)
    source.append()
    monkeypatch.setattr(DataFile, "file_format", property(lambda _: FileFormat.AVRO))
    refused("shop.products", tmp_path / "r", "is AVRO.*rewrite_data_files", catalog="test", options=source.options)


def halved(file: Path) -> str:
    """Damage a file; return its name."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file.name


def test_a_damaged_file_of_delta(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    write_deltalake(table, pa.table({"id": [9], "name": ["x"], "price": [0.0]}), mode="append")
    name = halved(max(table.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns))
    refused(table, tmp_path / "r", f"the file {name} of {table} cannot be decoded .*footer.*nothing was committed")
    assert manifests.versions(tmp_path / "r") == [1]


@pytest.mark.parametrize("pattern", ["*.parquet", "snap-*.avro", "*-m0.avro"])
def test_a_damaged_file_of_iceberg(tmp_path, pattern):
    source = IcebergHistory(tmp_path, 0)
    (file,) = (tmp_path / "warehouse").rglob(pattern)
    told = f"the file .*{halved(file)} of shop.products cannot be decoded .*restore the file"
    refused("shop.products", tmp_path / "r", told, catalog="test", options=source.options)


def test_a_manifest_of_iceberg_that_is_missing(tmp_path):
    """The snapshot may have expired after its metadata were read. The next attempt says so."""
    source = IcebergHistory(tmp_path, 0)
    next((tmp_path / "warehouse").rglob("snap-*.avro")).unlink()
    told = "cannot read the file .*snap-.* of shop.products.*try again"
    refused(
        "shop.products", tmp_path / "r", told, SourceUnavailableError, catalog="test", options=source.options
    )  # fmt: skip


def test_files_of_deleted_rows_in_iceberg(tmp_path, monkeypatch):
    from pyiceberg.manifest import ManifestContent, ManifestFile

    source = IcebergHistory(tmp_path, 0)
    monkeypatch.setattr(ManifestFile, "content", property(lambda _: ManifestContent.DELETES))
    refused(
        "shop.products", tmp_path / "r", "merge-on-read.*copy-on-write", catalog="test", options=source.options
    )  # fmt: skip


def test_relation_that_follows_nothing(tmp_path, table):
    Relation.build(pa.table({"id": [1]}), tmp_path / "r", "id").close()
    refused(table, tmp_path / "r", "follows no table; give another path, or rebuild")
    assert semistream.follow(table, tmp_path / "r", rebuild=True) == 2


def test_other_table_or_key(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    write_deltalake(tmp_path / "other", pa.table({"id": [1], "name": ["a"], "price": [1.0]}))
    refused(tmp_path / "other", tmp_path / "r", "follows .*table.*id .*; give another path, or rebuild")
    refused(table, tmp_path / "r", "has the key id, not name", key="name")


def test_relation_that_was_changed_otherwise(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    semistream.delete(tmp_path / "r", pa.array([1]))
    semistream.compact(tmp_path / "r")
    refused(table, tmp_path / "r", "equalled the table in version 1.*changed by compact up to version 3")
    assert semistream.follow(table, tmp_path / "r", rebuild=True) == 4


def test_vacuumed_files(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    DeltaTable(table).delete("id = 1")
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    refused(table, tmp_path / "r", "VACUUM removed it.*rebuild", ExpiredCommitError)
    assert semistream.follow(table, tmp_path / "r", rebuild=True) == 2


def test_log_that_was_cleaned_up(tmp_path, table):
    semistream.follow(table, tmp_path / "r", key="id")
    for key in (7, 8):
        write_deltalake(table, pa.table({"id": [key], "name": ["x"], "price": [0.0]}), mode="append")
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    refused(table, tmp_path / "r", "no longer has version 1.*rebuild.*logRetentionDuration", ExpiredCommitError)


def test_table_that_was_replaced(tmp_path, table):
    for key in (7, 8):
        write_deltalake(table, pa.table({"id": [key], "name": ["x"], "price": [0.0]}), mode="append")
    semistream.follow(table, tmp_path / "r", key="id")
    kept = (table / "_delta_log" / f"{0:020d}.json").read_text()
    shutil.rmtree(table / "_delta_log")
    (table / "_delta_log").mkdir()
    (table / "_delta_log" / f"{0:020d}.json").write_text(kept)
    refused(table, tmp_path / "r", "the newest version of .* is 0, and the relation has version 2")


def test_expired_snapshots(tmp_path):
    source, path = IcebergHistory(tmp_path, 0), tmp_path / "relation"
    followed(source.follower(path, key="id"))
    first = source.table.current_snapshot().snapshot_id
    source.append()
    second = source.table.current_snapshot().snapshot_id
    source.append()
    source.table.maintenance.expire_snapshots().by_id(first).commit()
    source.table.maintenance.expire_snapshots().by_id(second).commit()
    with pytest.raises(ExpiredCommitError, match=r"expired.*; rebuild the relation from the newest snapshot"):
        followed(source.follower(path))
    assert manifests.versions(path) == [1]
    assert [one.operation for one in followed(source.follower(path, rebuild=True))] == ["build"]


def test_rolled_back_table(tmp_path):
    source, path = IcebergHistory(tmp_path, 0), tmp_path / "relation"
    first = source.table.current_snapshot().snapshot_id
    source.append()
    followed(source.follower(path, key="id"))
    source.table.manage_snapshots().rollback_to_snapshot(first).commit()
    with pytest.raises(ExpiredCommitError, match="was rolled back or replaced; rebuild"):
        followed(source.follower(path))
