"""The data of ``semistream bench spark``: the papers' R and stream, in files that later runs reuse.

::

    DIRECTORY/product-10000000x128/           one R
        master/          R as Parquet, for Spark's own join
        relation-2/      R as a relation of two shards, built from these files by a Spark job
        build-2.json     the time of this build
        stream-1-random-20000000-100000-in-groups/  Zipf 1, one file per micro-batch
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from semistream.core.arguments import check_at_least
from semistream.core.errors import NotARelationError
from semistream.core.units import check_memory, format_bytes
from semistream.joins import find
from semistream.relation.relation import Relation
from semistream.spark.relations.build_job import build
from semistream.workloads.keys.key_source import Shape
from semistream.workloads.sales import SalesStream
from semistream.workloads.table_source import TableSource
from semistream_lab.benchmarks.join_rates import BenchError
from semistream_lab.workloads.masters import Layout, master
from semistream_lab.workloads.workload import Workload, zipf

__all__ = ["FEW_ROWS", "TURNS", "BenchPlan", "build_relation", "of_turn", "write_files", "write_small"]

Report = Callable[[int], None]
_Item = TypeVar("_Item")

_FILE_ROWS = 1_000_000
_GROUP_ROWS = 1 << 16
"""Rows per row group of the stream's files. One task reads a group; several tasks share a larger file."""
_LARGER, _LARGEST = 10, 1_000_000
"""Micro-batches that fill the cache are `_LARGER` times as large as the measured ones, up to `_LARGEST` rows."""
TURNS = 3
"""Number of turns of each of the two joins."""
FIXED_QUERIES = 8
"""Queries for fixed costs: four with empty micro-batches, four with small ones."""
FEW_ROWS = 10
"""Rows of a small micro-batch."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Parameters
    ----------
    rows, row_bytes, layout
        Rows of R, bytes of values per row including the key, and columns; see
        `semistream_lab.workloads.masters.master`. Only ``random`` and ``product`` have ``row_bytes``.
    batch_rows
        Stream tuples per micro-batch.
    memory, algorithm
        As in `semistream.spark.join`. None: its default algorithm.
    exponent, shape
        Skew of the stream's keys, and the place of frequent keys in R. ``random``: anywhere, as in real master data.
        ``noperm``: next to each other, as in the papers, which is easier.
    batches, warm_up
        Number of measured micro-batches, and number of micro-batches of the same size before them.
    fill_rows
        Stream tuples that our join gets before the warm-up, in larger micro-batches. The stream fills the cache. The
        cache holds the most frequent keys only after several times as many tuples as R has rows.
    static_batches, static_warm_up
        The same for Spark's own join. In the second and third turn, one micro-batch runs before the measured ones.
    small_batches, small_warm_up
        The same for micro-batches with few or no rows.
    shards
        Shards of R; one task per shard.
    cores, heap
        Number of cores and heap size of Spark.
    """

    rows: int = 10_000_000
    row_bytes: int = 128
    layout: Layout = "product"
    batch_rows: int = 100_000
    memory: str = "5%"
    algorithm: str | None = None
    exponent: float = 1.0
    shape: Shape = "random"
    batches: int = 25
    warm_up: int = 60
    fill_rows: int = 20_000_000
    static_batches: int = 9
    static_warm_up: int = 3
    small_batches: int = 20
    small_warm_up: int = 5
    shards: int = 2
    cores: int = 2
    heap: str = "6g"
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("rows", "batch_rows", "batches", "static_batches", "small_batches", "shards", "cores"):
            check_at_least(1, **{name: getattr(self, name)})
        for name in ("warm_up", "static_warm_up", "small_warm_up", "fill_rows"):
            check_at_least(0, **{name: getattr(self, name)})
        check_memory(self.memory)
        if self.algorithm is not None:
            find(self.algorithm)
        self.workload(1)  # refuses invalid values

    @property
    def file_rows(self) -> list[int]:
        """Rows of the stream's files, one file per micro-batch; files that fill the cache are first."""
        usual = max(self.warm_up + self.batches, self.static_warm_up + self.static_batches)
        return [self._large] * self.filling + [self.batch_rows] * usual

    @property
    def filling(self) -> int:
        """Number of files that fill the cache."""
        return -(-self.fill_rows // self._large)

    @property
    def _large(self) -> int:
        return max(self.batch_rows, min(_LARGER * self.batch_rows, _LARGEST))

    @property
    def micro_batches(self) -> int:
        """Total number of micro-batches of all queries."""
        measured = self.warm_up + self.batches + self.static_warm_up + self.static_batches
        # Spark's join is a new query in each turn, and its first micro-batch does not count
        measured += (min(self.static_batches, TURNS) - 1) * min(self.static_warm_up, 1)
        return self.filling + measured + FIXED_QUERIES * (self.small_warm_up + self.small_batches)

    def workload(self, stream_rows: int) -> Workload:
        """Both sides of the join."""
        return zipf(self.rows, stream_rows, self.exponent, self.shape, row_bytes=self.row_bytes, seed=self.seed)

    def source(self, directory: Path) -> TableSource:
        """R's rows."""
        return master(self.layout, self.rows, row_bytes=self.row_bytes, seed=self.seed, directory=directory / "tpch")

    def place(self, directory: Path) -> Path:
        """Return the directory of the files of this R."""
        size = f"x{self.row_bytes}" if self.layout in ("random", "product") else ""
        return directory / f"{self.layout}-{self.rows}{size}"

    def master(self, directory: Path) -> Path:
        """Return the path of R as Parquet files."""
        return self.place(directory) / "master"

    def relation(self, directory: Path) -> Path:
        """Return the path of R as a relation."""
        return self.place(directory) / f"relation-{self.shards}"

    def stream(self, directory: Path) -> Path:
        """Return the path of the stream's files."""
        name = f"stream-{self.exponent:g}-{self.shape}-{self.fill_rows}-{self.batch_rows}-in-groups"
        return self.place(directory) / name


def of_turn(files: list[_Item], turn: int) -> list[_Item]:
    """Return the files of a turn.

    Files of later turns are newer, because Spark reads files by age.
    """
    return files[turn * len(files) // TURNS : (turn + 1) * len(files) // TURNS]


def write_files(plan: BenchPlan, directory: Path, wrote: Report = lambda _: None) -> None:
    """Write R and the stream as Parquet files, unless they exist.

    ``wrote`` is called with numbers of rows.
    """
    place = plan.place(directory)
    place.mkdir(parents=True, exist_ok=True)
    _check_room(plan, directory)
    plan.master(directory).mkdir(exist_ok=True)
    counts = [min(_FILE_ROWS, plan.rows - start) for start in range(0, plan.rows, _FILE_ROWS)]
    files = [plan.master(directory) / f"part-{number:05d}.parquet" for number in range(len(counts))]
    if all(file.exists() for file in files):
        wrote(plan.rows)
    else:
        _write_master(plan.source(directory), list(zip(files, counts, strict=True)), wrote)
    _write_stream(plan, directory, wrote)


def _write_master(source: TableSource, files: list[tuple[Path, int]], wrote: Report) -> None:
    batches, rest = source.batches(), pa.Table.from_batches([], source.schema)
    for file, count in files:
        parts = [rest]
        while sum(part.num_rows for part in parts) < count:
            parts.append(pa.Table.from_batches([next(batches)]))
        whole = pa.concat_tables(parts)
        if not file.exists():
            _write(whole.slice(0, count).combine_chunks(), file)
        rest = whole.slice(count)
        wrote(count)


def _write_stream(plan: BenchPlan, directory: Path, wrote: Report) -> None:
    plan.stream(directory).mkdir(exist_ok=True)
    source, at = plan.workload(sum(plan.file_rows)).stream, 0
    assert isinstance(source, SalesStream)
    cursor = source.arrivals.cursor()
    for number, rows in enumerate(plan.file_rows):
        file = plan.stream(directory) / f"part-{number:05d}.parquet"
        if not file.exists():
            _write(pa.Table.from_batches(source.between(at, at + rows, cursor)), file, _GROUP_ROWS)
        at += rows
        wrote(rows)


def write_small(plan: BenchPlan, folder: Path, rows: int, count: int) -> None:
    """Write ``count`` micro-batches of ``rows`` rows each."""
    folder.mkdir(parents=True)
    whole = plan.workload(max(1, rows * count)).stream.table()
    for number in range(count):
        _write(whole.slice(number * rows, rows), folder / f"part-{number:05d}.parquet")


def build_relation(spark: SparkSession, plan: BenchPlan, directory: Path) -> float:
    """Build the relation R with a Spark job, unless it exists; return the seconds of the build."""
    path, note = plan.relation(directory), plan.place(directory) / f"build-{plan.shards}.json"
    try:
        with Relation.open(path) as relation:
            if relation.row_count == plan.rows and note.exists():
                return float(json.loads(note.read_text())["seconds"])
    except NotARelationError:
        pass
    began = time.perf_counter()
    master = spark.read.parquet(str(plan.master(directory)))
    build(master, path, plan.workload(1).master_key, shards=plan.shards, overwrite=path.exists()).close()
    seconds = time.perf_counter() - began
    note.write_text(json.dumps({"seconds": seconds}) + "\n")
    return seconds


def _write(table: pa.Table, file: Path, group_rows: int | None = None) -> None:
    """Write a file that becomes visible only when it is complete."""
    unfinished = file.with_name(f".{file.name}")
    pq.write_table(table, unfinished, row_group_size=group_rows)
    os.replace(unfinished, file)


def _check_room(plan: BenchPlan, directory: Path) -> None:
    """Check that the disk has enough space: R is stored twice, and sorting it needs the same space again."""
    if plan.relation(directory).exists():
        return
    needed, free = 3 * plan.rows * (plan.row_bytes + 16), shutil.disk_usage(directory).free
    if needed > free:
        raise BenchError(
            f"R and its source files need about {format_bytes(needed)}, and {directory} has {format_bytes(free)} "
            "free; give another directory, or fewer rows"
        )
