"""Keeps a relation equal to a Delta or Iceberg table: a snapshot first, then one version of R for each commit.

::

    source   commit 41 ──▶ commit 42 ──▶ commit 43           R's manifest names the commit:
                │              │             │               a follower that was killed continues after it,
                ▼              ▼             ▼               and two followers never apply a commit twice
    R        version 1     version 2     version 3
             (snapshot)    (changes)     (changes)
"""

from __future__ import annotations

import dataclasses
import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import RelationBuildError
from semistream.core.units import parse_bytes
from semistream.relation import builder
from semistream.relation.committing import commit_compacted, in_columns_of
from semistream.relation.evolving import evolved_as
from semistream.relation.followed.applying import Applied, TooManyPagesError, apply_difference, spill_directory
from semistream.relation.followed.delta_source import DeltaSource
from semistream.relation.followed.difference import Difference
from semistream.relation.followed.iceberg_source import IcebergSource
from semistream.relation.followed.source_table import Commit, FollowError, SourceTable
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import END, START
from semistream.relation.open_relation import OpenRelation
from semistream.relation.pages.encoding_choice import check_encoding
from semistream.relation.pages.shard_writer import PAGE_BYTES, check_page_bytes, check_shards
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.secondary.keeping_in_step import possible_indexes, with_indexes_in_step
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import FollowedCommit, followed_commit
from semistream.relation.storage.manifest import ENCODING, MOST_SHARDS, OPERATION, Manifest
from semistream.relation.stores.scratch import workplace
from semistream.relation.stores.store_path import place_of
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first

__all__ = ["Follower", "Lag", "Step", "open_source"]

_REBUILD_ABOVE = 0.5
"""Share of R's pages. If a commit changes more, R is built again, which reads better and writes hardly more."""
_COMPACT_ABOVE = 0.25
"""Share of R's pages that updates have changed, above which R is compacted. Changed pages cost a scan a seek each."""
_FEW_PAGES = 256
"""Pages. Changed pages up to this number are not compacted, however small R is."""
_FILES_OPEN = 0.5
"""Share of the files that this process may open. Each commit adds files; R is compacted if it has more."""


@dataclass(frozen=True)
class Lag:
    """How far a relation is behind its source."""

    commits: int
    """Commits of the source that R does not have."""
    seconds: float
    """Age of the oldest of these commits; 0 if there is none."""


@dataclass(frozen=True)
class Step:
    """One version that a follower committed."""

    version: int
    commit: str
    operation: str
    """``build`` if all rows were written, otherwise ``follow``."""
    rows: int
    """Rows of R."""
    upserted: int
    deleted: int
    bytes_written: int
    """Bytes of pages."""
    seconds: float
    lag: Lag


def open_source(
    table: str | os.PathLike[str], catalog: str | None = None, options: Mapping[str, str] | None = None
) -> SourceTable:
    """Return a Delta table, or the Iceberg table of a catalog."""
    if catalog is None:
        return DeltaSource(table, options)
    return IcebergSource(os.fspath(table), catalog, options)


