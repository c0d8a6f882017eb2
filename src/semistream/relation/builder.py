"""Builds a relation on this machine: from batches to shards and one manifest."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.errors import NotARelationError, RelationBuildError, SemistreamError
from semistream.core.units import parse_bytes
from semistream.core.value_texts import short, value_texts
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.encoding_choice import EncodingChoice, check_encoding
from semistream.relation.pages.shard_writer import PAGE_BYTES, check_page_bytes, check_shards
from semistream.relation.pages.sorted_shards import SortedShards
from semistream.relation.rows.arrow_input import as_reader
from semistream.relation.rows.dictionaries import roomy, roomy_schema
from semistream.relation.storage import files
from semistream.relation.storage import manifest as manifests
from semistream.relation.storage.manifest import ENCODING, MOST_SHARDS, OPERATION, Manifest
from semistream.relation.storage.row_layouts import RowLayouts
from semistream.relation.storage.secondary_index import Columns, SecondaryIndex, named_indexes
from semistream.relation.stores.scratch import publish, workplace
from semistream.relation.stores.store_path import Place, names_in, place_of
from semistream.relation.versions.leases import WRITERS, Writer
from semistream.relation.versions.retrying import until_first

__all__ = [
    "NULL_KEYS", "build", "building", "check_names", "check_schema", "commit_build", "encoded_as", "layouts_before",
    "null_keys_of", "shard_name",
]  # fmt: skip

NULL_KEYS = "rows_with_null_key"
"""Manifest property: rows left out since the build because their key is NULL. No stream tuple can match such a row."""


def null_keys_of(manifest: Manifest) -> int:
    """Return how many rows were left out since the build because their key is NULL."""
    return int(manifest.properties.get(NULL_KEYS, 0))


def shard_name(number: int, attempt: str, index: int | None = None) -> str:
    """Return the file stem of a shard; ``attempt`` distinguishes two attempts at the same shard.

    ``index`` is the number of a secondary index, if the shard belongs to one.
    """
    return f"shard-{number:04d}-{attempt}{'' if index is None else f'-by{index}'}"


@contextlib.contextmanager
def building(path: Place, *, overwrite: bool) -> Iterator[Writer]:
    """Create the directory of a relation, and register as its writer. A failed build removes a new directory."""
    newest = manifests.latest(path)
    if newest is not None and not overwrite:
        raise _there_already(path, newest)
    if path.exists() and not path.is_dir():
        raise RelationBuildError(f"{path} is a file; a relation needs its own directory: give another path")
    if newest is None and path.is_dir() and any(not name.startswith(("shard-", ".")) for name in names_in(path)):
        raise RelationBuildError(f"{path} is a directory with other files in it; give an empty or new directory")
    existed = path.exists()
    files.make_directory(path)
    try:
        with Writer(path) as writer:
            yield writer
    except BaseException:
        if not existed and isinstance(path, Path):
            for directory in (path / WRITERS, path):
                with contextlib.suppress(OSError):  # not empty: another build has started there
                    files.disk.rmdir(directory)
        raise


def commit_build(
    writer: Writer, manifest: Manifest, *, overwrite: bool, numbers: Sequence[int] | None = None
) -> Manifest:
    """Commit a build as the next version after the newest at that time; return its manifest.

    ``numbers`` are those of the columns with which rows were packed, if they were.
    """

    def work() -> Manifest:
        newest = manifests.latest(writer.path)
        if newest is not None and not overwrite:
            raise _there_already(writer.path, newest)
        version = 1 if newest is None else newest + 1
        properties = {**manifest.properties, OPERATION: "build"}
        made = manifest.written_after(RowLayouts.unchanged(manifest.schema), numbers)
        if newest is not None:
            with contextlib.suppress(SemistreamError):  # a damaged relation may be built again
                before = manifests.load(writer.path, newest)
                made = manifest.written_after(before.row_layouts, numbers)
                if before.most_shards > len(manifest.shards):
                    properties = {**properties, MOST_SHARDS: str(before.most_shards)}
        built = dataclasses.replace(
            made, version=version, properties=properties,
            indexes=tuple(dataclasses.replace(index, version=version) for index in made.indexes),
        )  # fmt: skip
        writer.commit(built)
        return built

    return until_first(writer.path, work)


def _there_already(path: Place, newest: int) -> RelationBuildError:
    return RelationBuildError(
        f"{path} already holds a relation (version {newest}); give another path, or overwrite=True"
    )


def check_names(schema: pa.Schema) -> None:
    """Raise if several columns have the same name."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise RelationBuildError(
            f"column {twice[0]!r} occurs {schema.names.count(twice[0])} times; rename all but one of them"
        )


