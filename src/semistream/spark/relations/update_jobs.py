"""Updates of a relation by Spark jobs: each task computes the update of one shard, the driver commits one manifest.

::

    rows of the update ──shuffle by shard──▶ task i: pages of shard i that change ──▶ driver commits
                         pmod(xxhash64(key), n)   delta pages, index, map, fsync         one manifest

The result equals that of `semistream.upsert`, but each shard is written by its own task, on all machines. If another
writer commits first, the job is repeated on the new version.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from semistream.core.errors import RelationBuildError, SemistreamError, UnsupportedJoinError
from semistream.relation.builder import NULL_KEYS, null_keys_of, shard_name
from semistream.relation.changes.dated_changes import prepare_dated
from semistream.relation.changes.patch import Patch
from semistream.relation.changes.updatable import State
from semistream.relation.evolving import evolved_for
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.relation import Relation
from semistream.relation.secondary.keeping_in_step import with_indexes_in_step
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.followed_commit import properties_of_equal_rows
from semistream.relation.storage.manifest import Manifest, ShardFiles
from semistream.relation.stores.store_path import Place, place_of
from semistream.relation.versions.holds import hold_manifest
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first
from semistream.relation.writing_shards import rewrite_shard, write_shard
from semistream.spark.features import sent_to_partition
from semistream.spark.relations.key_expressions import positional, quoted, shard_of
from semistream.spark.relations.types import arrow_schema, check_collations

__all__ = ["apply_changes", "compact", "delete", "upsert"]

PathLike = str | os.PathLike[str]

_Written = tuple[list[ShardFiles], int]
_REPORT = "shard int, null_keys bigint, files string, error string"
_REPORT_ARROW = pa.schema({"shard": pa.int32(), "null_keys": pa.int64(), "files": pa.string(), "error": pa.string()})


def upsert(df: DataFrame, path: PathLike, *, evolve: bool = False) -> int:
    """Replace the rows of keys, or add new keys; return the number of the new version.

    Parameters
    ----------
    df
        Rows of R, with all of its columns. A key that occurs here has exactly these rows in the new version. The
        DataFrame is read again if another writer commits meanwhile.
    path
        A clustered relation, on storage that the driver and all executors see under that name. A task holds the update
        of its shard and the changed pages in memory; more shards need less memory per task.
    evolve
        Add columns that R lacks, and widen types, in the same version; see `Relation.evolve`. By default a DataFrame
        with other columns than R's is refused.

    Examples
    --------
    >>> changes = spark.read.parquet("products/changes")                     # doctest: +SKIP
    >>> semistream.spark.upsert(changes, "/data/products")                   # doctest: +SKIP
    7
    """
    if not evolve and not df.isStreaming:
        known = manifests.load(place_of(path)).schema.names
        if unknown := [name for name in df.columns if name not in known]:
            raise RelationBuildError(
                f"the update has a column {unknown[0]!r}, and R has {known}; leave it out, or add it to R: give "
                "evolve=True, or use Relation.evolve or semistream evolve"
            )
    made = _update(df, path, gone=False, evolve=evolve)
    assert made is not None
    return made.version


def delete(df: DataFrame, path: PathLike) -> int:
    """Remove the keys in ``df`` with all their rows; return the number of the new version.

    Columns other than the key columns are ignored, and so are keys that R does not have.
    """
    made = _update(df, path, gone=True)
    assert made is not None
    return made.version


def compact(spark: SparkSession, path: PathLike) -> int:
    """Rewrite R with all updates merged, one task per shard; return the number of the new version.

    Columns stay packed as they are. `Relation.compact` chooses again how to pack them.
    """

    def run(target: Place, manifest: Manifest, name: str) -> _Written:
        _check_clustered(target, manifest)
        task = _CompactTask(str(target), manifest.version, name)
        numbers = spark.range(0, len(manifest.shards), 1, len(manifest.shards)).selectExpr("cast(id AS int) AS shard")
        return _collected(numbers.mapInArrow(task, _REPORT), manifest)

    made = _committed(place_of(path).absolute(), "compact", run)
    assert made is not None
    return made.version


def apply_changes(
    df: DataFrame, path: PathLike, gone: str, note: tuple[str, int], *, dated: bool = False
) -> Manifest | None:
    """Upsert and delete keys in one version; return its manifest, or None if it was committed before (``note``).

    Parameters
    ----------
    df
        R's columns, and one more. A key must not be both upserted and deleted.
    gone
        The column that is true for keys to delete; only their key columns are used.
    note
        A name, and a number that increases. The manifest keeps the last number of each name, so a replayed batch
        changes nothing, even if other writers committed in between.
    dated
        Whether R is a history, and its column ``valid_from`` has the time of each change.
    """
    return _update(df, path, gone=gone, note=note, dated=dated)


def _update(
    df: DataFrame,
    path: PathLike,
    *,
    gone: bool | str,
    note: tuple[str, int] | None = None,
    dated: bool = False,
    evolve: bool = False,
) -> Manifest | None:
    if df.isStreaming:
        raise RelationBuildError("a streaming DataFrame never ends; give it to semistream.spark.write_changes")

    def run(target: Place, manifest: Manifest, name: str) -> _Written:
        _check_clustered(target, manifest)
        codec = manifest.codec
        names = list(codec.names if gone is True else manifest.schema.names)
        if missing := [name for name in names if name not in df.columns]:
            raise RelationBuildError(
                f"the update lacks R's column {missing[0]!r}; it has {df.columns}, and needs {names}"
            )
        rows = df.select(*map(quoted, [*names, *([gone] if isinstance(gone, str) else [])]))
        codec.check_stream(_in_scale(arrow_schema(rows.schema), codec), codec.names, "update")
        check_collations(rows.schema, codec.names)
        made = manifest if evolve else None
        task = _UpdateTask(str(target), manifest.version, name, tuple(names), gone is True, dated, made)
        shard = shard_of(rows, codec.names, codec, len(manifest.shards))
        sharded = sent_to_partition(positional(rows), len(manifest.shards), shard)
        return _collected(sharded.mapInArrow(task, _REPORT), manifest)

    operation = "changes" if isinstance(gone, str) else "delete" if gone else "upsert"
    given = arrow_schema(df.schema) if evolve else None
    return _committed(place_of(path).absolute(), operation, run, note, given)


def _in_scale(schema: pa.Schema, codec: KeyCodec) -> pa.Schema:
    """Return a schema with R's decimal key types. Tasks rescale each value, and raise if R's scale cannot hold it.

    The shard of a value is computed from its cast, which is exact for values that R can have.
    """
    for name, kind in zip(codec.names, codec.types, strict=True):
        at = schema.get_field_index(name)
        if pa.types.is_decimal(kind) and pa.types.is_decimal(schema.field(at).type):
            schema = schema.set(at, pa.field(name, kind))
    return schema


def _committed(
    path: Place,
    operation: str,
    run: Callable[[Place, Manifest, str], _Written],
    note: tuple[str, int] | None = None,
    columns: pa.Schema | None = None,
) -> Manifest | None:
    """Run a job on the newest version and commit its result as the next version, unless ``note`` is already in R.

    R first gets the columns that it lacks of ``columns``.
    """

    def work() -> Manifest | None:
        manifest, held = hold_manifest(path)  # raises if this is not a relation, before anything is written
        with held, Writer(path) as writer:
            writer.check_follows(manifest.version)
            manifest = manifest if columns is None else evolved_for(manifest, columns)
            properties = dict(manifest.properties)
            if operation == "compact":
                properties = properties_of_equal_rows(properties, manifest.version, manifest.version + 1)
            properties[manifests.OPERATION] = operation
            if note is not None:
                done = int(properties.get(note[0], -1))
                if done == note[1]:  # Spark repeats only its last batch
                    return None
                if done > note[1]:
                    raise RelationBuildError(
                        f"{path} has batch {done} of {note[0]!r}, but this is batch {note[1]}: another driver runs "
                        "this query, or its checkpoint is new or an old copy. Stop the other driver; or give "
                        "write_changes another query=, to apply these changes to the current R"
                    )
                properties[note[0]] = str(note[1])
            files, null_keys = run(path, manifest, writer.run)
            properties[NULL_KEYS] = str(null_keys_of(manifest) + null_keys)
            following = dataclasses.replace(
                manifest, shards=tuple(files), version=manifest.version + 1, properties=properties
            )
            following = with_indexes_in_step(writer, manifest, following)
            writer.commit(following)
            return following

    return until_first(path, work)


def _collected(reports: DataFrame, manifest: Manifest) -> _Written:
    """Run the job; return the files of all shards in the next version, and how many rows had a NULL key."""
    found = reports.collect()
    if faults := sorted({report.error for report in found if report.error}):
        raise RelationBuildError("; ".join(faults))
    changed = {report.shard: ShardFiles(**json.loads(report.files)) for report in found}
    files = [changed.get(number, files) for number, files in enumerate(manifest.shards)]
    return files, sum(report.null_keys for report in found)


def _check_clustered(path: Place, manifest: Manifest) -> None:
    if not manifest.clustered:
        raise UnsupportedJoinError(
            f"{path} is not clustered, so it cannot be updated; build it again with clustered=True"
        )


@dataclass(frozen=True)
class _ShardJob:
    """Base of the tasks of both jobs: reads one shard, returns a report of its files."""

    path: str
    version: int
    name: str

    def report(
        self, shard: int, files: ShardFiles | None, error: str | None = None, null_keys: int = 0
    ) -> pa.RecordBatch:
        text = None if files is None else json.dumps(dataclasses.asdict(files))
        return pa.RecordBatch.from_pylist(
            [{"shard": shard, "null_keys": null_keys, "files": text, "error": error}], schema=_REPORT_ARROW
        )

    def stem(self, shard: int, context: TaskContext) -> str:
        """Return the prefix of this attempt's file names."""
        return shard_name(shard, f"{self.name}-{context.taskAttemptId()}")


