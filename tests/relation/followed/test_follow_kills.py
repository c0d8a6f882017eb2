"""A follower that dies before any single change of the disk: no commit is half there, lost or applied twice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from faulty_disks import CountingDisk, Crash, Died, FullDisk, MortalDisk, installed
from followed_histories import rows_of
from semistream.core.errors import StorageError
from semistream.relation.followed import applying
from semistream.relation.followed.follow import catch_up
from semistream.relation.followed.follower import Follower
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import followed_commit
from semistream.relation.versions.leases import WRITERS

pytestmark = pytest.mark.slow

KINDS: list[Crash] = ["killed", "power lost", "reordered", "torn"]
OPTIONS = {"page_size": 512, "shards": 2, "memory": 4000}


def rows(keys: range, text: str) -> pa.Table:
    return pa.table({"id": list(keys), "name": [f"{text} {key}" * 3 for key in keys]})


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(applying, "pages_in_memory", lambda *_: 8)  # several parts per commit
    with installed(CountingDisk()):
        yield


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three commits: rows, a merge, and one with another column, which R gets too."""
    path = tmp_path_factory.mktemp("source") / "table"
    write_deltalake(path, rows(range(60), "first"))
    merge = DeltaTable(path).merge(
        rows(range(50, 66), "second"), predicate="s.id = t.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    more = rows(range(100, 103), "third").append_column("more", pa.array([1, 2, 3]))
    write_deltalake(path, more, mode="append", schema_mode="merge")
    return str(path)


@pytest.fixture(scope="module")
def states(table: str) -> dict[str, list[tuple]]:
    """The rows at each commit."""
    found = {}
    for version in range(3):
        at = DeltaTable(table, version=version)
        found[str(version)] = rows_of(pa.table(at.scan()).cast(pa.schema(at.schema())))
    return found


def follow(table: str, path: Path) -> None:
    catch_up(Follower(table, path, "id", **OPTIONS))


def started(table: str, root: Path, commits: int) -> Path:
    """Return a relation that has this many commits."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    follower = Follower(table, root / "r", "id", **OPTIONS)
    newest = follower.source.newest
    if commits:
        follower.source.newest = lambda: newest()._replace(name="0")  # type: ignore[method-assign]
    for _ in range(commits):
        assert follower.step() is not None
    return root / "r"


def check_versions(path: Path, states: dict[str, list[tuple]], at_least: int) -> None:
    """Each version is whole and names a commit, in order; none is there twice."""
    commits = []
    for number in manifests.versions(path):
        with Relation.open(path, version=number) as relation:
            found = followed_commit(relation.stored.properties)
            assert found is not None
            assert rows_of(relation.to_table()) == states[found.commit], f"version {number}"
            commits.append(found.commit)
    assert commits == sorted(set(commits))
    assert len(commits) >= at_least


def check_after(table: str, path: Path, states: dict[str, list[tuple]], commits: int) -> None:
    check_versions(path, states, commits)
    follow(table, path)
    check_versions(path, states, 1)
    newest = manifests.load(path)
    found = followed_commit(newest.properties)
    assert found is not None
    assert found.commit == "2"
    semistream.vacuum(path, keep=manifests.versions(path), older_than=-1)
    named = {
        name for number in manifests.versions(path) for shard in manifests.load(path, number).shards
        for name in shard.files
    }  # fmt: skip
    wanted = named | {manifests.name_of(number) for number in manifests.versions(path)} | {WRITERS}
    assert set(os.listdir(path)) == wanted, "vacuum left something"


def changes(table: str, root: Path, commits: int) -> int:
    path = started(table, root, commits)
    disk = CountingDisk()
    with installed(disk):
        follow(table, path)
    return disk.count


@pytest.mark.sampled
@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_crash_before_every_change(tmp_path, table, states, commits):
    root = tmp_path / "work"
    count = changes(table, root, commits)
    assert count > 20
    for stop in range(count + 1):
        kind = KINDS[stop % len(KINDS)]
        path = started(table, root, commits)
        disk = MortalDisk(root, stop)
        with installed(disk):
            try:
                follow(table, path)
            except Died:
                assert stop < count
        disk.crash(kind, seed=stop)
        try:
            check_after(table, path, states, commits)
        except BaseException as error:
            raise AssertionError(f"{kind} before change {stop} of {count}: {sorted(os.listdir(root))}") from error


@pytest.mark.sampled
@pytest.mark.parametrize("commits", [0, 1])
def test_no_room_for_any_change(tmp_path, table, states, commits):
    root = tmp_path / "work"
    count = changes(table, root, commits)
    refusals = 0
    for stop in range(0, count, 3):
        path = started(table, root, commits)
        told = ""
        with installed(FullDisk(stop, ever_after=True)):
            try:
                follow(table, path)
            except StorageError as error:
                told = str(error)
        assert not told or "no room left" in told
        refusals += bool(told)
        check_after(table, path, states, commits)
    assert refusals > 4


@pytest.mark.long
def test_truly_killed(tmp_path, table, states):
    root = tmp_path / "work"
    count = changes(table, root, 1)
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from faulty_disks import KillingDisk, installed\n"
        "from semistream.relation.followed import applying\n"
        "from semistream.relation.followed.follow import catch_up\n"
        "from semistream.relation.followed.follower import Follower\n"
        "applying.pages_in_memory = lambda *_: 8\n"
        f"with installed(KillingDisk(int(sys.argv[3]))):\n"
        f"    catch_up(Follower(sys.argv[1], Path(sys.argv[2]), 'id', **{OPTIONS!r}))\n"
    )
    for stop in range(3, count, count // 4):
        path = started(table, root, 1)
        done = subprocess.run(
            [sys.executable, "-c", script, table, str(path), str(stop)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == -9, done.stderr.decode()
        check_after(table, path, states, 1)
