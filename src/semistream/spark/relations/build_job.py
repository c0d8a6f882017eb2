"""Build a relation with a Spark job: one task per shard, one commit at the end.

::

    any partitioning  ──shuffle by shard──▶  sort by key  ──▶  task i writes shard i  ──▶  driver commits
                        pmod(xxhash64(key), n)   (spills)        pages, index, fsync          one manifest

Spark hashes and sorts in its own memory, and spills if needed. Python only packs pages, batch by batch, and checks that
keys are in order and belong to the shard. Every attempt of a task writes its own files, and the manifest names the
files of the attempts that Spark accepted. So a retried or speculative attempt leaves at most unreferenced files, and a
failed job leaves no relation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from semistream.core.errors import RelationBuildError, SemistreamError
from semistream.core.units import parse_bytes
from semistream.relation.builder import (
    NULL_KEYS,
    building,
    check_schema,
    commit_build,
    encoded_as,
    layouts_before,
    shard_name,
)
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.encoding_choice import check_encoding
from semistream.relation.pages.shard_writer import PAGE_BYTES, ShardWriter, check_page_bytes, check_shards
from semistream.relation.pages.stored_rows import rows_codec
from semistream.relation.relation import Relation
from semistream.relation.rows.packed.packing import Packing
from semistream.relation.secondary.keeping_in_step import built_index
from semistream.relation.storage.manifest import SPARK_SCHEMA, Manifest, ShardFiles
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.storage.secondary_index import Columns, named_indexes
from semistream.relation.stores.scratch import publish, workplace
from semistream.relation.stores.store_path import Place, place_of
from semistream.spark.features import sent_to_partition
from semistream.spark.relations.encoding_sample import sampled_choice
from semistream.spark.relations.key_expressions import by_position, key_order, positional, shard_of
from semistream.spark.relations.types import arrow_schema, check_collations, fit

__all__ = ["ShardTask", "build", "write_shards"]

_REPORT = "shard int, null_keys bigint, files string, error string"
_REPORT_ARROW = pa.schema({"shard": pa.int32(), "null_keys": pa.int64(), "files": pa.string(), "error": pa.string()})


def build(
    df: DataFrame,
    path: str | os.PathLike[str],
    key: str | Sequence[str],
    *,
    shards: int = 8,
    page_size: int | str = PAGE_BYTES,
    fill: float = 1.0,
    overwrite: bool = False,
    indexes: Iterable[Columns] = (),
    valid_from: str | None = None,
    valid_to: str | None = None,
    encoding: Literal["auto", "plain"] = "auto",
) -> Relation:
    """Write a DataFrame as a relation, and open it.

    Parameters
    ----------
    df
        R. Not a streaming DataFrame.
    path
        A directory that the driver and all executors see under the same name, or an address in a store. The relation is
        committed atomically at the end.
    key
        Name of the key column, or several names. Rows whose key is NULL are left out: nothing can match them.
    shards
        Number of parts, by hash of the key; each is built by one task. A join has at least one task per shard, and more
        if the session runs more tasks in parallel. The number of cores is best.
    page_size
        Bytes of a page, as in `semistream.Relation.build`.
    fill
        Share of each page that is filled. Less leaves room for updates.
    overwrite
        Replace the relation at ``path`` by a new version. Otherwise an existing relation is an error.
    indexes
        Columns of secondary indexes; see `semistream.Relation.add_index`. The driver sorts them, within 512 MB.
    valid_from
        Makes R a history for as-of joins: the column, a timestamp, date or integer, from which on each row is valid.
        Two rows of a key that begin at the same time are refused. By default ``__START_AT``, if the DataFrame has this
        column and ``__END_AT``, as tables of Spark's AUTO CDC do.
    valid_to
        The column, of the same type, before which a row is valid. NULL, or no such column, means that the key's next
        row ends it. Rows that overlap, or end before they begin, are refused.
    encoding
        ``"auto"`` packs columns where it pays, as `semistream.Relation.build` does. The driver decides from the first
        rows of some partitions, so the DataFrame is computed in part before the job. ``"plain"`` does not.

    Examples
    --------
    >>> from semistream.spark import build, session                         # doctest: +SKIP
    >>> products = session().read.parquet("products.parquet")               # doctest: +SKIP
    >>> build(products, "/data/products", key="id", shards=8)               # doctest: +SKIP
    Relation(/data/products, version 1: 1 M rows by key, ...)
    """
    if df.isStreaming:
        raise RelationBuildError("a streaming DataFrame never ends; build a relation from a batch one")
    check_encoding(encoding)
    path = place_of(path).absolute()
    page_bytes = parse_bytes(page_size)
    check_page_bytes(page_bytes, fill)
    check_shards(shards)
    schema = arrow_schema(df.schema)
    check_schema(schema)
    codec = KeyCodec.for_schema(schema, key)
    orders = [KeyCodec.for_schema(schema, columns).names for columns in named_indexes(indexes, key)]
    for names in (codec.names, *orders):
        check_collations(df.schema, names)
    times = ValidTimes.recognised(schema, codec.names, valid_from, valid_to)
    if times is not None and orders:
        raise RelationBuildError(
            "indexes do not fit a history, whose keys have a row for each of their versions; leave indexes out"
        )
    named = (None, None) if times is None else (times.valid_from, times.valid_to)
    with building(path, overwrite=overwrite) as writer:
        choice = sampled_choice(
            df, schema, codec, page_bytes=page_bytes, plain=encoding == "plain",
            never=[name for name in named if name is not None],
            numbers=layouts_before(path, schema).rebuilt(schema).current.numbers,
        )  # fmt: skip
        packing, numbers = choice.packing, choice.numbers
        task = ShardTask(
            str(path), writer.run, schema, codec.names, shards, page_bytes, fill,
            valid_from=named[0], valid_to=named[1], packing=packing, numbers=numbers,
        )  # fmt: skip
        null_keys, files = write_shards(df, task, codec)
        manifest = Manifest(
            schema=schema, key=codec.names, page_bytes=page_bytes, fill=fill, clustered=True,
            shards=tuple(files), valid_from=named[0], valid_to=named[1], packing=packing,
            properties={
                **encoded_as(encoding, {NULL_KEYS: str(null_keys), SPARK_SCHEMA: df.schema.json()}), **choice.properties
            },
        )  # fmt: skip
        _check_seen(path, manifest)
        packed_as = None if packing is None else numbers
        numbered = manifest.written_after(RowLayouts.unchanged(schema), packed_as)
        added = [built_index(writer, numbered, names, number) for number, names in enumerate(orders)]
        manifest = replace(manifest, indexes=tuple(added))
        version = commit_build(writer, manifest, overwrite=overwrite, numbers=packed_as).version
    return Relation.open(path, version=version)


@dataclass(frozen=True)
class ShardTask:
    """The work of one task: write the rows of its partition as a shard, and report in one row.

    An error in the data is also reported as a row. It then fails the build immediately with a clear message; an
    exception would be retried, and wrapped in a stack trace of the JVM.
    """

    path: str
    run: str
    schema: pa.Schema
    key: tuple[str, ...]
    shards: int
    page_bytes: int
    fill: float
    valid_from: str | None = None
    valid_to: str | None = None
    packing: Packing | None = None
    numbers: tuple[int, ...] | None = None
    """Numbers of the columns, by which they are packed."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs only inside a Spark task"
        shard = context.partitionId()
        try:
            null_keys, files = self.write(shard, f"{self.run}-{context.taskAttemptId()}", batches)
            report = [shard, null_keys, json.dumps(asdict(files)), None]
        except SemistreamError as error:
            report = [shard, 0, None, str(error)]
            for _ in batches:  # Spark would end the worker of a task that leaves input unread
                pass
        yield pa.RecordBatch.from_pylist([dict(zip(_REPORT_ARROW.names, report, strict=True))], schema=_REPORT_ARROW)

    def write(self, shard: int, attempt: str, batches: Iterator[pa.RecordBatch]) -> tuple[int, ShardFiles]:
        """Write shard number ``shard``; return the number of rows with a NULL key, and the files."""
        place = place_of(self.path)
        with workplace(place) as made:
            null_keys, files = self._written(made, shard, attempt, batches)
            publish(made, place, files.all_files)
        return null_keys, files

    def _written(
        self, made: Path, shard: int, attempt: str, batches: Iterator[pa.RecordBatch]
    ) -> tuple[int, ShardFiles]:
        codec = KeyCodec.for_schema(self.schema, self.key)
        writer = ShardWriter(
            made, shard_name(shard, attempt), self.schema, codec, page_bytes=self.page_bytes, fill=self.fill,
            times=ValidTimes.recognised(self.schema, self.key, self.valid_from, self.valid_to),
            codec=rows_codec(self.schema, codec, self.packing, self.numbers),
        )  # fmt: skip
        null_keys = 0
        try:
            for batch in batches:
                rows = fit(batch, self.schema)
                keys, valid = codec.encode(rows)
                if not valid.all():
                    null_keys += int(np.count_nonzero(~valid))
                    keys, rows = keys[valid], rows.filter(pa.array(valid))
                if np.any(codec.shards(keys, self.shards) != shard):
                    raise RelationBuildError(
                        f"Spark sent rows to shard {shard} of {self.path} that belong to another: its "
                        "xxhash64 differs from this release's; use a PySpark version that this release supports"
                    )
                writer.write(keys, rows)
            return null_keys, writer.close()
        except BaseException:
            writer.abort()
            raise


