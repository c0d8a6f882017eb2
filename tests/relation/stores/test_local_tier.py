"""The local tier: it holds what the store has, stays within its bytes, and nothing that happens to it matters."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from s3_server import S3Server
from semistream.core.errors import StorageError
from semistream.relation import updates
from semistream.relation.devices import mirrored_files
from semistream.relation.devices.store_device import StoreDevice
from semistream.relation.relation import Relation
from semistream.relation.stores import local_tier, mirror
from semistream.relation.stores.local_tier import LocalTier
from semistream.relation.stores.mirror import Mirror

R = "s3://bucket/products"
ROWS = 60_000
BUDGET = 1 << 20


@pytest.fixture
def tier(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the tier; a relation of six times the budget is in the store."""
    monkeypatch.setenv("SEMISTREAM_LOCAL_DIR", str(tmp_path / "tier"))
    Relation.build(table(), R, key="id", page_size=4096, shards=2).close()
    return tmp_path / "tier"


def table(tag: str = "name") -> pa.Table:
    return pa.table({"id": np.arange(ROWS), "name": [f"{tag} {number:080d}" for number in range(ROWS)]})


def disk(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def settled(relation: Relation) -> None:
    """Read a page, and wait until all of R is here."""
    relation.read(np.array([3]), relation.frames(1))
    deadline = time.monotonic() + 120
    assert isinstance(relation.device, StoreDevice)
    while not all(mirror.state.all() for mirror in relation.device._tier._mirrors) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_all_of_it_comes_if_it_fits_and_nothing_is_asked_again(s3: S3Server, tier: Path) -> None:
    with Relation.open(R, local="100MB") as relation:
        settled(relation)
        assert relation.counters.fetched_bytes <= 1.5 * relation.nbytes
        asked = len(s3.requests)
        assert relation.to_table().sort_by("id").equals(table())
        assert len(s3.requests) == asked
    with Relation.open(R, local="100MB") as relation:
        assert relation.to_table().sort_by("id").equals(table())
        assert relation.counters.requests == 0
        assert relation.counters.local_pages == relation.counters.pages == relation.page_count
    assert not [key for _, key in s3.requests[asked:] if not (key == "" or "manifest" in key)], "nor the indexes"


@pytest.mark.slow
def test_it_stays_within_its_bytes_and_keeps_what_is_asked_for(s3: S3Server, tier: Path) -> None:
    generator = np.random.default_rng(0)
    with Relation.open(R, local=BUDGET) as relation:
        hot = generator.choice(relation.page_count, 50, replace=False)
        frames, expected = relation.frames(100), relation.frames(relation.page_count)
        relation.read(np.arange(relation.page_count), expected)
        for _ in range(40):
            pages = np.concatenate([hot, generator.integers(0, relation.page_count, 50)])
            relation.read(pages, frames)
            assert np.array_equal(frames, expected[pages])
            assert disk(tier) <= BUDGET + 64 * 1024, "blocks of directories and of the bitmaps"
        before = relation.counters
        relation.read(hot, frames)
        assert (relation.counters - before).local_pages >= 40
        assert relation.counters.fetched_bytes < 4 * relation.counters.bytes


def test_a_full_tier_is_not_written_for_what_is_worth_no_more(
    s3: S3Server, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, written, put = np.random.default_rng(0), [], Mirror.put

    def counted(self: Mirror, first: int, frames: np.ndarray) -> int:
        written.append(len(frames))
        return put(self, first, frames)

    monkeypatch.setattr(Mirror, "put", counted)
    with Relation.open(R, local=BUDGET) as relation:
        frames = relation.frames(100)
        for turn in range(60):
            if turn == 30:
                before = relation.counters
                written.clear()
            relation.read(np.sort(generator.integers(0, relation.page_count, 100)), frames)
        done = relation.counters - before
    assert sum(written) < 0.2 * done.pages, "a page that was asked for as often as any other replaces none"
    assert done.local_pages > 0.1 * done.pages


@pytest.mark.parametrize("usual", [1, 4, 8, 16])
def test_what_chance_makes_more_frequent_is_worth_no_more(tmp_path: Path, usual: int) -> None:
    pages = 20_000
    mirror = Mirror(tmp_path / "one", "r.pages", pages, 512)
    asked = np.minimum(np.random.default_rng(usual).poisson(usual, pages), 127).astype(np.uint8)
    mirror.state[:] = asked << 1
    mirror.state[::4] |= 1
    assert np.count_nonzero(mirror.worth(np.arange(pages))) < 0.005 * pages
    mirror.state[1] = 2 * (3 * usual + 4)
    assert mirror.worth(np.array([1])).all(), "one that is asked for three times as often is known for it"
    mirror.close()


def test_many_keep_at_once_and_one_thread_does_it(s3: S3Server, tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, and closing would wait for the one that nobody has told."""
    started, thread = [], threading.Thread

    class Slow(thread):
        def __init__(self, *given: object, **named: object) -> None:
            if named.get("name") == "keeping":
                started.append(named)
                time.sleep(0.05)
            super().__init__(*given, **named)  # type: ignore[arg-type]

    with Relation.open(R, local=BUDGET) as relation:
        files = relation.device._tier
        assert files is not None
        frames = relation.frames(1)
        relation.read(np.array([7]), frames)
        monkeypatch.setattr(mirrored_files.threading, "Thread", Slow)
        keepers = [thread(target=files.keep_later, args=(np.array([7]), frames)) for _ in range(4)]
        for one in keepers:
            one.start()
        for one in keepers:
            one.join()
    assert len(started) == 1


@pytest.mark.parametrize("ill", [True, False])
def test_closing_does_not_wait_for_what_would_be_kept_later(
    s3: S3Server, tier: Path, monkeypatch: pytest.MonkeyPatch, ill: bool
) -> None:
    """It waited for all of it to be written, and for ever if the one who keeps it had come to an end."""
    begun, go_on = threading.Event(), threading.Event()
    kept: list[int] = []

    def slowly(_: object, first: int, frames: np.ndarray) -> bool:
        begun.set()
        go_on.wait(120)
        if ill:
            raise RuntimeError("nobody expects this")
        kept.append(first)
        return True

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    relation = Relation.open(R, local=BUDGET)
    assert isinstance(relation.device, StoreDevice)
    mirrored = relation.device._tier
    with monkeypatch.context() as patch:
        patch.setattr(type(mirrored), "keep", slowly)
        mirrored.keep_later(np.array([0]), relation.frames(1))
        assert begun.wait(120)
        for page in range(1, 100):
            mirrored.keep_later(np.array([page]), relation.frames(1))
        closing = threading.Thread(target=relation.close, daemon=True)
        if ill:
            go_on.set()
            mirrored._keeping.join(120)
        closing.start()
        until = time.monotonic() + 120
        while closing.is_alive() and mirrored._later.qsize() > 1 and time.monotonic() < until:
            time.sleep(0.001)  # till what waits is forgotten
        go_on.set()
        closing.join(120)
        assert not closing.is_alive()
    assert kept == ([] if ill else [0])


def test_what_reads_cost_is_known_before_there_are_any(s3: S3Server, tier: Path) -> None:
    s3.delay = 0.05  # far more than a read of the local disk takes
    costs = []
    for local in (None, "25%", "110%"):
        with Relation.open(R, local=local) as relation:
            costs.append(relation.device.profile.seek_seconds)
            assert relation.counters.local_pages == 0
    assert costs[0] > 0.04
    assert costs[0] > costs[1] > costs[2]


@pytest.mark.slow
def test_joins_are_exact_with_a_small_tier(s3: S3Server, tier: Path) -> None:
    keys = np.random.default_rng(1).zipf(1.2, 6_000) % ROWS
    stream = pa.table({"id": keys})
    for algorithm in ("cachejoin", "ssij"):
        with Relation.open(R, local=BUDGET) as relation:
            joined = semistream.create(algorithm, relation, on="id", memory="500KB")
            found = pa.Table.from_batches(joined.process(stream.to_batches(max_chunksize=2000)))
            assert found["name"].to_pylist() == [f"name {key:080d}" for key in found["id"].to_pylist()]
            assert np.array_equal(np.sort(found["id"].to_numpy()), np.sort(keys))


def test_a_new_version_and_a_new_relation_of_the_same_name_are_not_mistaken(s3: S3Server, tier: Path) -> None:
    with Relation.open(R, local="100MB") as relation:
        settled(relation)
    updates.upsert(R, pa.table({"id": [5], "name": ["changed"]}))
    with Relation.open(R, local="100MB") as relation:
        assert relation.to_table().sort_by("id")["name"][5].as_py() == "changed"
        assert relation.counters.requests <= 2, "only what changed"
    s3.objects.clear()
    Relation.build(table("other"), R, key="id", page_size=4096, shards=2).close()
    with Relation.open(R, local="100MB") as relation:
        assert relation.to_table().sort_by("id").equals(table("other"))


def test_damage_to_the_tier_is_found_and_made_good(s3: S3Server, tier: Path) -> None:
    with Relation.open(R, local="100MB") as relation:
        settled(relation)
    for file in tier.rglob("shard-*"):
        with open(file, "r+b") as opened:
            opened.seek(file.stat().st_size // 2)
            opened.write(b"???")
    with Relation.open(R, local="100MB") as relation:
        assert relation.to_table().sort_by("id").equals(table())
        assert 0 < relation.counters.requests < 10
        before = relation.counters
        assert relation.to_table().num_rows == ROWS
        assert (relation.counters - before).requests == 0, "and kept again"
    for file in tier.rglob("extents"):
        file.write_bytes(b"\1" * file.stat().st_size)  # says that all is there
    for file in tier.rglob("*.pages"):
        os.truncate(file, 0)
        os.truncate(file, (ROWS // 2) * 100)
    (tier / "hand").write_text("nonsense")
    with Relation.open(R, local=BUDGET) as relation:
        assert relation.to_table().sort_by("id").equals(table())


@pytest.mark.slow
def test_a_kill_leaves_a_tier_that_can_be_trusted(s3: S3Server, tier: Path) -> None:
    code = f"""
import os, signal, threading, numpy as np
from semistream.relation.devices.store_device import StoreDevice
from semistream.relation.relation import Relation
with Relation.open({R!r}, local={BUDGET}) as relation:
    frames = relation.frames(40)
    relation.read(np.arange(40), frames)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    while True:
        relation.read(np.random.default_rng().integers(0, relation.page_count, 40), frames)
"""
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == -9
        assert disk(tier) <= BUDGET + 512 * 1024, "what was on its way"
    with Relation.open(R, local=BUDGET) as relation:
        assert relation.to_table().sort_by("id").equals(table())
        assert disk(tier) <= BUDGET + 64 * 1024


def _reads(seed: int) -> bool:
    generator = np.random.default_rng(seed)
    with Relation.open(R, local=BUDGET) as relation:
        frames = relation.frames(50)
        for _ in range(20):
            pages = generator.integers(0, relation.page_count, 50)
            relation.read(pages, frames)
            expected = np.where(pages < relation.shard_bases[1], pages, pages - relation.shard_bases[1])
            if not np.array_equal(frames[:, 8:12].copy().view(np.uint32)[:, 0], expected):
                return False
    return True


@pytest.mark.slow
def test_processes_share_it(s3: S3Server, tier: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert all(pool.map(_reads, range(2)))
    assert disk(tier) <= BUDGET + 64 * 1024
    with Relation.open(R, local=BUDGET) as relation:
        assert relation.to_table().sort_by("id").equals(table())


def test_what_cannot_be_is_said(s3: S3Server, tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="too small"):
        Relation.open(R, local=1000)
    with pytest.raises(StorageError, match="give less, make room"):
        LocalTier(tier, 1 << 60).check()
    LocalTier(tier, 1 << 21).check()

    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(local_tier, "punch", refused)
    with pytest.raises(StorageError, match="ext4"):
        LocalTier(tier, 1 << 21).check()
    monkeypatch.setenv("SEMISTREAM_LOCAL_DIR", "/proc/nothing")
    with pytest.raises(StorageError, match="SEMISTREAM_LOCAL_DIR"):
        Relation.open(R, local="2MB")


def test_a_full_disk_is_no_fault(s3: S3Server, tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    Relation.build(table()[:9], "memory://full/r", key="id").close()
    Relation.open(R, local="2MB").close()
    marks = [file.stat() for file in tier.glob("*/extents")]
    assert marks, "to be written to without asking the disk, which would end the process"
    assert all(one.st_blocks * 512 >= one.st_size for one in marks)
    monkeypatch.setattr(local_tier.Mirror, "put", full)
    monkeypatch.setattr(mirrored_files.tempfile, "NamedTemporaryFile", full)
    monkeypatch.setattr(mirrored_files, "_probed", {})
    with Relation.open(R, local="100MB") as relation:
        joined = semistream.create("adaptivejoin", relation, on="id", memory="500KB")
        assert sum(one.num_rows for one in joined.process([pa.record_batch({"id": [1, 2]})])) == 2
        assert relation.to_table().sort_by("id").equals(table())
        assert relation.counters.local_pages == 0
        filling = relation.device._tier._filling
        assert filling is not None
        filling.join(60)
        assert not filling.is_alive(), "it would try for ever"
    monkeypatch.setattr(local_tier.os, "pwrite", full)
    monkeypatch.setattr(mirror, "_make", full)
    with Relation.open("memory://full/r", local="2MB") as relation:
        assert relation.to_table().num_rows == 9
