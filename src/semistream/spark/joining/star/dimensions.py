"""The dimensions of a star in a task, and look-ups in dimensions that are held whole."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from semistream.core.arrays import Bools, Slots
from semistream.core.statistics import JoinStatistics
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.relation.devices.device import DeviceCounters
from semistream.relation.rows.selection import keep_rows
from semistream.relation.versions.pins import Pin
from semistream.spark.joining.held.image import RESULTS, Image
from semistream.spark.joining.held.images import open_image
from semistream.spark.joining.join_task import JoinTask
from semistream.spark.joining.missing import After
from semistream.spark.joining.task_relation import TaskRelation
from semistream.spark.monitoring.metrics import counters_of_held
from semistream.spark.relations.types import fit

__all__ = ["HeldDimension", "HeldImages", "LookUp", "ShuffledDimension"]

_FEW_ROWS, _MOST_ROWS = 256, 1 << 14
"""Minimum and maximum number of rows to look up together.

100,000 rows with five dimensions took 580 ms of CPU in batches of 256 rows, 160 ms of 1,024, 86 ms of 4,096, 53 ms of
16,384, and 76 ms of 65,536.
"""
_MISSING = 64
"""Maximum number of distinct missing keys that a task counts per dimension."""


@dataclass(frozen=True)
class HeldDimension:
    """A dimension that is held whole on each machine."""

    relation: TaskRelation
    on: tuple[str, ...]
    """Names of the stream's key columns."""
    keys: tuple[int, ...]
    """Positions of the key columns among the columns that are sent to Python; then of the time, if ``dated``."""
    columns: tuple[str, ...]
    """Requested columns of R, with R's names."""
    added: pa.Schema
    """The same columns in the result."""
    way: After
    """What happens to rows without a match."""
    memory: int
    """Bytes for R and the results of all tasks."""
    tasks: int
    """Tasks that run in parallel."""
    counted: bool
    missing_keys: bool
    dated: bool = False
    """Whether R is a history, and each row is joined with the version that was valid at the row's time."""

    @property
    def image(self) -> tuple[str, bool]:
        """What distinguishes images: dimensions with equal values share one."""
        return self.relation.identity, self.dated


@dataclass(frozen=True)
class ShuffledDimension:
    """The dimension by whose key the stream was shuffled; it is read by page, within a budget."""

    task: JoinTask
    keys: tuple[int, ...]
    way: After

    @property
    def added(self) -> pa.Schema:
        """R's columns in the result."""
        return self.task.added

    @property
    def counted(self) -> bool:
        """Whether the task reports what it did."""
        return self.task.counted


class HeldImages:
    """The images that a task needs: each relation is pinned and opened once, however many dimensions use it."""

    def __init__(self, context: TaskContext, moment: int | None) -> None:
        self._context, self._moment = context, moment
        self._open: dict[tuple[str, bool], Image] = {}
        self._pins: list[Pin] = []

    def of(self, dimension: HeldDimension) -> tuple[Image, DeviceCounters | None]:
        """Return the image of a dimension; the first time, also what was read to build it, which may be nothing."""
        relation, made = dimension.relation, None
        name = dimension.image
        image = self._open.get(name)
        if image is None:
            pin = relation.pin(self._context, self._moment, dimension.on)
            self._pins.append(pin)
            query = self._context.getLocalProperty("sql.streaming.queryId")
            most = dimension.memory * (RESULTS - 1) // RESULTS
            image, made = open_image(relation, pin, query, most, dated=dimension.dated)
            self._open[name] = image
        relation.check_columns(image.version, image.schema, image.key, dimension.columns)
        return image, made

    def done(self) -> None:
        """Wait until the pins of the versions that were read are on disk."""
        for pin in self._pins:
            pin.wait()


class LookUp:
    """Looks keys up in one held dimension, and counts rows, hits and misses."""

    def __init__(self, dimension: HeldDimension, images: HeldImages) -> None:
        began = time.perf_counter()
        self.dimension = dimension
        self._image, made = images.of(dimension)
        self._held = 0 if made is None else self._image.nbytes  # if two dimensions share an image, only one counts it
        self._gather = self._image.gather(dimension.columns)
        self._missing = MissingKeys(_MISSING) if dimension.counted and dimension.missing_keys else None
        self._results = 0
        self.stats = JoinStatistics()
        if made is not None:
            self.stats.pages_read, self.stats.reads, self.stats.bytes_read = made.pages, made.reads, made.bytes
            self.stats.io_seconds, self.stats.store_requests = made.seconds, made.requests
            self.stats.store_bytes, self.stats.local_pages = made.fetched_bytes, made.local_pages
        self.stats.busy_seconds = time.perf_counter() - began

    def rows_at_once(self, sharing: int) -> int:
        """Return how many rows to look up together, if ``sharing`` dimensions use the image.

        The results of all tasks get half of what the image leaves, at least an eighth of the memory.
        """
        image, dimension = self._image, self.dimension
        row = image.row_bytes + 8 * len(dimension.added) + 1
        room = max(dimension.memory // RESULTS, (dimension.memory - image.nbytes) // (2 * sharing))
        return min(max(_FEW_ROWS, room // dimension.tasks // row), _MOST_ROWS)

    def find(self, columns: list[pa.Array], asked: Bools | None) -> Slots:
        """Return the place of each row's match, -1 if it has none or the row is not ``asked`` for."""
        began = time.perf_counter()
        keys = pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])
        places, valid = self._image.find(keys, asked)
        stats, rows = self.stats, keys.num_rows if asked is None else int(np.count_nonzero(asked))
        unmatched = places < 0 if asked is None else (places < 0) & asked
        missing, null = int(np.count_nonzero(unmatched)), np.count_nonzero(~valid if asked is None else ~valid & asked)
        stats.steps += 1
        stats.rows_in += rows
        stats.rows_done += rows
        stats.cache_hits += rows
        stats.null_keys += int(null)
        stats.probes += rows - int(null)
        stats.unmatched += missing
        stats.rows_out += rows if self.dimension.way == "null" else rows - missing
        if missing and self._missing is not None:
            self._missing.add(keep_rows(keys, unmatched), keys.schema.names[: len(self.dimension.on)])
        stats.busy_seconds += time.perf_counter() - began
        return places

    def columns(self, places: Slots) -> list[pa.Array]:
        """Return the columns of the rows at these places, NULL where the place is -1."""
        began = time.perf_counter()
        made = self._gather(self._image.data, places.astype(np.int64))
        added = self.dimension.added
        if [column.type for column in made] != added.types:
            made = fit(pa.RecordBatch.from_arrays(made, names=added.names), added).columns
        self._results = max(self._results, sum(column.nbytes for column in made))
        self.stats.busy_seconds += time.perf_counter() - began
        return made

    def counters(self, part: int) -> pa.Array:
        """Return the counters of the task."""
        image = self._image
        return counters_of_held(
            self.stats, self._missing, held=self._held, results=self.dimension.tasks * self._results,
            memory=self.dimension.memory, shard=part, version=image.version,
        )  # fmt: skip
