"""What one task of a join does: its rows, with the rows of R that can match them, at the version of its micro-batch.

Rows come by the hash of their key, in as many parts as R had shards when the query was planned. A replayed batch may
have to read a version that was built with other shards: then a task opens all shards in which its keys can be.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import math
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from semistream.core.errors import NotARelationError, UnsupportedJoinError
from semistream.joins import Join, create
from semistream.joins.interface.missing_keys import MissingKeys
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.moments import keep_under, name_of_batch
from semistream.relation.versions.pins import PINS, Pin, pin_version
from semistream.spark.joining.arrival import Arrival
from semistream.spark.joining.missing import Marker
from semistream.spark.joining.warm import WarmShard, brought_up, shard_identity
from semistream.spark.joining.warm_cleanup import sweep_once
from semistream.spark.monitoring.metrics import sentinel, without_counters
from semistream.spark.relations.types import fit, together

__all__ = ["JoinTask", "parts_beside"]

_MISSING = 64
"""Missing keys that a task counts."""
_MOST_RESULTS = 1 << 20


def parts_beside(share: int, least: int, *, missing: bool) -> dict[str, int]:
    """Return what a task takes of its memory beside what needs ``least``, by the names of `JoinTask`."""
    spare = max(0, share - least) * 3 // 4
    room = min(MissingKeys(_MISSING).most_bytes, spare // 2) if missing else 0
    return {"missing": room, "results": min(share // 16, _MOST_RESULTS, spare - room)}


@dataclass(frozen=True)
class JoinTask:
    """What one task does: join the batches of its partition with the shards that can match them."""

    path: str
    version: int
    algorithm: str
    memory: int
    names: tuple[str, ...]
    added: pa.Schema
    settings: dict[str, Any] = field(default_factory=dict)
    counted: bool = False
    shards: int = 1
    """Parts that the stream comes in: R's shards when the query was planned."""
    stored: pa.Schema | None = None
    """R's columns when the query was planned, and which of them are the key."""
    key: tuple[str, ...] = ()
    cache: str | None = None
    """Name of the cache that is kept between micro-batches."""
    results: int = 0
    """Part of the memory in which small results are put together to larger ones."""
    missing: int = 0
    """Part of the memory in which missing keys are counted."""
    marker: Marker | None = None
    """Where dead letters are marked, if they are."""
    timed: bool = False
    """Whether rows arrive with the time of the micro-batch, which its replays have too."""
    pins: str | None = None
    """Where pins are if the relation's directory cannot be written."""
    local: int | float | str | None = None
    """What a machine may keep of a relation that is in a store."""
    missing_keys: bool = True
    """Whether the counters name keys that R does not have."""
    guests: int = 0
    look_up: int = 0
    """Parts of the memory for rows of hot keys that other shards have, and to look them up; 0 if there are none."""

    @property
    def value_names(self) -> list[str]:
        """R's columns that results have, as they are called there."""
        assert self.stored is not None
        columns = self.settings.get("columns")
        return [name for name in self.stored.names if name not in self.key] if columns is None else list(columns)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrivals: list[Arrival] = []
        rows = self._named(batches, arrivals)
        passed: deque[pa.RecordBatch] = deque()
        if self.marker is not None:
            rows = self.marker.unmarked(rows, passed)
        first = next(rows, None)
        if first is None:  # most shards of a small micro-batch: do not even open the relation
            return
        schema = pa.schema([*first.schema, *self.added])
        with self.at_work(arrivals[0], first) as (joined, order):
            rows = chain([first], rows)
            found = joined.process(rows) if self.marker is None else self.marker.results(joined, rows, passed)
            for result in together(found, self.results // 2):
                fitting = fit(result if order is None else result.select(order), schema)
                yield without_counters(fitting) if self.counted else fitting
        if self.counted:
            yield sentinel(joined, schema, arrivals[0].part)

    @contextmanager
    def at_work(self, arrival: Arrival, first: pa.RecordBatch) -> Iterator[tuple[Join, list[int] | None]]:
        """Have the join for the rows of a task, of which these are the first, and the order of its columns.

        When all has gone well, its cache is left to the next task, and the version that was read is on the disk.
        """
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        pin = self.pin(context, arrival.moment if self.timed else None)
        with self.opened(pin, arrival.part) as relation:
            order = self.order_of(relation, len(first.schema))
            with self._warm_shard(context, arrival.part, relation) as warm:
                joined = self._bound(relation, arrival.part, first, warm)
                yield joined, order
                if warm is not None:
                    warm.keep()
            pin.wait()
        set_modules_apart()

    def _named(self, batches: Iterator[pa.RecordBatch], arrivals: list[Arrival]) -> Iterator[pa.RecordBatch]:
        """Yield batches with the stream's names; how they arrived, which the last column says, goes elsewhere."""
        for batch in batches:
            if batch.num_rows == 0:
                continue
            last = batch.num_columns - 1
            if not arrivals:
                arrivals.append(Arrival.of(batch.column(last)))
            yield batch.remove_column(last).rename_columns(list(self.names))

    def _warm_shard(
        self, context: TaskContext, shard: int, relation: Relation
    ) -> AbstractContextManager[WarmShard | None]:
        """Return the cache that the last micro-batch has left, if there can be one."""
        query = context.getLocalProperty("sql.streaming.queryId")
        if self.cache is None or query is None or relation.shard_count != self.shards:
            return nullcontext()
        identity = shard_identity(relation.place, relation.stored, shard)
        warm = WarmShard.take(query, self.cache, shard, identity, room=self.memory)
        sweep_once()  # only now: after a restart this query's own caches look abandoned until one is taken
        return warm or nullcontext()

    def _bound(self, relation: Relation, shard: int, first: pa.RecordBatch, warm: WarmShard | None) -> Join:
        """Return the join, ready for its first rows; with a cache of its own if the warm one is not to be had."""
        options = self.settings if warm is None else {**self.settings, "arrays": warm}
        joined = create(self.algorithm, relation, memory=self.memory, **options)
        if self.counted and self.missing_keys:
            joined.watch_missing(MissingKeys(_MISSING))
            joined.budget.reserve("missing keys", self.missing)
        if self.results:
            joined.budget.reserve("results put together", self.results)
        if self.guests:
            joined.budget.reserve("rows of other shards", self.guests + self.look_up)
        changed = None
        if warm is not None and warm.left_by != warm.identity:
            changed = brought_up(relation.place, warm.left_by, relation.stored, shard)
            if changed is not None:
                warm.take_over(warm.left_by)
        try:
            joined.bind(first.schema, first)
        except OSError:
            if warm is None:
                raise
            warm.discard()
            return self._bound(relation, shard, first, None)
        if warm is not None and warm.attached and changed is not None:
            joined.forget_rows(changed)
        return joined

    def pin(self, context: TaskContext, moment: int | None) -> Pin:
        """Return the version to read: that of the micro-batch, or the one the driver saw."""
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        number = None if batch is None else int(batch)
        path, elsewhere = place_of(self.path), None if self.pins is None else Path(self.pins)
        if moment is not None:
            places: tuple[Place, ...] = (path / PINS,) if elsewhere is None else (path / PINS, elsewhere)
            join = hashlib.sha256(repr((self.path, self.settings["on"])).encode()).hexdigest()[:12]
            named = name_of_batch(places, join, moment, query, number)
            pin = pin_version(path, *named, elsewhere=elsewhere)
            if query is not None and number is not None:
                keep_under(places, named, (query, number))
            return pin
        if query is None or number is None:
            return Pin(self.version)
        return pin_version(path, query, number, elsewhere=elsewhere)

    def edition(self, pin: Pin) -> int:
        """Return what tells a version from any other, also from one of its number in a relation made anew there."""
        try:
            written = (place_of(self.path) / manifests.name_of(pin.version)).stat().st_mtime_ns
        except OSError:
            return pin.version
        return zlib.crc32(f"{pin.version} {written}".encode()) | 1 << 32

    def opened(self, pin: Pin, part: int, parts: int | None = None) -> Relation:
        """Open the shards of a version in which keys of a part can be: one, unless it has other shards.

        A key is in part ``hash % parts`` and in shard ``hash % shards``; so all that is known of the shard is its
        remainder by the greatest common divisor.
        """

        def numbers(shards: int) -> range:
            step = math.gcd(self.shards if parts is None else parts, shards)
            return range(part % step, shards, step)

        try:
            return Relation.open(self.path, version=pin.version, shards=numbers, local=self.local)
        except NotARelationError as error:
            raise NotARelationError(
                f"this micro-batch began with version {pin.version} of {self.path}, and a replay must read the same: "
                f"{error}. Put that version back from a copy; or remove the directory .pins/QUERY of this query there, "
                "and the batch is done with the newest version, which is right if the sink has nothing of it yet"
            ) from error

    def order_of(self, relation: Relation, width: int) -> list[int] | None:
        """Return the order of a join's columns in which R's are as planned, after ``width`` others; None: as they are.

        A version without them, or with other types, is refused.
        """
        assert self.stored is not None
        if relation.schema == self.stored and relation.key.names == self.key:
            return None
        columns = self.settings.get("columns")
        needed = {*self.stored.names, *relation.schema.names} if columns is None else {*columns, *self.key}
        wanted = {part.name: part.type for part in self.stored if part.name in needed}
        found = {part.name: part.type for part in relation.schema if part.name in needed}
        if found != wanted or relation.key.names != self.key:
            changed = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name)) or ["the key"]
            raise UnsupportedJoinError(
                f"version {relation.version} of {self.path} has other columns than this query was started with: "
                f"{', '.join(changed)}. If the relation was just rebuilt, start the query again from its checkpoint; "
                f"if this batch had begun with that version, give join Relation.open(path, "
                f"version={relation.version}) once, and the path again when it is done"
            )
        if columns is not None:
            return None
        names = relation.value_schema.names
        return [*range(width), *(width + names.index(name) for name in self.value_names)]


@functools.cache
def set_modules_apart() -> None:
    """Leave all that this process has loaded out of the search for garbage, once.

    Spark has a worker search its whole memory after every task. With compiled joins loaded that took longer than many a
    small task, and none of it is ever garbage.
    """
    gc.collect()
    gc.freeze()