class Follower:
    """Makes each commit of a table one version of a relation.

    Creating it checks the table and the relation, and writes nothing.

    Parameters
    ----------
    table
        Directory or address of a Delta table, or namespace and name of an Iceberg table.
    path
        The relation. It is built at the first step if it does not exist.
    key
        Key columns, which must be unique in the table. May be left out if the relation exists, or if the Iceberg table
        has identifier fields.
    catalog
        Name of the Iceberg catalog in pyiceberg's configuration. None for a Delta table.
    options
        Storage options of the Delta table, or properties of the Iceberg catalog.
    memory
        Bytes for sorting and for changed pages. Larger commits are applied in parts, which spill.
    rebuild
        Build R again from the newest commit at the first step, as a new version: the remedy if the source has removed
        commits that R needs, or if something else changed R.
    page_size
        Size of a page, as in `Relation.build`; used when R is built for the first time.
    fill
        Fraction of each page that is filled when R is built for the first time.
    shards
        Number of shards when R is built for the first time.
    encoding
        ``"plain"`` if R's columns must not be packed; see `Relation.build`. It applies to the first build, and stays.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        path: str | os.PathLike[str],
        key: str | Sequence[str] | None = None,
        *,
        catalog: str | None = None,
        options: Mapping[str, str] | None = None,
        memory: int | str = "512MB",
        rebuild: bool = False,
        page_size: int | str = PAGE_BYTES,
        fill: float = 1.0,
        shards: int = 1,
        encoding: str = "auto",
    ) -> None:
        check_encoding(encoding)
        self.path = place_of(path)
        self._memory = parse_bytes(memory)
        self._rebuild = rebuild
        self.source = open_source(table, catalog, options)
        manifest = self._manifest()
        self._built_as: dict[str, Any] = {"page_size": page_size, "fill": fill, "shards": shards, "encoding": encoding}
        if manifest is None:
            check_page_bytes(parse_bytes(page_size), fill)
            check_shards(shards)
            self._key = tuple(listed(key)) if key else self.source.key
        else:
            self._built_as = {"page_size": manifest.page_bytes, "fill": manifest.fill, "shards": len(manifest.shards)}
            self._key = manifest.key
            if key and tuple(listed(key)) != manifest.key:
                raise FollowError(
                    f"{self.path} has the key {', '.join(manifest.key)}, not {', '.join(listed(key))}; leave the key "
                    "out, or follow into another path"
                )
            if not rebuild:
                self._followed(manifest)
        if not self._key:
            raise FollowError(f"{self.source.table} declares no key; name the columns that identify a row (key)")
        self._schema(self.source.newest())

    def lag(self) -> Lag:
        """Return how far R is behind. Reads only metadata."""
        manifest = self._manifest()
        if manifest is None or self._rebuild:
            return Lag(1, 0.0)
        return _lag(self.source.commits_after(self._followed(manifest).commit))

    def step(self) -> Step | None:
        """Make the next commit of the source a version of R; return None if R has all commits."""

        def work() -> Step | None:
            began = time.perf_counter()
            manifest = self._manifest()
            if manifest is None or self._rebuild:
                commit = self.source.newest()
                made = self._built(commit, manifest)
                return _step(made, commit, Applied(made, upserted=made.rows, pages=_pages(made)), began, [])
            commits = self.source.commits_after(self._followed(manifest).commit)
            if not commits:
                return None
            applied = self._applied(manifest, commits[0])
            return _step(applied.manifest, commits[0], applied, began, commits[1:])

        done = until_first(self.path, work)
        self._rebuild = False
        if done is not None:
            self._compact_if_due()
        return done

    def _manifest(self) -> Manifest | None:
        if manifests.latest(self.path) is None:
            return None
        return manifests.load(self.path)

    def _followed(self, manifest: Manifest) -> FollowedCommit:
        """Return the commit that R has; raise if R does not follow this table."""
        found = followed_commit(manifest.properties)
        if found is None:
            raise FollowError(
                f"{self.path} holds a relation that follows no table; give another path, or rebuild it from the table"
            )
        if found.id != self.source.id:
            raise FollowError(
                f"{self.path} follows {found.table} ({found.format}, id {found.id}), but {self.source.table} has the "
                f"id {self.source.id}; give another path, or rebuild the relation from this table"
            )
        if found.version != manifest.version:
            raise FollowError(
                f"{self.path} equalled the table in version {found.version}, and was then changed by "
                f"{manifest.properties.get(OPERATION, 'another writer')} up to version {manifest.version}; change the "
                "table instead, and rebuild the relation"
            )
        return found

    def _schema(self, commit: Commit) -> pa.Schema:
        """Return R's schema for a commit; raise if R cannot hold it."""
        schema = self.source.schema(commit)
        builder.check_schema(schema)
        if {START, END} <= set(schema.names) and START not in self._key:
            raise FollowError(
                f"{self.source.table} is a history: {START} and {END} say when its rows are valid, and a key has "
                f"several rows; follow keeps one row per key, so add {START} to the key, or build a history from the "
                "table's files and change it with semistream.spark.write_changes"
            )
        codec = KeyCodec.for_schema(schema, self._key)
        RowCodec(stored_schema(schema, codec))  # raises for a type that rows cannot hold
        return schema

    def _record(self, commit: Commit, version: int) -> dict[str, str]:
        source = self.source
        return FollowedCommit(
            source.format, source.table, source.id, commit.name, commit.committed, version
        ).to_property()  # fmt: skip

    def _built(self, commit: Commit, before: Manifest | None) -> Manifest:
        """Build R from the snapshot at a commit, as the version after ``before``."""
        schema, follows = self._schema(commit), None if before is None else before.version
        kept = {} if before is None else {MOST_SHARDS: str(before.most_shards)}
        kept |= {name: kind for name, kind in ({} if before is None else before.properties).items() if name == ENCODING}
        return builder.build(
            pa.RecordBatchReader.from_batches(schema, self.source.snapshot(commit)), self.path, self._key,
            memory=self._memory, unique=True, follows=follows, **self._built_as,
            indexes=() if before is None else possible_indexes(before, schema),
            properties={**kept, **self._record(commit, (follows or 0) + 1), OPERATION: "build"},
        )  # fmt: skip

    def _applied(self, manifest: Manifest, commit: Commit) -> Applied:
        """Commit the changes of one commit."""
        schema, before = self._schema(commit), self._followed(manifest).commit
        evolved = self._evolved(manifest, before, commit, schema)
        if evolved is None:
            made = self._built(commit, manifest)
            return Applied(made, upserted=made.rows, pages=_pages(made))
        try:
            with (
                OpenRelation.open(self.path, version=manifest.version) as opened,
                in_columns_of(opened, evolved) as relation,
                Writer(relation.place) as writer,
                workplace(relation.place) as made_in,
            ):
                writer.check_follows(manifest.version)
                difference = Difference(schema, relation.key, spill_directory(made_in, writer), self._memory // 2)
                try:
                    for changed in self.source.changes(before, commit):
                        difference.add(changed)
                    applied = apply_difference(
                        relation, difference, writer,
                        memory=self._memory // 2, most_pages=_REBUILD_ABOVE * max(64, relation.page_count),
                    )  # fmt: skip
                finally:
                    difference.close()
                applied.manifest = dataclasses.replace(
                    applied.manifest,
                    version=manifest.version + 1,
                    properties={
                        **evolved.properties,
                        **self._record(commit, manifest.version + 1),
                        OPERATION: "follow",
                        builder.NULL_KEYS: str(builder.null_keys_of(manifest) + difference.null_keys),
                    },
                )
                applied.manifest = with_indexes_in_step(writer, evolved, applied.manifest, memory=self._memory)
                writer.commit(applied.manifest)
                return applied
        except TooManyPagesError:
            made = self._built(commit, manifest)
            return Applied(made, upserted=made.rows, pages=_pages(made))

    def _evolved(self, manifest: Manifest, before: str, commit: Commit, schema: pa.Schema) -> Manifest | None:
        """Return R's manifest with the columns of a commit; None if R must be built again for them."""
        old = self.source.column_ids(before, manifest.schema)
        new = self.source.column_ids(commit.name, schema)
        if old is None or new is None:
            return None
        if old == new and schema.equals(manifest.schema):
            return manifest
        before_ids = {one.name: one for one in old}
        if any(before_ids.get(one.name, one) != one for one in new):
            return None
        try:
            return evolved_as(manifest, [one.name for one in old], schema, [one.name for one in new])
        except RelationBuildError:
            return None

    def _compact_if_due(self) -> None:
        manifest = manifests.load(self.path)
        changed = sum(pages for shard in manifest.shards for _, pages in shard.deltas)
        files = sum(len(shard.deltas) for shard in manifest.shards)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if changed > max(_FEW_PAGES, _COMPACT_ABOVE * _pages(manifest)) or files > _FILES_OPEN * most:
            commit_compacted(self.path, memory=self._memory)


def _pages(manifest: Manifest) -> int:
    return sum(shard.pages for shard in manifest.shards)


def _lag(commits: Sequence[Commit]) -> Lag:
    return Lag(len(commits), max(0.0, time.time() - commits[0].committed) if commits else 0.0)


def _step(manifest: Manifest, commit: Commit, applied: Applied, began: float, left: Sequence[Commit]) -> Step:
    return Step(
        manifest.version, commit.name, manifest.properties[OPERATION], manifest.rows, applied.upserted, applied.deleted,
        applied.pages * manifest.page_bytes, time.perf_counter() - began, _lag(left),
    )  # fmt: skip