def write_shards(df: DataFrame, task: ShardTask, codec: KeyCodec) -> tuple[int, list[ShardFiles]]:
    """Run the job: send each shard's rows to its task, in key order. Return the rows with a NULL key, and all files."""
    order = [key_order(df, codec)]
    if task.valid_from is not None:
        order.append(by_position(df.columns.index(task.valid_from)))
    home = shard_of(df, codec.names, codec, task.shards)
    reports = (
        sent_to_partition(positional(df), task.shards, home)
        .sortWithinPartitions(*order)
        .mapInArrow(task, _REPORT)
        .collect()
    )
    if faults := sorted({report.error for report in reports if report.error}):
        raise RelationBuildError("; ".join(faults))
    found = {report.shard: ShardFiles(**json.loads(report.files)) for report in reports}
    for shard in range(task.shards):
        if shard not in found:  # Spark runs no task for a frame that it knows to be empty
            found[shard] = task.write(shard, task.run, iter(()))[1]
    null_keys = sum(report.null_keys for report in reports)
    return null_keys, [found[shard] for shard in range(task.shards)]


def _check_seen(path: Place, manifest: Manifest) -> None:
    for shard in manifest.shards:
        try:
            size = (path / shard.pages_file).stat().st_size
        except FileNotFoundError:
            size = -1
        if size != shard.pages * manifest.page_bytes or not (path / shard.index_file).exists():
            raise RelationBuildError(
                f"an executor wrote {shard.pages_file} to {path}, but the driver does not see it there; give "
                "a path that all machines of the cluster share"
            )
