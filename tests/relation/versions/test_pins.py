"""Pins without Spark: beside vacuum and each other, damaged, and of a relation that may not be written to."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import PinError, StorageError
from semistream.relation.relation import Relation
from semistream.relation.storage import files
from semistream.relation.versions import pins


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Relation.build(pa.table({"id": [1], "v": [1]}), tmp_path / "r", "id").close()
    return tmp_path / "r"


def file_of(path: Path, batch: int) -> Path:
    return path / pins.PINS / "q-1" / f"{batch:012d}"


@pytest.mark.parametrize("content", [b"\xb1", b"x1", b"-7", b"9" * 40])
def test_a_damaged_pin_is_told_and_nothing_goes(path, content):
    pins.version_for(path, "q-1", 1)
    semistream.compact(path)
    file_of(path, 1).write_bytes(content)
    with pytest.raises(PinError, match=r"000000000001 is damaged: .* remove the file"):
        pins.version_for(path, "q-1", 1)
    with pytest.raises(PinError, match="is damaged"):
        semistream.vacuum(path, older_than=-1)
    assert [version.number for version in semistream.history(path)] == [1, 2]


def test_a_query_that_was_put_back_has_pins_of_its_old_batches(path):
    """Also when it has had more batches since than pins are kept of."""
    for batch in range(100, 100 + 2 * pins.KEPT_PINS):
        pins.version_for(path, "q-1", batch)
    assert pins.version_for(path, "q-1", 90) == 1
    semistream.upsert(path, pa.table({"id": [1], "v": [2]}))
    assert pins.version_for(path, "q-1", 90) == 1
    assert pins.version_for(path, "q-1", 200) == 2


def test_pinning_while_others_look_at_pins(path):
    """A temporary file was taken for an empty pin, and removed before it could be linked."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while not ended.is_set():
                pins.pinned_versions(path)
                pins.forget_idle(path, idle_days=30, now=time.time(), older_than=3600)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for batch in range(150):
            assert pins.pin_version(path, "q-1", batch).version == 1
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failures


def test_a_directory_where_the_first_pin_is_about_to_come_stays(path: Path) -> None:
    """It was taken for one of a query that had been idle for ever, and removed with the pin that came meanwhile."""
    coming = path / pins.PINS / "q-1"
    coming.mkdir(parents=True)
    pins.forget_idle(path, idle_days=30, now=time.time(), older_than=3600)
    assert coming.is_dir()
    pins.forget_idle(path, idle_days=30, now=time.time() + 31 * 86_400, older_than=3600)
    assert not coming.exists()


def test_a_pin_that_comes_while_its_query_is_forgotten_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins.version_for(path, "q-1", 7)

    class WokenUp(files.Disk):
        def rmdir(self, directory: Path) -> None:
            monkeypatch.setattr(files, "disk", files.Disk())
            pins.version_for(path, "q-1", 8)
            super().rmdir(directory)

    monkeypatch.setattr(files, "disk", WokenUp())
    pins.forget_idle(path, idle_days=30, now=time.time() + 31 * 86_400, older_than=3600)
    assert [pin.name for pin in file_of(path, 8).parent.iterdir()] == [file_of(path, 8).name]
    assert pins.pinned_versions(path) == {1}


def test_tasks_that_find_an_empty_pin_agree_on_a_new_one(path):
    """Each removed what was empty when it looked, which by then was another's new pin."""
    pins.version_for(path, "q-1", 7)
    seen: list[int] = []
    file_of(path, 7).write_bytes(b"")

    def task() -> None:
        seen.append(pins.pin_version(path, "q-1", 7).version)
        semistream.compact(path)

    removing, remove_empty = threading.Barrier(2), pins._remove_empty

    def both_have_looked(pin: Path) -> None:
        removing.wait(120)
        remove_empty(pin)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pins, "_remove_empty", both_have_looked)
        threads = [threading.Thread(target=task) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen[0] == seen[1] == pins.version_for(path, "q-1", 7)


def test_what_a_killed_task_left_goes(path):
    pins.version_for(path, "q-1", 7)
    left = path / pins.PINS / "q-1" / f".{'0' * 32}"
    left.write_bytes(b"1")
    semistream.vacuum(path)
    assert left.exists(), "its task may be about to link it"
    os.utime(left, (time.time() - 7200,) * 2)
    semistream.vacuum(path)
    assert not left.exists()
    assert pins.pinned_versions(path) == {1}


def test_a_relation_that_may_only_be_read_is_pinned_elsewhere(path, tmp_path, monkeypatch):
    class ReadOnly(files.Disk):
        def mkdir(self, directory: Path) -> None:
            if directory.is_relative_to(path):
                raise OSError(errno.EROFS, "Read-only file system")
            super().mkdir(directory)

        def open(self, file: Path, flags: int) -> int:
            if file.is_relative_to(path):
                raise OSError(errno.EROFS, "Read-only file system")
            return super().open(file, flags)

    elsewhere = tmp_path / "checkpoint" / "pins"
    with monkeypatch.context() as patch:
        patch.setattr(files, "disk", ReadOnly())
        with pytest.raises(StorageError, match=r"\.pins.*read-only"):
            pins.version_for(path, "q-1", 7)
        assert pins.version_for(path, "q-1", 7, elsewhere=elsewhere) == 1
        Relation.open(path).close()
    semistream.compact(path)
    assert pins.version_for(path, "q-1", 7, elsewhere=elsewhere) == 1, "also once it may be written to"
    assert pins.version_for(path, "q-1", 8, elsewhere=elsewhere) == 2
    assert file_of(path, 8).exists()


def test_a_busy_query_does_not_push_out_the_pin_of_another(path: Path) -> None:
    """Tasks that know no query share a name, and go by the time of their batch."""
    hour = 3_600_000
    shared, first = f"{pins.SHARED}join", 1_794_767_337_472
    assert pins.version_for(path, shared, first) == 1
    semistream.compact(path)
    for batch in range(3 * pins.KEPT_PINS):
        pins.version_for(path, shared, first + 64 * (batch + 1))
    assert pins.version_for(path, shared, first) == 1
    pins.version_for(path, shared, first + 25 * hour)
    assert pins.pinned_versions(path) == {2}, "a day later nobody needs them"
