"""P- and OP-CACHEJOIN under stress: loader and prober delayed at random, results exact, errors not lost."""

from __future__ import annotations

import gc
import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.core.errors import CorruptPageError
from semistream.relation.relation import Relation

pytestmark = pytest.mark.slow

PARALLEL = ["p_cachejoin", "op_cachejoin"]


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 4000, 6000) * 2
    relation = pa.table(
        {"id": keys, "name": pa.array([f"name {key}" * (key % 4) for key in keys]), "n": np.arange(6000)}
    )
    stream_keys = [None if i % 97 == 0 else int(key) for i, key in enumerate(rng.zipf(1.2, 4_000) % 9000)]
    stream = pa.table({"id": pa.array(stream_keys, pa.int64()), "q": np.arange(4_000)})
    return relation, stream


def delayed(function, seed: int, longest: float):
    """Return ``function`` with random pauses before and after it."""
    dice = random.Random(seed)

    def slow(*arguments, **options):
        time.sleep(dice.random() * longest)
        result = function(*arguments, **options)
        time.sleep(dice.random() * longest)
        return result

    return slow


def rows(table: pa.Table) -> list[tuple]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("algorithm", PARALLEL)
@pytest.mark.parametrize("slow_part", ["loader", "prober", "cache", "all"])
def test_exact_whichever_part_is_slow(tmp_path, tables, algorithm, slow_part, monkeypatch):
    master, stream = tables
    relation = Relation.build(master, tmp_path / "r", "id", page_size=2048)
    expected = rows(
        pa.Table.from_batches(semistream.create("oracle", relation, on="id", how="left").process(stream.to_batches()))
    )
    join = semistream.create(algorithm, relation, on="id", how="left", memory=400_000)
    if slow_part in ("loader", "all"):
        monkeypatch.setattr(relation, "read", delayed(relation.read, 1, 0.002))
    join.bind(stream.schema, stream.to_batches()[0])
    if slow_part in ("prober", "all"):
        inner = join.inner
        monkeypatch.setattr(inner, "_probed", delayed(inner._probed, 2, 0.002))
    if slow_part in ("cache", "all"):
        monkeypatch.setattr(join.cache, "admit", delayed(join.cache.admit, 3, 0.002))
    results = []
    for batch in stream.to_batches(max_chunksize=500):
        results.extend(join.process([batch]))
        assert join.pending == 0
        join.check()
    assert rows(pa.Table.from_batches(results)) == expected
    assert join.stats.rows_done == join.stats.rows_in == stream.num_rows
    assert join.stats.cache_hits > 0


@pytest.mark.parametrize("algorithm", PARALLEL)
def test_phases_overlap(tmp_path, tables, algorithm, monkeypatch):
    """While the disk is being read, the stream is being probed."""
    master, stream = tables
    relation = Relation.build(master, tmp_path / "r", "id", page_size=2048)
    join = semistream.create(algorithm, relation, on="id", how="inner", memory=400_000)
    join.bind(stream.schema, stream.to_batches()[0])
    reading, overlapped = threading.Event(), threading.Event()
    reads = probes = 0
    read, probe = relation.read, join._probe

    def slow_read(pages, frames):
        nonlocal reads
        reads += 1
        reading.set()
        overlapped.wait(1.0 if reads <= 10 else 0.0)  # until a probe runs, so that no slow thread can miss the reads
        read(pages, frames)
        reading.clear()

    def watched_probe(part):
        nonlocal probes
        probes += 1
        if reading.is_set():
            overlapped.set()
        return probe(part)

    monkeypatch.setattr(relation, "read", slow_read)
    monkeypatch.setattr(join, "_probe", watched_probe)
    for _ in join.process(stream.to_batches(max_chunksize=200)):
        pass
    assert overlapped.is_set(), f"none of {probes} probes ran during a read"


@pytest.mark.parametrize("algorithm", PARALLEL)
def test_an_error_of_the_other_thread_reaches_the_caller(tmp_path, tables, algorithm):
    master, stream = tables
    relation = Relation.build(master, tmp_path / "r", "id", page_size=2048)
    file = next((tmp_path / "r").glob("*.pages"))
    data = bytearray(file.read_bytes())
    for page in range(len(data) // 2048):
        data[page * 2048 + 700] ^= 1
    file.write_bytes(data)
    relation = Relation.open(tmp_path / "r")
    join = semistream.create(algorithm, relation, on="id", how="inner", memory=400_000)
    with pytest.raises(CorruptPageError, match=file.name):
        list(join.process(stream.to_batches()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("algorithm", PARALLEL)
@pytest.mark.parametrize("size", [100_000, 300_000])  # longer than the intermediate buffer; than any that was expected
def test_r_changes_between_the_look_ups_of_long_rows(tmp_path, algorithm, size, monkeypatch):
    """Each long row sees R wholly before or wholly after an update by another thread."""
    keys = np.repeat(np.arange(8), 40)
    master = pa.table({"id": keys, "v": np.zeros(keys.size, np.int64)})
    relation = Relation.build(master, tmp_path / "r", "id", page_size=512)
    join = semistream.create(algorithm, relation, on="id", how="inner", memory=3_000_000)
    stream = pa.record_batch({"id": np.arange(40) % 8, "s": range(40), "text": ["x" * size] * 40})
    read, looking, changed = relation.read, threading.Event(), threading.Event()

    def slow_read(pages, frames):
        looking.set()
        changed.wait(0.02)  # an update that need not wait for the end of the look-up comes now
        read(pages, frames)

    def change():
        looking.wait(30)
        for value in range(1, 8):
            relation.apply(pa.table({"id": keys, "v": np.full(keys.size, value)}))
            changed.set()
            time.sleep(0.01)
            changed.clear()

    join.bind(stream.schema, stream if size < 200_000 else None)
    monkeypatch.setattr(relation, "read", slow_read)
    writer = threading.Thread(target=change)
    writer.start()
    seen: dict[int, list[int]] = {}
    for result in join.process([stream]):
        for key, value in zip(result["s"].to_pylist(), result["v"].to_pylist(), strict=True):
            seen.setdefault(key, []).append(value)
    writer.join()
    join.check()
    assert {key: len(values) for key, values in seen.items()} == dict.fromkeys(range(40), 40)
    assert [key for key, values in seen.items() if len(set(values)) > 1] == []
    assert join.stats.rows_done == join.stats.rows_in == 40


@pytest.mark.parametrize("algorithm", PARALLEL)
def test_no_thread_is_left_behind(tmp_path, tables, algorithm):
    master, stream = tables
    relation = Relation.build(master, tmp_path / "r", "id", page_size=2048)

    def running_threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name.startswith((f"{algorithm}-disk", "loader"))}

    before = running_threads()
    join = semistream.create(algorithm, relation, on="id", how="inner", memory=400_000)
    list(join.process(stream.to_batches()))
    abandoned = semistream.create(algorithm, relation, on="id", how="inner", memory=400_000)
    running = abandoned.process(stream.to_batches())
    next(running)
    running.close()
    del join, abandoned, running
    gc.collect()
    until = time.monotonic() + 60
    while (left := running_threads() - before) and time.monotonic() < until:
        time.sleep(0.05)
        gc.collect()
    assert not left
