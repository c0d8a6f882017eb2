"""The two sides of a workload: R on a simulated or a real device, and the keys of the stream."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.core.arrays import Floats, Ints
from semistream.relation.devices.simulated_device import SimulatedDevice
from semistream.relation.relation import Relation
from semistream.relation.synthetic import synthetic_relation
from semistream.workloads.keys.key_source import KeySource, ZipfKeys
from semistream.workloads.master_table import MasterTable
from semistream_lab.experiments.measure.blank_pages import BlankablePages, counted_relation
from semistream_lab.experiments.spec import DeviceKind, Workload, digest
from semistream_lab.workloads.locality import LocalityKeys
from semistream_lab.workloads.tpch import TpchTable
from semistream_lab.workloads.weather import LONGITUDES, WeatherReports

__all__ = ["KEY", "ListedKeys", "Sides", "key_source", "open_sides", "stream_schema", "whole_keys"]


KEY = "id"
"""Name of the key column on both sides."""
BATCH = 1 << 16
"""Stream tuples per batch."""
_WEATHER_SAMPLE = 2_000_000
"""Weather reports from which frequencies of longitudes are estimated."""


@dataclass(frozen=True)
class ListedKeys(KeySource):
    """Keys from a list, which starts again at its end."""

    listed: Ints
    size: int

    def _keys(self, start: int, count: int) -> Ints:
        return np.take(self.listed, np.arange(start, start + count), mode="wrap")


@dataclass
class Sides:
    """A relation, and the stream to join with it."""

    workload: Workload
    relation: Relation
    keys: KeySource
    blankable: BlankablePages | None
    """The simulated pages; None on a real device."""
    partners: float = 1.0
    """Matches of a stream tuple in a simulated R, on average."""

    def batches(self, start: int = 0, rows: int = BATCH) -> Iterator[pa.RecordBatch]:
        """Yield the endless stream, beginning with tuple ``start``."""
        schema = stream_schema(self.workload.stream_bytes)
        while True:
            yield self.batch(start, rows, schema)
            start += rows

    def batch(self, start: int, rows: int, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Return the tuples ``start`` to ``start + rows - 1``: key, number, filler."""
        return self.batch_of(self.keys.keys(start, rows), start, schema)

    def batch_of(self, keys: Ints, start: int, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """Return tuples with these keys, numbered from ``start``."""
        schema = schema or stream_schema(self.workload.stream_bytes)
        columns = [pa.array(keys), pa.array(np.arange(start, start + keys.size))]
        width = schema.field("filler").type.byte_width
        filler = pa.Array.from_buffers(schema.field("filler").type, keys.size, [None, _zeros(keys.size * width)])
        return pa.RecordBatch.from_arrays([*columns, filler], schema=schema)


@functools.lru_cache(maxsize=4)
def _zeros(size: int) -> pa.Buffer:
    return pa.py_buffer(np.zeros(size, np.uint8))


def stream_schema(stream_bytes: int) -> pa.Schema:
    """Return the columns of a stream tuple of ``stream_bytes`` bytes."""
    return pa.schema([
        pa.field(KEY, pa.int64()), pa.field("number", pa.int64()), pa.field("filler", pa.binary(stream_bytes - 16))
    ])  # fmt: skip


def open_sides(workload: Workload, device: DeviceKind, directory: Path, seek_seconds: float = 0.0085) -> Sides:
    """Open both sides of a workload.

    On a real device, R is built once in ``directory`` and kept there.
    """
    keys = key_source(workload, directory)
    if device == "real":
        return Sides(workload, _real_relation(workload, directory), keys, None)
    partners = float(workload.rows_per_key)
    if workload.kind == "weather":
        counts = _weather_counts(workload)
        relation = counted_relation(counts, workload.row_bytes, fill=workload.fill, seek_seconds=seek_seconds)
        assert isinstance(keys, ListedKeys)
        partners = float(counts[keys.listed].mean())
    else:
        relation = synthetic_relation(
            workload.rows, row_bytes=workload.row_bytes, rows_per_key=workload.rows_per_key, fill=workload.fill,
            seek_seconds=seek_seconds, key=KEY,
        )  # fmt: skip
    assert isinstance(relation.device, SimulatedDevice)
    blankable = BlankablePages(relation.device.source)
    relation.device.source = blankable
    return Sides(workload, relation, keys, blankable, partners)


def key_source(workload: Workload, directory: Path) -> KeySource:
    """Return the keys of a workload's stream, numbered as in R."""
    size = workload.rows // workload.rows_per_key
    match workload.kind:
        case "zipf" | "one-to-many":
            return ZipfKeys(size, workload.exponent, workload.shape, workload.seed)
        case "locality":
            return LocalityKeys(size, 20, workload.interval_rows, workload.exponent, workload.shape, workload.seed)
        case "tpch-orders" | "tpch-lineitem":
            return ListedKeys(_tpch_keys(workload, directory), size)
        case "weather":
            sample = WeatherReports(_WEATHER_SAMPLE // 4, months=(12,), row_bytes=40, seed=workload.seed)
            return ListedKeys(_longitudes(sample), LONGITUDES)
    raise ValueError(f"unknown kind of workload: {workload.kind!r}")


def _tpch_keys(workload: Workload, directory: Path) -> Ints:
    """Return the foreign keys of the first rows of a generated TPC-H table, numbered from 0."""
    table, column = ("orders", "o_custkey") if workload.kind == "tpch-orders" else ("lineitem", "l_partkey")
    # for orders: twice the largest number of tuples that wait in a queue
    rows = int(min(8e6, workload.scale_factor * 1.5e6) if table == "orders" else min(4e6, workload.scale_factor * 6e6))
    kept = directory / "tpch" / f"{table}-sf{workload.scale_factor}-{rows}.npy"
    if not kept.exists():
        made = TpchTable(table, workload.scale_factor, directory / "tpch", rows)
        keys = pq.read_table(made.file(), columns=[column])[column].to_numpy()[:rows] - 1
        beside = kept.with_suffix(".unfinished.npy")
        np.save(beside, keys.astype(np.int64))
        beside.replace(kept)
    listed: Ints = np.load(kept)
    return listed


def _longitudes(reports: WeatherReports) -> Ints:
    parts = [batch["longitude"].to_numpy() for batch in reports.batches()]
    return np.concatenate(parts).astype(np.int64)


@functools.lru_cache(maxsize=2)
def _weather_counts(workload: Workload) -> Ints:
    """Return how often each longitude occurs in R, extrapolated from a sample of the reports."""
    rows = min(_WEATHER_SAMPLE, workload.rows)
    sample = WeatherReports(rows, months=(4, 8), row_bytes=40, seed=workload.seed)
    counts = np.bincount(_longitudes(sample), minlength=LONGITUDES)
    scaled: Ints = np.rint(counts * (workload.rows / rows)).astype(np.int64)
    return scaled


@functools.lru_cache(maxsize=2)
def whole_keys(workload: Workload) -> tuple[Ints, Floats]:
    """Return, for each n, how many rows of R and which share of the stream the best n weather keys have.

    The best keys are those with the highest share of the stream per row.
    """
    keys = key_source(workload, Path())
    assert isinstance(keys, ListedKeys)
    rows = _weather_counts(workload)
    shares = np.bincount(keys.listed, minlength=rows.size) / keys.listed.size
    order = np.argsort(-shares / np.maximum(rows, 1))
    order = order[rows[order] > 0]
    return np.cumsum(rows[order]), np.cumsum(shares[order])


def _real_relation(workload: Workload, directory: Path) -> Relation:
    """Open R in ``directory``; if it does not exist yet, build it."""
    generated = workload.kind in ("weather", "tpch-orders", "tpch-lineitem")
    shape = {
        "kind": workload.kind if generated else "master",
        "rows": workload.rows, "row_bytes": workload.row_bytes, "rows_per_key": workload.rows_per_key,
        "fill": workload.fill, "seed": workload.seed,
    }  # fmt: skip
    path = directory / "relations" / f"{shape['kind']}-{workload.rows}-{digest(shape)}"
    if not path.exists():
        beside = path.with_name(f"{path.name}.unfinished")
        shutil.rmtree(beside, ignore_errors=True)
        Relation.build(
            _reader(_master_batches(workload, directory)), beside, KEY, fill=workload.fill, encoding="plain"
        ).close()
        beside.rename(path)
    return Relation.open(path)


def _master_batches(workload: Workload, directory: Path) -> Iterator[pa.RecordBatch]:
    match workload.kind:
        case "weather":
            table = WeatherReports(workload.rows, row_bytes=workload.row_bytes, seed=workload.seed)
            yield from (_with_key(batch, "longitude", 0) for batch in table.batches())
        case "tpch-orders" | "tpch-lineitem":
            name, key = ("customer", "c_custkey") if workload.kind == "tpch-orders" else ("part", "p_partkey")
            made = TpchTable(name, workload.scale_factor, directory / "tpch")
            yield from (_with_key(batch, key, -1) for batch in made.batches())
        case _:
            yield from MasterTable(
                workload.rows, workload.rows_per_key, workload.row_bytes, layout="minimal", key=KEY, seed=workload.seed
            ).batches()


def _with_key(batch: pa.RecordBatch, column: str, shift: int) -> pa.RecordBatch:
    """Return the batch with a column renamed to the key and numbered as in the stream."""
    at = batch.schema.get_field_index(column)
    keys = batch.column(at).to_numpy().astype(np.int64) + shift
    return batch.set_column(at, pa.field(KEY, pa.int64()), pa.array(keys))


def _reader(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    first = next(batches)

    def again() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, again())
