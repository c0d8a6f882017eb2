"""Vacuum beside writers and readers: nothing that anybody still needs goes, and nothing that nobody needs stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import CommitConflictError, NotARelationError, RelationBuildError, StorageError
from semistream.relation.damage.verify import find_faults
from semistream.relation.open_relation import OpenRelation
from semistream.relation.relation import Relation
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.updates import compact, upsert
from semistream.relation.versions import holds, leases, pins, retrying
from semistream.relation.versions.leases import WRITERS, Writer
from semistream.relation.versions.retrying import until_first


def rows(value: int, keys: int = 200) -> pa.Table:
    return pa.table({"id": range(keys), "v": [value] * keys})


def values(path: Path, version: int | None = None) -> dict[int, int]:
    with Relation.open(path, version=version) as relation:
        return dict(zip(*(column.to_pylist() for column in relation.to_table().columns), strict=True))


def age(path: Path, seconds: float = 7200) -> None:
    for file in path.iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Relation.build(rows(0), tmp_path / "r", "id", page_size=512).close()
    return tmp_path / "r"


@pytest.mark.parametrize("older_than", [3600, -1])
def test_files_of_a_build_that_goes_on_for_hours_stay(path, older_than):
    def slow():
        yield from rows(1, 50).to_batches()
        age(path)
        semistream.vacuum(path, older_than=older_than)
        yield from rows(2, 90).slice(50).to_batches()

    Relation.build(slow(), path, "id", overwrite=True).close()
    assert values(path) == {key: 1 if key < 50 else 2 for key in range(90)}


@pytest.mark.parametrize("older_than", [3600, -1])
def test_the_number_that_a_slow_writer_wants_is_not_freed(path, monkeypatch, older_than):
    """It would commit below the newest version: an update lost, and reported as committed."""
    prepare = OpenRelation.prepare

    def long_prepare(self, *changes, **options):
        patch = prepare(self, *changes, **options)
        monkeypatch.setattr(OpenRelation, "prepare", prepare)
        for key in (1, 2):
            upsert(path, pa.table({"id": [key], "v": [111 * key]}))
        age(path)
        semistream.vacuum(path, older_than=older_than)
        return patch

    monkeypatch.setattr(OpenRelation, "prepare", long_prepare)
    assert upsert(path, pa.table({"id": [3], "v": [333]})) == 4
    assert {key: values(path)[key] for key in (1, 2, 3)} == {1: 111, 2: 222, 3: 333}


def test_a_manifest_is_never_linked_below_the_newest(path):
    first = manifests.load(path)
    compact(path)
    compact(path)
    (path / manifests.name_of(2)).unlink()
    with pytest.raises(CommitConflictError, match=r"version 2 .* another writer"):
        manifests.commit(path, type(first)(**{**vars(first), "version": 2}))


def test_a_version_that_is_open_stays(path):
    with Relation.open(path) as reader:
        compact(path)
        assert semistream.vacuum(path, older_than=-1) == []
        assert values(path, 1) == values(path, 2)
        with Relation.open(path, version=1, shards=[0]):
            reader.close()
            assert semistream.vacuum(path, older_than=-1) == []
    assert manifests.name_of(1) in semistream.vacuum(path, older_than=-1)
    assert manifests.versions(path) == [2]


def test_a_version_that_was_the_newest_a_moment_ago_stays(path):
    age(path)
    seen = manifests.load(path)
    compact(path)
    assert semistream.vacuum(path) == []
    Relation.open(path, version=seen.version).close()


def test_opening_the_newest_while_versions_come_and_go(path):
    failures: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            while not ended.is_set():
                assert len(values(path)) == 200
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(25):
        upsert(path, pa.table({"id": [1], "v": [number]}))
        semistream.vacuum(path, older_than=-1)
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_a_task_pins_is_there_whatever_vacuum_does(path):
    failures: list[BaseException] = []
    ended = threading.Event()

    def write() -> None:
        try:
            number = 0
            while not ended.is_set():
                number += 1
                upsert(path, pa.table({"id": [1], "v": [number]}))
                semistream.vacuum(path, older_than=-1)
        except BaseException as failure:
            failures.append(failure)

    writer = threading.Thread(target=write)
    writer.start()
    for batch in range(40):
        version = pins.pin_version(path, f"q-{batch}", batch).version
        Relation.open(path, version=version).close()
    ended.set()
    writer.join()
    assert not failures
    for batch in range(40):
        Relation.open(path, version=pins.version_for(path, f"q-{batch}", batch)).close()


def test_a_version_that_vacuum_looks_at_and_leaves_can_be_opened(path):
    """It takes the version to itself before it asks whether a pin names it."""
    looked_at = holds.lock(path, 1)
    assert looked_at is not None
    threading.Timer(0.2, looked_at.close).start()
    Relation.open(path, version=1).close()


KILLED = """
import sys, time, pyarrow as pa
from semistream import Relation
def slow():
    for part in range(50):
        yield pa.record_batch({"id": list(range(part * 400, part * 400 + 400)), "v": [9] * 400})
    print("written", flush=True)
    time.sleep(60)
    yield pa.record_batch({"id": [1], "v": [9]})
