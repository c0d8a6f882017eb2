"""Commits new versions of R: an update writes the changed pages and a manifest, compaction rewrites all pages.

A committed version never changes. Files are written and flushed first, and the manifest is linked into place last. So
a crash at any point leaves the last version intact. Readers stay on the version that they opened.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import RelationBuildError
from semistream.relation import builder
from semistream.relation.evolving import evolved_for
from semistream.relation.open_relation import OpenRelation
from semistream.relation.rows.arrow_input import as_reader
from semistream.relation.rows.dictionaries import roomy_schema
from semistream.relation.secondary.keeping_in_step import built_index, with_indexes_in_step
from semistream.relation.storage.followed_commit import properties_of_equal_rows
from semistream.relation.storage.manifest import OPERATION, Manifest
from semistream.relation.storage.secondary_index import Columns, named_indexes
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first
from semistream.relation.writing_shards import roomy_rows, write_shard

PathLike = str | os.PathLike[str]

__all__ = ["commit_compacted", "commit_index", "commit_update", "commit_without_index", "in_columns_of"]


def commit_update(
    path: PathLike, upserts: Any, deletes: Any, *, at: Any = None, follows: int | None = None, evolve: bool = False
) -> Manifest:
    """Delete and upsert in one version; return its manifest.

    Parameters
    ----------
    path
        A clustered relation.
    upserts, deletes, at
        See `Relation.update`. The data must be readable more than once.
    follows
        The version that the new one must directly follow, or `CommitConflictError` is raised. By default the newest:
        if another writer commits first, the update is applied to that writer's version.
    evolve
        Whether columns that R lacks are added, and types widened, in the same version.
    """
    operation = " and ".join(name for name, given in (("delete", deletes), ("upsert", upserts)) if given is not None)

    def work() -> Manifest:
        with (
            OpenRelation.open(path, version=follows) as opened,
            Writer(opened.place) as writer,
            _evolved(opened, upserts if evolve else None) as relation,
        ):
            writer.check_follows(relation.version)
            patch = relation.prepare(upserts, deletes, at=at)
            manifest = relation.stored
            following = dataclasses.replace(
                manifest,
                shards=tuple(
                    write_shard(relation, number, patch, builder.shard_name(number, writer.run))
                    for number in range(len(manifest.shards))
                ),
                version=manifest.version + 1,
                properties={
                    **manifest.properties,
                    OPERATION: operation,
                    builder.NULL_KEYS: str(builder.null_keys_of(manifest) + patch.null_keys),
                },
            )
            following = with_indexes_in_step(writer, manifest, following)
            writer.commit(following)
            return following

    return until_first(path, work) if follows is None else work()


def commit_compacted(path: PathLike, *, follows: int | None = None, memory: int | str = "512MB") -> Manifest:
    """Rewrite R as if freshly built, without changed pages; return the manifest. See `commit_update` and `build`."""

    def work() -> Manifest:
        with OpenRelation.open(path, version=follows) as relation:
            manifest = relation.stored
            rows = (batch for _, batch in roomy_rows(relation, np.arange(relation.page_count)))
            return builder.build(
                pa.RecordBatchReader.from_batches(roomy_schema(manifest.schema), rows), path, manifest.key,
                schema=manifest.schema, page_size=manifest.page_bytes, fill=manifest.fill, clustered=manifest.clustered,
                shards=len(manifest.shards), memory=memory, follows=manifest.version,
                indexes=[index.key for index in manifest.indexes],
                valid_from=manifest.valid_from, valid_to=manifest.valid_to,
                properties={
                    **properties_of_equal_rows(manifest.properties, manifest.version, manifest.version + 1),
                    OPERATION: "compact",
                },
            )  # fmt: skip

    return until_first(path, work) if follows is None else work()


def _evolved(relation: OpenRelation, upserts: Any) -> OpenRelation:
    manifest = relation.stored if upserts is None else evolved_for(relation.stored, as_reader(upserts).schema)
    return in_columns_of(relation, manifest)


def in_columns_of(relation: OpenRelation, manifest: Manifest) -> OpenRelation:
    """Return a relation with the columns of a manifest of its version that is not committed yet."""
    if manifest is relation.stored:
        return relation
    return OpenRelation.of_files(relation.place, manifest, None, **relation.options)


def commit_index(path: PathLike, columns: Columns, *, follows: int | None = None) -> Manifest:
    """Add a secondary index in a new version, which has the same rows; return its manifest. See `commit_update`."""
    key = listed(columns)

    def work() -> Manifest:
        with OpenRelation.open(path, version=follows) as relation, Writer(relation.place) as writer:
            writer.check_follows(relation.version)
            manifest = relation.stored
            named_indexes([key], manifest.key)
            if manifest.valid_from is not None:
                raise RelationBuildError(f"{relation.place} is a history, which has no secondary indexes")
            if any(index.key == key for index in manifest.indexes):
                raise RelationBuildError(f"{relation.place} already has an index on {', '.join(key)}")
            following = _with_equal_rows(manifest, "index")
            added = built_index(writer, following, key, len(manifest.indexes))
            kept = with_indexes_in_step(writer, manifest, following).indexes
            following = dataclasses.replace(following, indexes=(*kept, added))
            writer.commit(following)
            return following

    return until_first(path, work) if follows is None else work()


def commit_without_index(path: PathLike, columns: Columns, *, follows: int | None = None) -> Manifest:
    """Remove a secondary index in a new version, which has the same rows; return its manifest. See `commit_update`."""

    def work() -> Manifest:
        with OpenRelation.open(path, version=follows) as relation, Writer(relation.place) as writer:
            writer.check_follows(relation.version)
            manifest = relation.stored
            gone = manifest.in_order_of(columns, relation.place).by
            if gone is None:
                raise RelationBuildError(f"{', '.join(manifest.key)} is R's key, which is no index and stays")
            following = with_indexes_in_step(writer, manifest, _with_equal_rows(manifest, "drop index"))
            following = dataclasses.replace(
                following, indexes=tuple(index for index in following.indexes if index.key != gone)
            )
            writer.commit(following)
            return following

    return until_first(path, work) if follows is None else work()


def _with_equal_rows(manifest: Manifest, operation: str) -> Manifest:
    """Return the next version of R with the same rows."""
    version = manifest.version + 1
    properties = properties_of_equal_rows(manifest.properties, manifest.version, version)
    return dataclasses.replace(manifest, version=version, properties={**properties, OPERATION: operation})
