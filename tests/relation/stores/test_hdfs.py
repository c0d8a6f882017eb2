"""A relation in a real HDFS."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import NotARelationError, StorageError
from semistream.relation import updates
from semistream.relation.relation import Relation
from semistream.relation.stores import object_store
from semistream.relation.stores.hdfs_store import HdfsStore
from semistream.relation.stores.store_path import StorePath, place_of
from semistream.relation.versions.pins import version_for

ROWS = 100_000


def test_everything_works_with_a_real_file_system(hdfs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMISTREAM_LOCAL_DIR", str(tmp_path / "tier"))
    path = f"{hdfs}/ware house/products"
    table = pa.table({"id": np.arange(ROWS), "name": [f"{number:090d}" for number in range(ROWS)]})
    with Relation.build(table, path, key="id", shards=2) as relation:
        assert relation.nbytes > 8 << 20
        assert relation.to_table().sort_by("id").equals(table)
    with pytest.raises(NotARelationError, match="no relation at"):
        Relation.open(f"{hdfs}/nothing")

    def write(mine: int) -> None:
        for turn in range(3):
            updates.upsert(path, pa.table({"id": [ROWS + 10 * mine + turn], "name": [f"{mine} {turn}"]}))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.number for one in updates.history(path)] == [1, 2, 3, 4, 5, 6, 7]
    with Relation.open(path, local="2MB") as relation:
        assert relation.to_table().num_rows == ROWS + 6
        assert relation.counters.requests > 0
    place = place_of(path)
    assert isinstance(place, StorePath)
    assert version_for(place, "query", 1) == 7
    assert updates.compact(path) == 8
    assert version_for(place, "query", 1) == 7
    assert updates.vacuum(path) == [], "all are younger than an hour"
    assert not place.store.put_if_absent(f"{place.key}/manifest-00000001.json", b"another")
    assert not [status for status in place.store.below(place.key) if ".unfinished" in status.key]
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    object_store._opened.clear()
    with pytest.raises(StorageError, match="does not permit it"):
        updates.upsert(path, pa.table({"id": [1], "name": ["mine"]}))


class Files:
    """As much of a client of HDFS as it takes to have each of its calls fail."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.times: dict[str, float] = {}
        self.failing: set[str] = set()
        self.lost: set[str] = set()

    def _called(self, name: str) -> None:
        if name in self.failing:
            raise RuntimeError(f"{name} failed")

    def mkdirs(self, *_: object, **__: object) -> None:
        self._called("mkdirs")

    def create(self, path: str, _: object) -> Any:
        @contextmanager
        def writing() -> Iterator[Any]:
            self.files[path], self.times[path] = b"", time.time() * 1e3
            yield SimpleNamespace(write=write)

        def write(part: bytes) -> None:
            self._called("write")
            self.files[path] += part

        return writing()

    def rename(self, old: str, new: str, overwrite: bool) -> None:
        self._called("rename")
        if new in self.files and not overwrite:
            raise FileExistsError(new)
        self.files[new], self.times[new] = self.files.pop(old), self.times.pop(old)
        if "rename" in self.lost:
            raise FileNotFoundError(old)  # what is told when it is asked for again

    def delete(self, path: str) -> None:
        self._called("delete")
        self.files.pop(path)

    def read(self, path: str) -> Any:
        if path not in self.files:
            raise FileNotFoundError(path)
        return nullcontext(SimpleNamespace(read=lambda: self.files[path]))

    def list_status(self, path: str, _: bool) -> list[Any]:
        return [
            SimpleNamespace(path=name, isdir=False, length=1, modification_time=self.times[name])
            for name in self.files
            if name.startswith(path)
        ]


def test_what_fails_leaves_nothing_and_what_is_left_goes() -> None:
    pytest.importorskip("hdfs_native")
    store = HdfsStore("127.0.0.1:1")
    files = store._client = Files()
    for failing in ("write", "rename"):
        files.failing = {failing}
        for write in (store.put, store.put_if_absent):
            with pytest.raises(StorageError, match=f"could not be written: {failing} failed"):
                write("r/a", b"1")
        assert not files.files, f"a failed {failing} leaves nothing"
    files.failing = set()
    assert store.put_if_absent("r/a", b"1")
    files.failing = {"delete"}
    assert not store.put_if_absent("r/a", b"2"), "another was first, whatever becomes of what is left"
    assert store.put_if_absent("r/a", b"1"), "it is ours"
    files.failing, files.lost = set(), {"rename"}
    assert store.put_if_absent("r/b", b"3"), "done, and the answer lost"
    left = [name for name in files.files if ".unfinished" in name]
    assert len(left) == 2
    files.times[left[0]] -= 9e4 * 1e3
    assert store.remove_unfinished("r", time.time() - 86_400) == [left[0].lstrip("/")]
    assert sorted(files.files) == sorted([left[1], "/r/a", "/r/b"])
