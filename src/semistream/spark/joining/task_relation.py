"""R in a task: which version to read, and how to open the shards that can contain the task's keys."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from semistream.core.errors import NotARelationError, UnsupportedJoinError
from semistream.relation.relation import Relation
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.moments import keep_under, name_of_batch
from semistream.relation.versions.pins import PINS, Pin, pin_version

__all__ = ["TaskRelation"]


@dataclass(frozen=True)
class TaskRelation:
    """A relation that tasks open, as planned on the driver."""

    path: str
    version: int
    schema: pa.Schema
    """R's columns."""
    key: tuple[str, ...]
    """Its key columns."""
    pins: str | None = None
    """Directory for pins if the relation's own directory cannot be written."""
    local: int | float | str | None = None
    """What a machine may keep on its disk of a relation that is in a store."""
    by: tuple[str, ...] | None = None
    """The secondary index that is read, if it is not R in the order of its key."""
    layouts: RowLayouts | None = None
    """The columns of the planned version: later versions are shown with them. None if a query takes any columns."""

    @property
    def identity(self) -> str:
        """What is read, in any version: the relation's path, and the index."""
        return self.path if self.by is None else f"{self.path} by {self.by}"

    def pin(self, context: TaskContext, moment: int | None, on: Sequence[str]) -> Pin:
        """Return the version to read: that of the micro-batch, or without a ``moment`` the version the driver saw.

        Parameters
        ----------
        context
            Context of the task, which usually knows the query and the batch.
        moment
            The time of the micro-batch; replays have the same time.
        on
            The stream's key columns, which distinguish joins with the same relation.
        """
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        number = None if batch is None else int(batch)
        path, elsewhere = place_of(self.path), None if self.pins is None else Path(self.pins)
        if moment is not None:
            places: tuple[Place, ...] = (path / PINS,) if elsewhere is None else (path / PINS, elsewhere)
            join = hashlib.sha256(repr((self.path, tuple(on))).encode()).hexdigest()[:12]
            named = name_of_batch(places, join, moment, query, number)
            pin = pin_version(path, *named, elsewhere=elsewhere)
            if query is not None and number is not None:
                keep_under(places, named, (query, number))
            return pin
        if query is None or number is None:
            return Pin(self.version)
        return pin_version(path, query, number, elsewhere=elsewhere)

    def edition(self, pin: Pin) -> int:
        """Return a unique number for a version, even if the relation was rebuilt with the same version number."""
        try:
            written = (place_of(self.path) / manifests.name_of(pin.version)).stat().st_mtime_ns
        except OSError:
            return pin.version
        return zlib.crc32(f"{pin.version} {written}".encode()) | 1 << 32

    def opened(self, pin: Pin, part: int = 0, parts: int = 1) -> Relation:
        """Open the shards of a version that can contain keys of one of ``parts``; with one part, all shards.

        A key is in part ``hash % parts`` and in shard ``hash % shards``. So the part determines the shard modulo the
        greatest common divisor of the two numbers: a single shard, if ``parts`` is a multiple of the shards.
        """

        def numbers(shards: int) -> range:
            step = math.gcd(parts, shards)
            return range(part % step, shards, step)

        try:
            return Relation.open(
                self.path, version=pin.version, shards=numbers, local=self.local, by=self.by, shown_as=self.layouts
            )  # fmt: skip
        except NotARelationError as error:
            raise NotARelationError(
                f"this micro-batch began with version {pin.version} of {self.path}, and a replay must read the same "
                f"version: {error}. Restore that version from a copy. Or, if the sink has no rows of this batch yet, "
                "remove this query's directory .pins/QUERY there; the batch then reads the newest version"
            ) from error

    def value_names(self, columns: Sequence[str] | None) -> list[str]:
        """Return R's columns in the results, with R's names: the requested ones, or all but the key."""
        return [name for name in self.schema.names if name not in self.key] if columns is None else list(columns)

    def check_columns(self, version: int, schema: pa.Schema, key: Sequence[str], columns: Sequence[str] | None) -> None:
        """Refuse a version that lacks planned ``columns`` (None: all), or has them with different types."""
        if schema == self.schema and tuple(key) == self.key:
            return
        needed = {*self.schema.names, *schema.names} if columns is None else {*columns, *self.key}
        wanted = {part.name: part.type for part in self.schema if part.name in needed}
        found = {part.name: part.type for part in schema if part.name in needed}
        if found != wanted or tuple(key) != self.key:
            changed = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name)) or ["the key"]
            raise UnsupportedJoinError(
                f"version {version} of {self.path} has other columns than this query was started with: "
                f"{', '.join(changed)}. If columns were dropped or changed, or the relation was just rebuilt, restart "
                "the query from its checkpoint. "
                f"If this batch began with that version, pass Relation.open(path, version={version}) to join until "
                "the batch is done, then the path again"
            )

    def order_of(self, relation: Relation, width: int, columns: Sequence[str] | None) -> list[int] | None:
        """Return the order that puts R's columns, after ``width`` others, as planned; None if they already are.

        Refuses a version without the planned columns, or with different types.
        """
        self.check_columns(relation.version, relation.schema, relation.key.names, columns)
        if columns is not None or (relation.schema == self.schema and relation.key.names == self.key):
            return None
        names = relation.value_schema.names
        return [*range(width), *(width + names.index(name) for name in self.value_names(columns))]

    def check_answers(self, relation: Relation, *, dated: bool) -> None:
        """Refuse a version in which a row can have several matches; an as-of join needs a history instead."""
        if dated and relation.times is None:
            raise UnsupportedJoinError(
                f"version {relation.version} of {self.path} does not say when its rows are valid, but this query joins "
                "as of a time; build the relation with valid_from, and restart the query from its checkpoint"
            )
        if not dated and not relation.unique:
            raise UnsupportedJoinError(
                f"version {relation.version} of {self.path} has several rows per key, but it had one row per key when "
                "this query was started; restart the query from its checkpoint"
            )
