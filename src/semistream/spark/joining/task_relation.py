"""R as a task sees it: which version to read, and how to open the shards in which its keys can be."""

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
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.moments import keep_under, name_of_batch
from semistream.relation.versions.pins import PINS, Pin, pin_version

__all__ = ["TaskRelation"]


@dataclass(frozen=True)
class TaskRelation:
    """A relation that tasks open, as it was when the query was planned."""

    path: str
    version: int
    schema: pa.Schema
    """R's columns."""
    key: tuple[str, ...]
    """The columns that are its key."""
    pins: str | None = None
    """Where pins are if the relation's directory cannot be written."""
    local: int | float | str | None = None
    """What a machine may keep of a relation that is in a store."""

    def pin(self, context: TaskContext, moment: int | None, on: Sequence[str]) -> Pin:
        """Return the version to read: that of the micro-batch, or without a ``moment`` the one the driver saw.

        Parameters
        ----------
        context
            Of the task, which knows the query and the batch, as a rule.
        moment
            The time of the micro-batch, which its replays have too.
        on
            The stream's key, which tells joins with one relation apart.
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
        """Return what tells a version from any other, also from one of its number in a relation built again there."""
        try:
            written = (place_of(self.path) / manifests.name_of(pin.version)).stat().st_mtime_ns
        except OSError:
            return pin.version
        return zlib.crc32(f"{pin.version} {written}".encode()) | 1 << 32

    def opened(self, pin: Pin, part: int = 0, parts: int = 1) -> Relation:
        """Open the shards of a version in which keys of one of ``parts`` can be; with one part, all of them.

        A key is in part ``hash % parts`` and in shard ``hash % shards``. So only the remainder of the shard by the
        greatest common divisor of both is known: one shard, if ``parts`` is a multiple of the shards.
        """

        def numbers(shards: int) -> range:
            step = math.gcd(parts, shards)
            return range(part % step, shards, step)

        try:
            return Relation.open(self.path, version=pin.version, shards=numbers, local=self.local)
        except NotARelationError as error:
            raise NotARelationError(
                f"this micro-batch began with version {pin.version} of {self.path}, and a replay must read the same: "
                f"{error}. Put that version back from a copy; or remove the directory .pins/QUERY of this query there, "
                "and the batch is done with the newest version, which is right if the sink has nothing of it yet"
            ) from error

    def value_names(self, columns: Sequence[str] | None) -> list[str]:
        """Return R's columns that results have, as R names them: those asked for, or all but the key."""
        return [name for name in self.schema.names if name not in self.key] if columns is None else list(columns)

    def check_columns(self, version: int, schema: pa.Schema, key: Sequence[str], columns: Sequence[str] | None) -> None:
        """Refuse a version without the ``columns`` that were planned, None being all, or with other types."""
        if schema == self.schema and tuple(key) == self.key:
            return
        needed = {*self.schema.names, *schema.names} if columns is None else {*columns, *self.key}
        wanted = {part.name: part.type for part in self.schema if part.name in needed}
        found = {part.name: part.type for part in schema if part.name in needed}
        if found != wanted or tuple(key) != self.key:
            changed = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name)) or ["the key"]
            raise UnsupportedJoinError(
                f"version {version} of {self.path} has other columns than this query was started with: "
                f"{', '.join(changed)}. If the relation was just rebuilt, start the query again from its checkpoint; "
                f"if this batch had begun with that version, give join Relation.open(path, version={version}) once, "
                "and the path again when it is done"
            )

    def order_of(self, relation: Relation, width: int, columns: Sequence[str] | None) -> list[int] | None:
        """Return the order of a join's columns in which R's are as planned, after ``width`` others; None: as they are.

        A version without them, or with other types, is refused.
        """
        self.check_columns(relation.version, relation.schema, relation.key.names, columns)
        if columns is not None or (relation.schema == self.schema and relation.key.names == self.key):
            return None
        names = relation.value_schema.names
        return [*range(width), *(width + names.index(name) for name in self.value_names(columns))]

    def check_unique(self, relation: Relation) -> None:
        """Refuse a version with several rows for a key, if the query was planned with one for each."""
        if not relation.unique:
            raise UnsupportedJoinError(
                f"version {relation.version} of {self.path} has several rows for a key, and when this query was "
                "started it had one for each; start it again from its checkpoint"
            )
