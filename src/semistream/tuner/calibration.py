"""Measures the cost of operations on this machine, with the kernels that the joins use.

Each constant is the time of a pass over many tuples divided by their number. The minimum of several passes is used,
because it is the least disturbed by other work. Sizes are those of a join with some tens of megabytes: a hash table
that fits into the CPU cache would be much faster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.compiled import frozen
from semistream.costs import Constants, load_constants, simulated_seconds
from semistream.costs.basis.constants import DEFAULT
from semistream.joins import create
from semistream.relation.pages.page_layout import FIRST, LAST, WHOLE
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.synthetic import synthetic_relation
from semistream.structures.hot import hot_tuples
from semistream.structures.hot.candidates import Candidates
from semistream.structures.hot.hot_tuples import HotTuples
from semistream.structures.stream_table import StreamTable
from semistream.tuner.join_prices import measure_joins, priced
from semistream.workloads.keys.key_source import ZipfKeys

__all__ = ["calibrate", "measure_operations"]


_TUPLES = 1 << 18
_PORTION = 1 << 14
_ROUNDS = 5
_PAGES = 2048
_ROWS, _MANY_ROWS = 400_000, 4_000_000
_BATCH = 100_000
_TURNS = 100
_NOT_RECORDED = "looked up, not recorded"
_STREAM = pa.schema([pa.field("id", pa.int64()), pa.field("values", pa.binary(12))])


def calibrate(
    name: str = "local",
    relation: Relation | None = None,
    *,
    directory: Path | None = None,
    tuples: int = _TUPLES,
    algorithms: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Constants:
    """Measure all constants.

    Parameters
    ----------
    name
        Name of the constants.
    relation
        The relation whose device is measured; by default a relation of some megabytes is written and read.
    directory
        Directory for that relation, on the disk to measure. By default the directory of temporary files.
    tuples
        Tuples per pass; fewer take less time and are less accurate.
    algorithms
        Joins that are also measured as a whole; by default all with `Traits.calibrated`.
    progress
        Called with what is being measured.
    """
    joins = priced() if algorithms is None else algorithms
    found = default_constants(measure_operations(tuples, progress))
    progress("reads")
    with _written(directory, _ROWS) as small:
        measured = small if relation is None else relation
        found = found.on(measured.device.measure(), measured.page_bytes, name)
        progress("turns")
        found = dataclasses.replace(found, turn=_measure_turn(small, found))
    if not joins:
        return found
    progress("a relation to join with")
    with _written(directory, _MANY_ROWS) as large:
        own = found.on(large.device.measure(), large.page_bytes)  # a given relation may be on another device
        factors = measure_joins(large, _stream(_MANY_ROWS), own, joins, progress=progress)
    return dataclasses.replace(found, processor=factors)


def measure_operations(tuples: int = _TUPLES, progress: Callable[[str], None] = lambda _: None) -> dict[str, float]:
    """Return the costs of operations in nanoseconds, by the names of `Constants`."""
    found: dict[str, list[float]] = {}
    for turn in range(_ROUNDS + 1):
        progress(f"operations, round {turn + 1} of {_ROUNDS + 1}")
        for name, seconds in _one_round(tuples, turn).items():
            if turn:  # the first round compiles and warms up
                found.setdefault(name, []).append(seconds * 1e9)
    least = {name: min(values) for name, values in found.items()}
    least["record"] = max(0.0, least["record"] - least.pop(_NOT_RECORDED))
    return least


def _one_round(tuples: int, seed: int) -> dict[str, float]:
    """Return the seconds of each operation."""
    relation = synthetic_relation(4 * tuples)
    keys = ZipfKeys(4 * tuples, exponent=1.0, shape="random", seed=seed).keys(0, tuples)
    batch = pa.record_batch([pa.array(keys), pa.array([b"x" * 12] * tuples, pa.binary(12))], schema=_STREAM)
    spent: dict[str, float] = {}
    # c_S: from an Arrow batch to keys, in portions, as they arrive
    spent["admit"] = _time(
        lambda: [relation.key.encode(batch.slice(at, _PORTION), ["id"]) for at in range(0, tuples, _PORTION)]
    )
    # c_AI: portions cut and queued
    spent["buffer"] = _time(
        lambda: [(keys[at : at + 1024].copy(), batch.slice(at, 1024).nbytes) for at in range(0, tuples, 1024)]
    )
    # c_A, c_H, c_O, c_E: in and out of a stream table
    table = StreamTable(RowCodec(_STREAM), tuples)
    spent["append"] = _time(
        lambda: [table.insert(keys[at : at + _PORTION], batch.slice(at, _PORTION)) for at in range(0, tuples, _PORTION)]
    )
    count = min(_PAGES, relation.page_count)
    frames = relation.frames(count)
    pages = np.arange(count, dtype=np.int64) * (relation.page_count // count)
    relation.read(pages, frames)
    rows = int(count * relation.rows_per_page)
    cursor = np.array([0, 0, -1], np.int64)
    matched: list[tuple[Any, ...]] = []

    def probe() -> None:
        while cursor[0] < len(frames):
            matched.append(table.probe(frames, relation.layout.stride, cursor, _PORTION))

    spent["probe"] = _time(probe) * tuples / rows
    # pairs in random order: neighbouring or recently used rows would be in the CPU cache
    drawn = np.random.default_rng(seed)
    slots = drawn.integers(0, tuples, 4 * _PORTION).astype(np.int32)
    starts = drawn.choice(np.concatenate([found[1] for found in matched]), slots.size)

    def emit() -> None:
        stream, stored = table.rows(slots), relation.rows(frames.reshape(-1), starts)
        pa.RecordBatch.from_arrays([*stream.columns, *stored.columns], names=["id", "values", "filler"])

    spent["emit"] = _time(emit) * tuples / slots.size
    spent["evict"] = _time(lambda: table.release(table.take_oldest(tuples)[0]))
    # c_F: the cost that recording adds to a look-up
    spent["record"], spent[_NOT_RECORDED] = (seconds * tuples for seconds in _looked_up(relation, keys, frames))
    return {name: seconds / tuples for name, seconds in spent.items()}


def _looked_up(relation: Relation, keys: Ints, frames: Bytes) -> tuple[float, float]:
    """Return the seconds of a look-up in a cache, with and without recording a frequency."""
    held = np.unique(keys)[: keys.size // 4]
    cache = HotTuples(relation.codec, held.size)
    ones, flags = np.ones(held.size, np.int64), np.full(held.size, FIRST | LAST | WHOLE, np.uint8)
    starts = np.zeros(held.size, np.int64)
    cache.admit(Candidates(held, ones, np.arange(held.size + 1), starts, flags), frames.reshape(-1))
    hits = keys[np.isin(keys, held)]

    def look_up(record: bool) -> None:
        for at in range(0, hits.size, _PORTION):
            hot_tuples._look_up(cache._t, frozen(hits[at : at + _PORTION]), record)

    look_up(True)
    count = max(1, hits.size)
    return _time(lambda: look_up(True)) / count, _time(lambda: look_up(False)) / count


def _time(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _stream(rows: int) -> list[pa.RecordBatch]:
    keys = ZipfKeys(rows, exponent=1.0, shape="random").keys(0, 20 * _BATCH)
    values = pa.array([b"x" * 12] * _BATCH, pa.binary(12))
    return [
        pa.record_batch([pa.array(keys[at : at + _BATCH]), values], schema=_STREAM)
        for at in range(0, keys.size, _BATCH)
    ]


@contextlib.contextmanager
def _written(directory: Path | None, rows: int) -> Iterator[Relation]:
    """Write a relation of some megabytes, and remove it at the end."""
    data = pa.table({"id": np.arange(rows), "values": pa.array([b"x" * 112] * rows, pa.binary(112))})
    with (
        tempfile.TemporaryDirectory(prefix="semistream-", dir=directory) as folder,
        Relation.build(data, Path(folder) / "relation", key="id", encoding="plain") as relation,
    ):
        yield relation


def _measure_turn(relation: Relation, constants: Constants) -> float:
    """Return the nanoseconds of an iteration without its reads and tuples: MESHJOIN with few tuples per iteration."""
    join = create("meshjoin", relation, on="id", how="inner", memory=1 << 21, schema=_STREAM, partition_pages=8)
    keys = ZipfKeys(_ROWS, exponent=1.0, shape="random").keys(0, _PORTION)
    batch = pa.record_batch([pa.array(keys), pa.array([b"x" * 12] * _PORTION, pa.binary(12))], schema=_STREAM)
    found = []
    for _ in range(_ROUNDS + 1):
        before, began, at = join.stats, time.perf_counter(), 0
        while join.stats.steps - before.steps < _TURNS:
            at = (at + join.offer(batch.slice(at))) % _PORTION
            for _ in join.step():
                pass
        seconds, done = time.perf_counter() - began, join.stats.since(before)
        found.append((seconds - simulated_seconds(join.overlap, done, done.io_seconds, constants)) / done.steps)
    return max(0.0, min(found[1:]) * 1e9)


def default_constants(operations: dict[str, float]) -> Constants:
    """Return the package's simulated disk with costs of operations measured here, as in ``disk-2010.json``."""
    return Constants(**(dataclasses.asdict(load_constants(DEFAULT)) | operations))
