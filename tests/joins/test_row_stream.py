"""Rows that come from the disk to the arena in one loop: the same as by any other way, and what goes wrong is told."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.compiled import frozen, kernel
from semistream.core.errors import CorruptPageError
from semistream.joins.adaptive.page_fetch import PageFetch
from semistream.relation.devices import page_ring, request_queue, transfers
from semistream.relation.devices.device import DeviceError
from semistream.relation.devices.ring_reader import RingReader
from semistream.relation.relation import Relation
from semistream.structures.hot import row_stream
from semistream.structures.hot.hot_rows import HotRows

KEYS = 4000


def table(kind: str) -> pa.Table:
    """Rows of keys from 0 up, each third key lacking: one a key, or key % 4."""
    keys = np.arange(KEYS)
    keys = keys[keys % 3 != 1]
    if kind == "several":
        keys = np.repeat(keys, keys % 4)
    nth = np.arange(keys.size)
    columns: dict[str, Any] = {"id": keys, "nth": nth}
    if kind != "fixed":
        columns["text"] = [("é" * int(n % 90)) if n % 7 else None for n in nth]
    return pa.table(columns)


@pytest.fixture(params=["fixed", "varying", "several", "scattered", "shards", "updated"])
def relation(request: pytest.FixtureRequest, tmp_path: Path) -> Relation:
    kind = request.param
    data = table("several" if kind == "several" else "fixed" if kind == "fixed" else "varying")
    if kind == "scattered":
        data = data.take(np.random.default_rng(1).permutation(data.num_rows))
    shards = 3 if kind in ("shards", "updated") else 1
    Relation.build(data, tmp_path / "r", "id", page_size=512, clustered=kind != "scattered", shards=shards).close()
    if kind == "updated":  # pages that lie elsewhere, next to each other and alone, in two files of each shard
        for text, keys in (("new", np.arange(300, 900)), ("newer", np.arange(0, KEYS + 40, 31))):
            rows = {"id": keys, "nth": -keys, "text": [text * int(key % 9) for key in keys]}
            semistream.upsert(tmp_path / "r", pa.table(rows, schema=data.schema))
    return Relation.open(tmp_path / "r")


def brought(relation: Relation, keys: np.ndarray, frames: int, wanted: int, rows: int = 9000) -> tuple[bool, HotRows]:
    arena = HotRows(relation.codec, keys.size + 64, rows, 120.0, unique=relation.unique)
    numbers = np.empty(keys.size, np.int32)
    assert arena.number(keys, np.ones(keys.size, bool), numbers)[0] == keys.size
    fetch = PageFetch(relation, frames, wanted)
    fitted = fetch.bring(arena, arena.unknown())
    arena.check()
    return fitted, arena


def rows_of(relation: Relation, arena: HotRows, keys: np.ndarray) -> list[dict[str, Any]]:
    numbers = np.empty(keys.size, np.int32)
    arena.number(keys, np.ones(keys.size, bool), numbers)
    assert arena.unknown().size == 0
    _, rows, _, _ = arena.expand(numbers, 0, -1, 100_000, alone=False)
    data, starts = arena.locate(rows)
    return relation.rows(data, starts).to_pylist()


def threads_only(monkeypatch: pytest.MonkeyPatch, relation: Relation) -> None:
    monkeypatch.setattr(relation.device, "ring", lambda *_: contextlib.nullcontext())


@pytest.mark.parametrize(("frames", "wanted", "share"), [(1, 40, 0.1), (3, 64, 0.5), (16, 500, 0.02), (64, 5000, 1.0)])
def test_rows_are_those_that_threads_bring(relation, frames, wanted, share, monkeypatch):
    with relation:
        rng = np.random.default_rng(frames)
        keys = np.sort(rng.choice(KEYS + 50, int(share * KEYS), replace=False)).astype(np.int64)
        with relation.ring(relation.frames(1)) as ring:
            if ring is None:
                pytest.skip("this system has no queue for direct reads")
        before = relation.counters.pages
        fitted, arena = brought(relation, keys, frames, wanted)
        assert fitted
        assert relation.counters.pages > before
        assert relation.counters.bytes == relation.counters.pages * relation.page_bytes
        found = rows_of(relation, arena, keys)
        wanted_rows = relation.to_table().to_pylist()
        asked = set(keys.tolist())
        assert sorted(row["nth"] for row in found) == sorted(r["nth"] for r in wanted_rows if r["id"] in asked)
        threads_only(monkeypatch, relation)
        _, other = brought(relation, keys, frames, wanted)
        assert found == rows_of(relation, other, keys)
        assert len(arena) == len(other) == len(found)


def test_signals_are_looked_after_amid_many_requests(plain, monkeypatch):
    """A loop over more requests than one entry takes, each page by itself; Python sees a signal before it ends."""
    monkeypatch.setattr("semistream.joins.adaptive.page_fetch.read_costs", lambda _: (0.0, 1e-5))
    with Relation.build(
        pa.table({"id": np.arange(60_000), "nth": np.arange(60_000)}), plain.parent / "long", "id", page_size=512
    ) as relation:
        keys = np.arange(0, 60_000, 50, dtype=np.int64)
        entries = []
        stream = row_stream._stream_rows
        monkeypatch.setattr(row_stream, "_stream_rows", lambda *given: (entries.append(1), stream(*given))[1])
        fitted, arena = brought(relation, keys, 64, 5000)
        assert fitted
        assert [row["nth"] for row in rows_of(relation, arena, keys)] == keys.tolist()
        if relation.device.method == "queue":
            assert len(entries) == -(-keys.size // row_stream.MOST_ASKED)


def test_where_rows_do_not_fit_nothing_is_known(relation):
    with relation:
        keys = np.arange(0, KEYS, 2, dtype=np.int64)
        fitted, arena = brought(relation, keys, 32, 2000, rows=200)
        assert not fitted
        unknown = arena.unknown()
        assert unknown.size == keys.size  # the only part was too much
        fetch = PageFetch(relation, 32, 2000)
        arena.pin_only(unknown[:40])
        assert fetch.bring(arena, arena.unknown())  # and the queue still works
        arena.check()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    Relation.build(table("varying"), tmp_path / "r", "id", page_size=512).close()
    return tmp_path / "r"


@pytest.mark.parametrize("shards", [1, 3])
def test_runs_and_pages_that_arrive_are_counted(tmp_path, shards):
    Relation.build(table("varying"), tmp_path / "r", "id", page_size=512, shards=shards).close()
    with Relation.open(tmp_path / "r") as relation:
        before = relation.counters.snapshot()
        assert brought(relation, np.arange(KEYS, dtype=np.int64), 48, 5000)[0]
        read = relation.counters - before
        assert (read.reads, read.pages) == (shards, relation.page_count)  # a run in each file
        assert read.seconds > 0
        before = relation.counters.snapshot()
        brought(relation, np.array([3], np.int64), 48, 5000)
        read = relation.counters - before
        assert (read.reads, read.pages, read.bytes) == (1, 1, 512)


def test_a_damaged_page_is_told_and_keys_stay_unknown(plain):
    file = next(plain.glob("*.pages"))
    with Relation.open(plain) as relation:
        middle = relation.page_count // 2
        with open(file, "r+b") as pages:
            pages.seek(middle * 512 + 100)
            byte = pages.read(1)
            pages.seek(middle * 512 + 100)
            pages.write(bytes([byte[0] ^ 4]))
        keys = np.arange(0, KEYS, dtype=np.int64)
        arena = HotRows(relation.codec, keys.size, 9000, 120.0, unique=True)
        numbers = np.empty(keys.size, np.int32)
        arena.number(keys, np.ones(keys.size, bool), numbers)
        for _ in range(3):
            with pytest.raises(CorruptPageError, match=f"page {middle} of .*corrupt"):
                PageFetch(relation, 48, 300).bring(arena, arena.unknown())
            arena.check()
        with open(file, "r+b") as pages:
            pages.seek(middle * 512 + 100)
            pages.write(byte)
        assert PageFetch(relation, 48, 300).bring(arena, arena.unknown())
        assert [row["nth"] for row in rows_of(relation, arena, keys)] == table("varying")["nth"].to_pylist()


@pytest.mark.parametrize("left", [0.5, 0.501])
def test_a_file_that_ends_too_early_is_told(plain, left):
    file = next(plain.glob("*.pages"))
    with Relation.open(plain) as relation:
        os.truncate(file, int(file.stat().st_size * left) // 100 * 100)
        with pytest.raises(CorruptPageError, match="truncated"):
            brought(relation, np.arange(KEYS, dtype=np.int64), 48, 300)


def test_a_disk_that_fails_is_told(plain, monkeypatch):
    keys = np.arange(64, dtype=np.int64)
    with Relation.open(plain) as relation:
        reader = relation.device._reader
        with monkeypatch.context() as patch:
            patch.setattr(reader, "_files", frozen(np.full_like(reader._files, 10**6)))  # no open file
            with pytest.raises(DeviceError, match=r"reading page 0 of .*Bad file descriptor"):
                brought(relation, keys, 48, 300)
        assert brought(relation, keys, 48, 300)[0]
        with pytest.raises(DeviceError, match=r"reading page 0 of .*Input/output error"):
            failing(relation)
        assert brought(relation, keys, 48, 300)[0]


def failing(relation: Relation) -> None:
    with relation.ring(relation.frames(4)) as ring:
        if ring is None:
            pytest.skip("this system has no queue for direct reads")
        ring.ring.requests[page_ring.LENGTH, 0] = 1
        ring.ring.state[[page_ring.OUTCOME, page_ring.REASON]] = transfers.FAILED, errno.EIO


@pytest.mark.parametrize("after", [1, 3])
def test_a_queue_that_does_not_work_is_replaced_by_threads(plain, monkeypatch, after):
    with Relation.open(plain) as relation:
        if relation.device.method != "queue":
            pytest.skip("this system has no queue for direct reads")
        broken = request_queue.Queue(64)
        broken.destroy()
        stream, parts = HotRows.stream, []

        def breaking(arena, ring, *given):
            parts.append(1)
            if len(parts) == after:
                ring.ring.state[page_ring.QUEUE] = broken.handle
                ring._queue.destroy()
                ring._queue = broken
            return stream(arena, ring, *given)

        monkeypatch.setattr(HotRows, "stream", breaking)
        keys = np.arange(0, KEYS, 3, dtype=np.int64)
        fitted, arena = brought(relation, keys, 48, 300)
        assert fitted
        assert len(parts) == after
        assert [row["nth"] for row in rows_of(relation, arena, keys)] == list(range(0, table("varying").num_rows, 2))


@kernel
def ask_for(ring: page_ring.Ring, pages: int) -> None:
    for page in range(pages):
        page_ring.ask(ring, page, page, 1, 0)
    page_ring.submit(ring)


def test_an_interrupt_waits_for_what_is_in_flight(plain):
    rings: list[RingReader] = []

    def interrupted() -> None:
        with relation.ring(frames) as ring:
            if ring is None:
                pytest.skip("this system has no queue for direct reads")
            rings.append(ring)
            ask_for(ring.ring, 8)
            assert ring.ring.state[page_ring.IN_FLIGHT] == 8
            raise KeyboardInterrupt

    with Relation.open(plain) as relation:
        frames = relation.frames(8)
        for _ in range(5):
            frames[:] = 0
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            assert rings[-1].ring.state[page_ring.IN_FLIGHT] == 0
            assert frames.tobytes() == next(plain.glob("*.pages")).read_bytes()[: 8 * 512]


def test_an_arena_that_cannot_make_room_is_left_in_order(plain, monkeypatch):
    def interrupt(arena: HotRows) -> bool:
        raise KeyboardInterrupt

    with Relation.open(plain) as relation:
        keys = np.arange(0, KEYS, 12, dtype=np.int64)
        with monkeypatch.context() as patch:
            patch.setattr(HotRows, "_let_some_go", interrupt)
            with pytest.raises(KeyboardInterrupt):
                brought(relation, keys, 256, 5000, rows=1)
        assert brought(relation, keys, 256, 5000)[0]
