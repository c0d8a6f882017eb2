"""The data of ``semistream bench spark --as-of``: a history and a stream of events, in files that later runs reuse.

Version ``v`` of key ``k`` begins in the middle half of day ``v``, at a time that depends on both, and ends where the
next one begins. Each event has a key by Zipf's law, a version drawn uniformly, and a time at which that version was
valid. So every event has one match. It also has the number of that row, for the equality join with the same rows.

::

    DIRECTORY/history-10000000x128-5/         one R
        master/          R as Parquet, for Spark's own joins
        history-2/       R as a history of two shards, by key and time
        rows-2/          R by the number of a row
        events-1-20000000-100000/  Zipf 1, one file per micro-batch
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from semistream.core.arguments import check_at_least
from semistream.core.arrays import Ints
from semistream.core.errors import NotARelationError
from semistream.core.units import check_memory, format_bytes
from semistream.relation.relation import Relation
from semistream.spark.relations.build_job import build
from semistream.workloads import ZipfKeys
from semistream_lab.benchmarks.join_rates import BenchError

__all__ = ["AsOfPlan", "build_as_of", "write_as_of"]

Report = Callable[[int], None]

_DAY = 86_400_000_000
"""Microseconds between the versions of a key, on average."""
_FILE_ROWS = 1_000_000
_LARGEST = 1_000_000
"""Maximum rows of a micro-batch that fills the cache."""
_MOMENT = pa.timestamp("us", "UTC")
_OTHER_BYTES = 48
"""Bytes of a row of R without its name."""


@dataclass(frozen=True)
class AsOfPlan:
    """What to measure.

    Parameters
    ----------
    rows, versions, row_bytes
        Rows of R, rows per key, and approximate bytes per row.
    batch_rows, batches, warm_up
        Rows per micro-batch; number of measured micro-batches, and of micro-batches before them.
    fill_rows
        Rows that fill our caches first, in larger micro-batches.
    spark_batches
        Number of measured micro-batches of each of Spark's joins, after one that is not measured.
    memory, exponent, shards, cores, heap
        Budget of each of our joins; skew of the stream's keys; shards of R; cores and heap of Spark.
    """

    rows: int = 10_000_000
    versions: int = 5
    row_bytes: int = 128
    batch_rows: int = 100_000
    batches: int = 25
    warm_up: int = 30
    fill_rows: int = 20_000_000
    spark_batches: int = 6
    memory: str = "5%"
    exponent: float = 1.0
    shards: int = 2
    cores: int = 2
    heap: str = "6g"

    def __post_init__(self) -> None:
        check_at_least(1, rows=self.rows, versions=self.versions, batch_rows=self.batch_rows, batches=self.batches)
        check_at_least(1, spark_batches=self.spark_batches, shards=self.shards, cores=self.cores)
        check_at_least(0, warm_up=self.warm_up, fill_rows=self.fill_rows)
        check_memory(self.memory)

    @property
    def keys(self) -> int:
        """Number of keys."""
        return max(1, self.rows // self.versions)

    @property
    def file_rows(self) -> list[int]:
        """Rows of the stream's files; files that fill the caches are first."""
        large = max(self.batch_rows, min(10 * self.batch_rows, _LARGEST))
        filling = -(-self.fill_rows // large)
        return [large] * filling + [self.batch_rows] * (self.warm_up + max(self.batches, self.spark_batches + 1))

    def place(self, directory: Path) -> Path:
        """Return the directory of the files of this R."""
        return directory / f"history-{self.rows}x{self.row_bytes}-{self.versions}"

    def master(self, directory: Path) -> Path:
        """Return the path of R as Parquet files."""
        return self.place(directory) / "master"

    def relation(self, directory: Path, name: str) -> Path:
        """Return the path of R as a relation: ``history``, or ``rows``."""
        return self.place(directory) / f"{name}-{self.shards}"

    def stream(self, directory: Path) -> Path:
        """Return the path of the stream's files."""
        return self.place(directory) / f"events-{self.exponent:g}-{self.fill_rows}-{self.batch_rows}"


def _begins(keys: Ints, versions: Ints) -> Ints:
    """Return when versions of keys begin, in microseconds."""
    return versions * _DAY + _DAY // 4 + (keys * 2_654_435_761 + versions * 40_503) % (_DAY // 2)


def _master(plan: AsOfPlan, start: int, count: int) -> pa.Table:
    """Return rows of R."""
    row = np.arange(start, start + count)
    keys, versions = row // plan.versions, row % plan.versions
    ends = pa.array(_begins(keys, versions + 1), pa.int64(), mask=versions == plan.versions - 1)
    length = max(1, plan.row_bytes - _OTHER_BYTES)
    letters = np.random.default_rng(start).integers(97, 123, count * length, np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * length
    names = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
    return pa.table({
        "id": keys, "since": pa.array(_begins(keys, versions)).cast(_MOMENT), "until": ends.cast(_MOMENT), "row": row,
        "price": row * 3, "name": names,
    })  # fmt: skip


def _events(plan: AsOfPlan, start: int, count: int) -> pa.Table:
    """Return events of the stream."""
    random = np.random.default_rng([start, 1])
    keys = ZipfKeys(plan.keys, plan.exponent, "random", seed=1).keys(start, count)
    versions = random.integers(0, plan.versions, count)
    begins, ends = _begins(keys, versions), _begins(keys, versions + 1)
    at = begins + (random.random(count) * (ends - begins)).astype(np.int64)
    return pa.table({
        "event": np.arange(start, start + count), "id": keys, "at": pa.array(at).cast(_MOMENT),
        "row": keys * plan.versions + versions,
    })  # fmt: skip


def write_as_of(plan: AsOfPlan, directory: Path, wrote: Report = lambda _: None) -> None:
    """Write R and the stream as Parquet files, unless they exist.

    ``wrote`` is called with numbers of rows.
    """
    for folder in (plan.master(directory), plan.stream(directory)):
        folder.mkdir(parents=True, exist_ok=True)
    needed, free = 4 * plan.rows * plan.row_bytes, shutil.disk_usage(directory).free
    if needed > free and not plan.relation(directory, "rows").exists():
        raise BenchError(
            f"R and its source files need about {format_bytes(needed)}, and {directory} has {format_bytes(free)} "
            "free; give another directory, or fewer rows"
        )
    total = plan.keys * plan.versions
    for number, start in enumerate(range(0, total, _FILE_ROWS)):
        count = min(_FILE_ROWS, total - start)
        _write(plan.master(directory) / f"part-{number:05d}.parquet", partial(_master, plan, start, count))
        wrote(count)
    start = 0
    for number, count in enumerate(plan.file_rows):
        _write(plan.stream(directory) / f"part-{number:05d}.parquet", partial(_events, plan, start, count))
        start += count
        wrote(count)


def build_as_of(spark: SparkSession, plan: AsOfPlan, directory: Path) -> None:
    """Build both relations with Spark jobs, unless they exist."""
    for name, key, times in (("history", "id", ("since", "until")), ("rows", "row", (None, None))):
        path = plan.relation(directory, name)
        try:
            Relation.open(path).close()
        except NotARelationError:
            master = spark.read.parquet(str(plan.master(directory)))
            build(
                master, path, key, shards=plan.shards, overwrite=path.exists(), valid_from=times[0], valid_to=times[1]
            ).close()


def _write(file: Path, make: Callable[[], pa.Table]) -> None:
    """Write a file that becomes visible only when it is complete, unless it exists."""
    if not file.exists():
        unfinished = file.with_name(f".{file.name}")
        pq.write_table(make(), unfinished, row_group_size=1 << 16)
        os.replace(unfinished, file)
