"""A follower that dies before any single change of the disk: no commit is half there, lost or applied twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import semistream
from faulty_disks import CountingDisk, Crash, Died, FullDisk, MortalDisk, installed
from followed_histories import Rows, rows_of
from iceberg_writing import compact_files, files_of, swap_files, written
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
OPTIONS: dict[str, Any] = {"page_size": 512, "shards": 2, "memory": 4000}
CASES = [
    ("delta", 0, False), ("delta", 1, False), ("delta", 2, False), ("delta", 1, True),
    ("iceberg", 0, False), ("iceberg", 1, True), ("iceberg", 3, True),
]  # fmt: skip
"""Kind of the table, how many commits the relation has before, and whether it has a secondary index."""


def rows(keys: range, text: str) -> pa.Table:
    return pa.table({"id": list(keys), "name": [f"{text} {key}" * 3 for key in keys]})


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(applying, "pages_in_memory", lambda *_: 8)  # several parts per commit
    with installed(CountingDisk()):
        yield


class Source(NamedTuple):
    """A table: rows, a merge, (Iceberg) a compaction, and rows with another column, which R gets too."""

    table: str
    given: dict[str, Any]
    """The catalog of an Iceberg table."""
    states: dict[str, Rows]
    """The rows at each commit, oldest first."""

    @property
    def commits(self) -> list[str]:
        return list(self.states)

    def follower(self, path: Path) -> Follower:
        return Follower(self.table, path, "id", **self.given, **OPTIONS)

    def follow(self, path: Path) -> None:
        catch_up(self.follower(path))


MERGED = rows(range(50, 66), "second")
MORE = rows(range(100, 103), "third").append_column("more", pa.array([1, 2, 3]))


def delta_source(root: Path) -> Source:
    path = root / "table"
    write_deltalake(path, rows(range(60), "first"))
    merge = DeltaTable(path).merge(MERGED, predicate="s.id = t.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(path, MORE, mode="append", schema_mode="merge")
    states = {}
    for version in range(3):
        at = DeltaTable(path, version=version)
        states[str(version)] = rows_of(pa.table(at.scan()).cast(pa.schema(at.schema())))
    return Source(str(path), {}, states)


def iceberg_source(root: Path) -> Source:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.types import LongType

    (root / "warehouse").mkdir()
    options = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
    catalog = load_catalog("test", **options)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.products", schema=MERGED.schema)
    table.append(rows(range(30), "first"))
    table.append(rows(range(30, 60), "first"))
    first = table.current_snapshot()
    assert first is not None
    merged = pa.concat_tables([rows(range(30, 50), "first"), MERGED])
    swap_files(table, files_of(table)[1:], written(table, merged))
    compact_files(table, files_of(table))
    with table.update_schema() as update:
        update.add_column("more", LongType())
    table.append(MORE)
    numbers = [one.snapshot_id for one in table.snapshots()]
    states = {
        str(one): rows_of(table.scan(snapshot_id=one).to_arrow()) for one in numbers[numbers.index(first.snapshot_id) :]
    }
    return Source("shop.products", {"catalog": "test", "options": options}, states)


@pytest.fixture(scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    make = {"delta": delta_source, "iceberg": iceberg_source}[request.param]
    return make(tmp_path_factory.mktemp(request.param))


def started(source: Source, path: Path, commits: int, indexed: bool) -> Path:
    """Return a relation that has this many commits."""
    path.parent.mkdir()
    follower = source.follower(path)
    newest = follower.source.newest
    first = source.commits[0]
    follower.source.newest = lambda: newest()._replace(name=first)  # type: ignore[method-assign]
    for number in range(commits):
        assert follower.step() is not None
        if indexed and not number:
            with Relation.open(path) as relation:
                relation.add_index("name")
            semistream.vacuum(path, keep=manifests.versions(path)[-1:], older_than=-1)
    return path


def again(made: Path, root: Path) -> Path:
    """Return a fresh copy of a relation."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(made.parent, root)
    return root / made.name