@dataclass(frozen=True)
class _UpdateTask(_ShardJob):
    columns: tuple[str, ...]
    gone: bool
    dated: bool
    manifest: Manifest | None = None
    """The version with columns that are not committed yet."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        shard = context.partitionId()
        parts = [batch for batch in batches if batch.num_rows]
        if not parts:
            return
        try:
            with self._opened(shard) as relation:
                times = () if relation.times is None or not self.dated else (relation.times.valid_from,)
                rows, gone = self._split(pa.Table.from_batches(parts), [*relation.key.names, *times])
                patch = self._dated(relation, rows, gone) if self.dated else relation.prepare(rows, gone)
                files = write_shard(relation, 0, patch, self.stem(shard, context))
            yield self.report(shard, files, null_keys=patch.null_keys)
        except (SemistreamError, pa.ArrowInvalid) as error:  # reported with a clear message, and not retried
            yield self.report(shard, None, str(error))

    def _opened(self, shard: int) -> Relation:
        if self.manifest is None:
            return Relation.open(self.path, version=self.version, shards=[shard])
        return Relation.of_files(place_of(self.path), self.manifest, [shard], direct=True, depth=64, local=None)

    def _dated(self, relation: Relation, rows: pa.Table | None, gone: pa.Table | None) -> Patch:
        now = State(relation.revision, list(relation.indexes), relation.overlay, relation.row_count, relation.unique)
        return prepare_dated(relation, now, rows, gone)

    def _split(self, rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table | None, pa.Table | None]:
        """Return rows to upsert, and the columns ``key`` of rows to delete; an additional column tells which."""
        if rows.num_columns == len(self.columns):
            named = rows.rename_columns(list(self.columns))
            return (None, named) if self.gone else (named, None)
        gone = rows.column(rows.num_columns - 1)
        named = rows.remove_column(rows.num_columns - 1).rename_columns(list(self.columns))
        return named.filter(pc.invert(gone)), named.filter(gone).select(list(key))


@dataclass(frozen=True)
class _CompactTask(_ShardJob):
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        numbers = [shard for batch in batches for shard in batch.column(0).to_pylist()]
        for shard in numbers:
            try:
                with Relation.open(self.path, version=self.version, shards=[shard]) as relation:
                    files = rewrite_shard(relation, self.stem(shard, context))
                yield self.report(shard, files)
            except SemistreamError as error:
                yield self.report(shard, None, str(error))
