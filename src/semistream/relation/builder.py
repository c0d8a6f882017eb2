"""Build a relation on this machine: batches in, shards and one manifest out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.errors import RelationBuildError
from semistream.core.paths import local_path
from semistream.core.units import parse_bytes
from semistream.relation import manifest as manifests
from semistream.relation.keys import KeyCodec
from semistream.relation.manifest import Manifest, ShardFiles
from semistream.relation.selection import keep_rows
from semistream.relation.sorter import KeySorter
from semistream.relation.writer import PAGE_BYTES, ShardWriter, check_page_bytes

__all__ = ["NULL_KEYS", "as_reader", "build", "prepare_directory", "shard_name"]

NULL_KEYS = "rows_with_null_key"
"""Manifest property: rows left out because their key is NULL, which no stream tuple can match."""


def as_reader(data: Any) -> pa.RecordBatchReader:
    """Return a reader over a table, a batch, an iterable of batches, or any Arrow stream (Polars, DuckDB, …)."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Iterable):
        iterator = iter(data)
        try:
            first = next(iterator)
        except StopIteration:
            raise RelationBuildError(
                "no batch at all, so no schema; give an empty pyarrow.Table with the schema"
            ) from None
        if isinstance(first, pa.RecordBatch):
            return pa.RecordBatchReader.from_batches(first.schema, _chain(first, iterator))
    raise RelationBuildError(
        f"cannot read {type(data).__name__} as Arrow data; give a pyarrow Table, RecordBatches, or an object "
        "with __arrow_c_stream__"
    )


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def shard_name(number: int, attempt: str) -> str:
    """Return the file stem of a shard; ``attempt`` keeps two tries at the same shard apart."""
    return f"shard-{number:04d}-{attempt}"


def prepare_directory(path: Path, *, overwrite: bool) -> int:
    """Make the directory of a relation; return the version its next manifest will have."""
    newest = manifests.latest(path)
    if newest is not None and not overwrite:
        raise RelationBuildError(
            f"{path} already holds a relation (version {newest}); give another path, or overwrite=True"
        )
    if path.exists() and not path.is_dir():
        raise RelationBuildError(f"{path} is a file; a relation needs a directory of its own")
    if newest is None and path.is_dir() and any(not name.startswith(("shard-", ".")) for name in os.listdir(path)):
        raise RelationBuildError(f"{path} is a directory with other files in it; give a path of its own")
    path.mkdir(parents=True, exist_ok=True)
    return 1 if newest is None else newest + 1


def _check_names(schema: pa.Schema) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise RelationBuildError(
            f"column {twice[0]!r} occurs {schema.names.count(twice[0])} times; rename all but one of them"
        )


def build(
    data: Any,
    path: str | os.PathLike[str],
    key: str | Sequence[str],
    *,
    page_size: int | str = PAGE_BYTES,
    fill: float = 1.0,
    clustered: bool = True,
    shards: int = 1,
    memory: int | str = "512MB",
    overwrite: bool = False,
    properties: dict[str, str] | None = None,
    follows: int | None = None,
) -> Path:
    """Build a relation; see `Relation.build` for the parameters. Returns its path.

    ``properties`` are kept in the manifest. With ``follows`` the new version replaces just that one, or nothing.
    """
    path = local_path(path, "relation")
    page_bytes = parse_bytes(page_size)
    check_page_bytes(page_bytes, fill)
    if shards < 1:
        raise ValueError(f"shards must be at least 1, not {shards}")
    reader = as_reader(data)
    _check_names(reader.schema)
    codec = KeyCodec.for_schema(reader.schema, key)
    existed = path.exists()
    version = prepare_directory(path, overwrite=overwrite) if follows is None else follows + 1
    attempt = os.urandom(4).hex()
    writers: list[ShardWriter] = []
    try:
        for number in range(shards):
            writer = ShardWriter(
                path, shard_name(number, attempt), reader.schema, codec,
                page_bytes=page_bytes, fill=fill, clustered=clustered,
            )  # fmt: skip
            writers.append(writer)  # at once, so that a later one's refusal ends this one too
        null_keys, files = _fill(reader, codec, writers, path, parse_bytes(memory), clustered)
        manifest = Manifest(
            schema=reader.schema, key=codec.names, page_bytes=page_bytes, fill=fill, clustered=clustered,
            shards=tuple(files), version=version, properties={NULL_KEYS: str(null_keys), **(properties or {})},
        )  # fmt: skip
        manifests.commit(path, manifest)
    except BaseException:
        for writer in writers:
            writer.abort()
        if not existed:
            shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _fill(
    reader: pa.RecordBatchReader,
    codec: KeyCodec,
    writers: list[ShardWriter],
    path: Path,
    memory: int,
    clustered: bool,
) -> tuple[int, list[ShardFiles]]:
    null_keys = 0
    with ExitStack() as stack:
        sorters = [KeySorter(reader.schema, path, memory // len(writers)) for _ in writers]
        for sorter in sorters:
            stack.callback(sorter.close)
        for batch in reader:
            keys, valid = codec.encode(batch)
            if not valid.all():
                null_keys += int(np.count_nonzero(~valid))
                keys, batch = keys[valid], keep_rows(batch, valid)
            home = codec.shards(keys, len(writers)) if len(writers) > 1 else None
            for number, (sorter, writer) in enumerate(zip(sorters, writers, strict=True)):
                mine, part = keys, batch
                if home is not None:
                    here = home == number
                    mine, part = keys[here], keep_rows(batch, here)
                if clustered:
                    sorter.add(mine, part)
                else:
                    writer.write(mine, part)
        for sorter, writer in zip(sorters, writers, strict=True):
            for mine, part in sorter.sorted():
                writer.write(mine, part)
        return null_keys, [writer.close() for writer in writers]