def check_versions(source: Source, path: Path, at_least: int, indexed: bool) -> None:
    """Each version is whole, with its index, and names a commit, in order; none is there twice."""
    commits = []
    for number in manifests.versions(path):
        with Relation.open(path, version=number) as relation:
            found = followed_commit(relation.stored.properties)
            assert found is not None
            assert rows_of(relation.to_table()) == source.states[found.commit], f"version {number}"
            assert relation.secondary_indexes == ([("name",)] if indexed else [])
            if indexed:
                with relation.by("name") as index:
                    assert rows_of(index.to_table()) == source.states[found.commit], f"index of version {number}"
            commits.append(source.commits.index(found.commit))
    assert commits == sorted(set(commits))
    assert len(commits) >= at_least


def check_after(source: Source, path: Path, commits: int, indexed: bool) -> None:
    check_versions(source, path, commits, indexed)
    source.follow(path)
    check_versions(source, path, 1, indexed)
    found = followed_commit(manifests.load(path).properties)
    assert found is not None
    assert found.commit == source.commits[-1]
    semistream.vacuum(path, keep=manifests.versions(path), older_than=-1)
    named = {name for number in manifests.versions(path) for name in manifests.load(path, number).files}
    wanted = named | {manifests.name_of(number) for number in manifests.versions(path)} | {WRITERS}
    assert set(os.listdir(path)) == wanted, "vacuum left something"


def changes(source: Source, path: Path) -> int:
    disk = CountingDisk()
    with installed(disk):
        source.follow(path)
    return disk.count


@pytest.mark.sampled
@pytest.mark.parametrize(("source", "commits", "indexed"), CASES, indirect=["source"])
def test_a_crash_before_every_change(tmp_path, source, commits, indexed):
    root = tmp_path / "work"
    made = started(source, tmp_path / "made" / "r", commits, indexed)
    count = changes(source, again(made, root))
    assert count > 20
    for stop in range(count + 1):
        kind = KINDS[stop % len(KINDS)]
        path = again(made, root)
        disk = MortalDisk(root, stop)
        with installed(disk):
            try:
                source.follow(path)
            except Died:
                assert stop < count
        disk.crash(kind, seed=stop)
        try:
            check_after(source, path, commits, indexed)
        except BaseException as error:
            raise AssertionError(f"{kind} before change {stop} of {count}: {sorted(os.listdir(root))}") from error


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("source", "commits", "indexed"), [one for one in CASES if one[1] < 2], indirect=["source"]
)  # fmt: skip
def test_no_room_for_any_change(tmp_path, source, commits, indexed):
    root = tmp_path / "work"
    made = started(source, tmp_path / "made" / "r", commits, indexed)
    count = changes(source, again(made, root))
    refusals = 0
    for stop in range(0, count, 3):
        path = again(made, root)
        told = ""
        with installed(FullDisk(stop, ever_after=True)):
            try:
                source.follow(path)
            except StorageError as error:
                told = str(error)
        assert not told or "no room left" in told
        refusals += bool(told)
        check_after(source, path, commits, indexed)
    assert refusals > 4


@pytest.mark.long
@pytest.mark.parametrize(("source", "indexed"), [("delta", False), ("iceberg", True)], indirect=["source"])
def test_truly_killed(tmp_path, source, indexed):
    root = tmp_path / "work"
    made = started(source, tmp_path / "made" / "r", 1, indexed)
    count = changes(source, again(made, root))
    script = (
        "import json\n"
        "import sys\n"
        "from pathlib import Path\n"
        "from faulty_disks import KillingDisk, installed\n"
        "from semistream.relation.followed import applying\n"
        "from semistream.relation.followed.follow import catch_up\n"
        "from semistream.relation.followed.follower import Follower\n"
        "applying.pages_in_memory = lambda *_: 8\n"
        "with installed(KillingDisk(int(sys.argv[3]))):\n"
        "    catch_up(Follower(sys.argv[1], Path(sys.argv[2]), 'id', **json.loads(sys.argv[4])))\n"
    )
    options = json.dumps({**source.given, **OPTIONS})
    for stop in range(3, count, count // 4):
        path = again(made, root)
        done = subprocess.run(
            [sys.executable, "-c", script, source.table, str(path), str(stop), options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == -9, done.stderr.decode()
        check_after(source, path, 1, indexed)