Relation.build(slow(), sys.argv[1], "id", overwrite=True, memory=50_000, shards=2)
"""


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.slow
def test_what_a_killed_build_left_goes_at_once(path, tmp_path, first):
    """Pages, spilled runs and the lease, although all of it was written just now."""
    target = tmp_path / "new" if first else path
    before = set() if first else {file.name for file in path.iterdir()}
    build = subprocess.Popen([sys.executable, "-c", KILLED, target], stdout=subprocess.PIPE)
    assert build.stdout is not None
    assert build.stdout.readline() == b"written\n"
    assert semistream.vacuum(target, older_than=-1) == [], "it is at work"
    left = {file.name for file in target.iterdir()} - before
    assert any(name.startswith(".sorting-") for name in left)
    build.send_signal(signal.SIGKILL)
    build.wait()
    assert set(semistream.vacuum(target)) == left - {WRITERS}
    assert {file.name for file in target.iterdir()} == before | {WRITERS}
    assert os.listdir(target / WRITERS) == []
    with Relation.build(rows(3), target, "id", overwrite=True) as relation:
        assert relation.row_count == 200


def test_a_writer_on_another_machine_is_believed_for_a_day(path, monkeypatch):
    """Locks may not reach from machine to machine: only silence tells, and who wakes up again does not commit."""
    elsewhere = {"host": "other", "machine": "m2", "boot": "b2"}
    following = type(first := manifests.load(path))(**{**vars(first), "version": 2})
    with monkeypatch.context() as patch:
        patch.setattr(leases, "this_machine", lambda: elsewhere)
        patch.setattr(leases, "_try_lock", lambda _: None)
        writer = Writer(path).__enter__()
    orphan = path / f"shard-0000-{writer.run}-7.pages"
    orphan.write_bytes(b"by a task")
    monkeypatch.setattr(leases, "_try_lock", lambda _: None)
    lease = path / WRITERS / writer.run
    os.utime(lease, (time.time() - 80_000,) * 2)
    assert semistream.vacuum(path, older_than=-1) == []
    os.utime(lease, (time.time() - 90_000,) * 2)
    assert semistream.vacuum(path, older_than=1e9) == [orphan.name]
    with pytest.raises(CommitConflictError, match="considered dead"):
        writer.commit(following)
    writer.__exit__(None, None, None)
    assert manifests.versions(path) == [1]
    assert os.listdir(path / WRITERS) == []


def test_an_error_after_the_commit_leaves_the_version_whole(path, monkeypatch):
    """The manifest is linked, flushing it fails: its files were removed as those of a failure."""

    class FailingDisk(files.Disk):
        linked = False

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            self.linked = True

        def sync_directory(self, directory: Path) -> None:
            if self.linked:
                raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "disk", FailingDisk())
    with pytest.raises(StorageError, match=r"version 2 of .* is committed, but may not survive"):
        upsert(path, pa.table({"id": [1], "v": [5]}))
    monkeypatch.undo()
    assert values(path)[1] == 5


def test_a_build_that_fails_leaves_alone_what_others_build_there(tmp_path):
    def interrupted():
        yield from rows(1).to_batches()
        Relation.build(rows(2), tmp_path / "r", "id").close()
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="source broke"):
        Relation.build(interrupted(), tmp_path / "r", "id")
    assert values(tmp_path / "r")[7] == 2


def test_two_builds_at_once(path, tmp_path):
    """An overwrite replaces whatever is the newest when it ends; a first build is not the first any more."""

    def meanwhile(target: Path, **options):
        yield from rows(1).to_batches()
        Relation.build(rows(2), target, "id", **options).close()

    with Relation.build(meanwhile(path, overwrite=True), path, "id", overwrite=True) as relation:
        assert relation.version == 3
    assert (values(path)[7], values(path, 2)[7]) == (1, 2)
    with pytest.raises(RelationBuildError, match="already holds a relation"):
        Relation.build(meanwhile(tmp_path / "new"), tmp_path / "new", "id")
    assert values(tmp_path / "new")[7] == 2
    assert len(list((tmp_path / "new").glob("shard-*"))) == 2, "what the loser wrote is gone"


def test_a_damaged_manifest_stops_vacuum(path):
    """What it names is not known, so nothing may go."""
    compact(path)
    compact(path)
    (path / manifests.name_of(2)).write_text("{")
    stray = path / "shard-0000-0123456789abcdef.pages"
    stray.write_bytes(b"left")
    with pytest.raises(NotARelationError, match="nothing was removed"):
        semistream.vacuum(path, keep=[2], older_than=-1)
    assert manifests.versions(path) == [1, 2, 3]
    assert stray.exists()


def test_a_writer_that_is_never_first_gives_up_in_time(path, monkeypatch):
    tries, now = 0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(retrying, "time", clock)

    def late() -> None:
        nonlocal tries
        tries += 1
        raise CommitConflictError("another was first")

    with pytest.raises(CommitConflictError, match=r"other writers changed .* \d+ times in .* run fewer writers"):
        until_first(path, late, patience=0.5)
    assert 6 <= tries <= 8, "pauses are 10 ms, 20 ms, ..., or down to half of that"
    assert 0.5 < now < 1.5


def test_a_writer_that_fails_removes_what_is_its_own(path):
    def interrupted():
        with Writer(path) as writer:
            (path / f"shard-0000-{writer.run}.pages").write_bytes(b"x")
            (path / f".sorting-{writer.run}-0").mkdir()
            (path / "shard-0000-fedcba9876543210.pages").write_bytes(b"another writer's")
            raise RuntimeError(writer.run)

    with pytest.raises(RuntimeError) as failure:
        interrupted()
    assert not list(path.glob(f"*{failure.value}*"))
    assert (path / "shard-0000-fedcba9876543210.pages").exists()


def test_a_version_that_is_removed_during_a_check_is_no_fault(path, monkeypatch):
    read = manifests.load

    def load(place, version):
        monkeypatch.setattr(manifests, "load", read)
        semistream.vacuum(path, older_than=-1)
        return read(place, version)

    upsert(path, rows(2, 3))
    with Relation.open(path) as relation:
        monkeypatch.setattr(manifests, "load", load)
        assert list(find_faults(relation)) == []
    assert manifests.versions(path) == [2]


def test_links_in_a_relation_are_not_followed(path, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "photo").write_text("x")
    (path / ".sorting-0123456789abcdef").symlink_to(precious)
    semistream.vacuum(path, older_than=-1)
    assert not (path / ".sorting-0123456789abcdef").is_symlink()
    assert (precious / "photo").exists()