def check_schema(schema: pa.Schema) -> None:
    """Raise unless R can have these columns: names must differ, and manifests must be able to hold the types."""
    check_names(schema)
    for field in schema:
        try:
            pa.ipc.read_schema(pa.schema([field]).serialize())
        except pa.ArrowException as error:  # dictionaries of extension types, such as uuid
            raise RelationBuildError(
                f"column {field.name!r} has the type {field.type}, which Arrow writes but cannot read: {error}; cast "
                "the column to another type, such as that of the dictionary's values"
            ) from error


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
    unique: bool = False,
    indexes: Iterable[Columns] = (),
    schema: pa.Schema | None = None,
    valid_from: str | None = None,
    valid_to: str | None = None,
    layouts: RowLayouts | None = None,
    encoding: str = "auto",
) -> Manifest:
    """Build a relation; see `Relation.build` for the parameters. Returns the manifest of the version.

    ``properties`` are stored in the manifest; a relation that was built with ``encoding="plain"`` stays plain. With
    ``follows``, the new version must directly follow that version, or the commit fails; ``layouts`` then has the
    numbers of the columns, by default those of that version. ``schema`` is R's schema if ``data`` has its
    `roomy_schema` instead.
    """
    path = place_of(path)
    check_encoding(encoding)
    properties = encoded_as(encoding, properties or {})
    page_bytes = parse_bytes(page_size)
    check_page_bytes(page_bytes, fill)
    check_shards(shards)
    reader = as_reader(data)
    check_schema(reader.schema)
    orders = [KeyCodec.for_schema(reader.schema, columns) for columns in (key, *named_indexes(indexes, key))]
    times = ValidTimes.recognised(reader.schema, orders[0].names, valid_from, valid_to, clustered=clustered)
    if times is not None and (unique or len(orders) > 1):
        raise RelationBuildError(
            f"{'unique=True does' if unique else 'indexes do'} not fit a history, whose keys have a row for each of "
            f"their versions, told apart by {times.valid_from!r}; leave {'unique' if unique else 'indexes'} out"
        )
    codec, held, version = orders[0], roomy_schema(reader.schema), 1 if follows is None else follows + 1
    if layouts is None:
        layouts = layouts_before(path, schema or reader.schema, follows)
    choice = EncodingChoice(
        held, codec, page_bytes=page_bytes, plain=ENCODING in properties,
        never=() if times is None else [name for name in (times.valid_from, times.valid_to) if name is not None],
        numbers=layouts.rebuilt(schema or reader.schema).current.numbers,
    )  # fmt: skip
    with (
        Writer(path) if follows is not None else building(path, overwrite=overwrite) as writer,
        workplace(path) as made,
        ExitStack() as stack,
    ):
        copies: list[SortedShards] = []  # R itself, then its secondary indexes
        for at, order in enumerate(orders):
            index = at - 1 if at else None
            copy = SortedShards(
                made, [shard_name(number, writer.run, index) for number in range(shards)], held, order,
                spill=f".sorting-{writer.run}-{at}", memory=parse_bytes(memory) // len(orders),
                page_bytes=page_bytes, fill=fill, clustered=clustered or index is not None, times=times,
                codec=choice.codec,
            )  # fmt: skip
            stack.callback(copy.close)
            copies.append(copy)
        for batch in reader:
            batch = roomy(batch, held)
            choice.add(batch)
            rows = copies[0].add(batch)
            for copy in copies[1:]:
                copy.add(rows)
        choice.all_added = True
        written = [tuple(copy.finish()) for copy in copies]
        if unique and not all(shard.unique for shard in written[0]):
            raise RelationBuildError(
                f"{' and '.join(codec.names)} must be unique, but some of its values have several "
                f"rows{_such_as(copies[0].repeated)}; nothing was built: remove duplicate rows, add a column to the "
                "key, or do not require unique keys"
            )
        publish(made, path, [name for shards_of in written for one in shards_of for name in one.all_files])
        manifest = Manifest(
            schema=schema or reader.schema, key=codec.names, page_bytes=page_bytes, fill=fill, clustered=clustered,
            shards=written[0], version=version,
            properties={NULL_KEYS: str(copies[0].null_keys), **properties, **choice.properties},
            indexes=tuple(
                SecondaryIndex(copy.key.names, files, version)
                for copy, files in zip(copies[1:], written[1:], strict=True)
            ),
            valid_from=None if times is None else times.valid_from,
            valid_to=None if times is None else times.valid_to, packing=choice.packing,
        )  # fmt: skip
        numbers = None if choice.packing is None else choice.numbers
        if follows is None:
            return commit_build(writer, manifest, overwrite=overwrite, numbers=numbers)
        following = manifest.written_after(layouts, numbers)
        writer.commit(following)
        return following


def encoded_as(encoding: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a version that is built with an encoding."""
    return {**properties, **({ENCODING: encoding} if encoding == "plain" else {})}


def layouts_before(path: Place, schema: pa.Schema, version: int | None = None) -> RowLayouts:
    """Return the row layouts of the version that a build follows, by default of the newest one, if there is one."""
    with contextlib.suppress(NotARelationError):  # there is none, it is damaged, or another writer has removed it
        if version is not None or manifests.latest(path) is not None:
            return manifests.load(path, version).row_layouts
    return RowLayouts.unchanged(schema)


def _such_as(repeated: pa.RecordBatch | None) -> str:
    """Return, for a message, a key that has several rows."""
    if repeated is None:
        return ""
    return f", such as {', '.join(short(str(value_texts(column)[0])) for column in repeated.columns)}"
