"""Iceberg snapshots that only other engines write: compactions, and partitions by any transform."""

from __future__ import annotations

from pathlib import Path

import pytest

from followed_histories import OPTIONS, IcebergHistory, check_versions, followed
from iceberg_writing import compact_files, files_of
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
