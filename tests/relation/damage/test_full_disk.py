"""A disk that is truly full: a small memory file system, mounted for the test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from packed_builds import packed_builds
from semistream.core.errors import StorageError
from semistream.relation.relation import Relation

pytestmark = pytest.mark.slow


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "semistream-test", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no memory file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def rows(keys: int) -> pa.Table:
    return pa.table({"id": np.arange(keys), "v": np.arange(keys)})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("spilling", [False, True])
def test_a_build_that_does_not_fit(small, spilling, packed):
    path = small / "r"
    Relation.build(rows(5000), path, "id").close()
    before = sorted(os.listdir(path))
    memory = "64KB" if spilling else "64MB"
    refused = pytest.raises(StorageError, match=r"small/r/.* there is no room left; make some")
    with packed_builds() if packed else contextlib.nullcontext(), refused as refusal:
        Relation.build(rows(60_000).to_batches(max_chunksize=5000), path, "id", overwrite=True, memory=memory)
    assert refusal.value.path is not None
    assert sorted(os.listdir(path)) == before, "what it wrote is gone"
    with Relation.open(path) as relation:
        assert relation.to_table().equals(rows(5000))
    assert semistream.upsert(path, rows(10)) == 2


def test_updates_until_nothing_fits(small):
    path = small / "r"
    Relation.build(rows(20_000), path, "id").close()
    done = [1]

    def update_on_and_on() -> None:
        done.extend(semistream.upsert(path, rows(8000)) for _ in range(50))

    with pytest.raises(StorageError, match="semistream vacuum removes unneeded files"):
        update_on_and_on()
    with Relation.open(path) as relation:
        assert relation.version == done[-1] > 1
        assert relation.to_table().equals(rows(20_000))
    fill(small / "filler")
    assert semistream.vacuum(path, older_than=-1), "it needs no room itself"
    (small / "filler").unlink()
    assert [version.number for version in semistream.history(path)] == [done[-1]]


def fill(path: Path) -> None:
    """Take all room there is."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(file, b"x" * 4096)
    os.close(file)
