"""Changes R's columns: the new version has another schema and the same pages.

Rows keep the layout in which they were written, and are shown in the new layout when they are read
(`semistream.relation.storage.row_layouts`). Updates write new rows; compaction rewrites all rows.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from semistream.core.errors import RelationBuildError
from semistream.core.units import format_bytes
from semistream.relation.builder import check_names, check_schema
from semistream.relation.pages.page_layout import PageLayout
from semistream.relation.pages.stored_rows import codec_of
from semistream.relation.relation_files import shown_page_bytes
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.widening import is_widening
from semistream.relation.storage.manifest import OPERATION, SPARK_SCHEMA, Manifest
from semistream.relation.storage.row_layouts import RowLayout, RowLayouts
from semistream.relation.stores.store_path import place_of
from semistream.relation.versions.holds import hold_manifest
from semistream.relation.versions.leases import Writer
from semistream.relation.versions.retrying import until_first

__all__ = [
    "ColumnChanges",
    "EvolvedColumn",
    "commit_evolved",
    "evolved",
    "evolved_as",
    "evolved_for",
    "with_columns",
]

_MOST_GROWTH = 8
"""Maximum size of a page in memory, relative to its size on disk. Defaults of every row could need much more."""


@dataclasses.dataclass(frozen=True)
class ColumnChanges:
    """Changes of columns. Names are those before the change, except of columns that are added."""

    add: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)
    drop: Sequence[str] = ()
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    widen: Mapping[str, pa.DataType] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values that existing rows have in added columns; NULL for the others."""


class EvolvedColumn(NamedTuple):
    """A column of the new schema."""

    field: pa.Field
    number: int | None
    """The number of the column before, None for an added one."""
    default: pa.Scalar | None = None


def commit_evolved(path: str | os.PathLike[str], changes: ColumnChanges, *, follows: int | None = None) -> Manifest:
    """Change R's columns in a new version; return its manifest. No page is read or written.

    For ``follows`` see `semistream.relation.committing.commit_update`.
    """
    place = place_of(path)

    def work() -> Manifest:
        manifest, held = hold_manifest(place, follows)
        with held, Writer(place) as writer:
            writer.check_follows(manifest.version)
            made = evolved(manifest, changes)
            properties = {**made.properties, OPERATION: "evolve"}
            version = manifest.version + 1
            following = dataclasses.replace(
                made, version=version, properties=properties,
                indexes=tuple(dataclasses.replace(index, version=version) for index in made.indexes),
            )  # fmt: skip
            writer.commit(following)
            return following

    return until_first(path, work) if follows is None else work()


def evolved(manifest: Manifest, changes: ColumnChanges) -> Manifest:
    """Return a manifest with changed columns, and otherwise the same content. Raises if a change is not possible."""
    now, names = manifest.row_layouts.current, manifest.schema.names
    if not (changes.add or changes.drop or changes.rename or changes.widen):
        raise ValueError("no change of columns is given; give add, drop, rename or widen")
    for what, given in (("drop", changes.drop), ("rename", changes.rename), ("widen", changes.widen)):
        for name in given:
            if name not in names:
                raise RelationBuildError(f"cannot {what} {name!r}: R has the columns {', '.join(names)}")
            if name in manifest.key:
                raise RelationBuildError(
                    f"cannot {what} {name!r}: it is a key column, and pages are sorted by the key; build a relation "
                    "with the other key instead"
                )
            if name in manifest.time_columns:
                raise RelationBuildError(
                    f"cannot {what} {name!r}: it says when rows of this history are valid; build a relation with other "
                    "times instead"
                )
            if what != "drop" and name in changes.drop:
                raise RelationBuildError(f"cannot both drop and {what} {name!r}; leave one of them out")
    if stray := sorted(changes.defaults.keys() - changes.add.keys()):
        raise RelationBuildError(
            f"a default is for columns that are added, and {stray[0]!r} is not; change existing rows with upsert"
        )
    columns = []
    for field, number in zip(now.schema, now.numbers, strict=True):
        if field.name in changes.drop:
            continue
        kind = changes.widen.get(field.name, field.type)
        name = changes.rename.get(field.name, field.name)
        columns.append(EvolvedColumn(field.with_type(kind).with_name(name), number))
    for name, kind in changes.add.items():
        value = changes.defaults.get(name)
        default = None if value is None else _default(name, value, kind)
        columns.append(EvolvedColumn(pa.field(name, kind), None, default))
    return with_columns(manifest, columns)


def evolved_for(manifest: Manifest, given: pa.Schema) -> Manifest:
    """Return a manifest that can hold rows of an update: columns that it lacks are added, and types widened.

    It is the same manifest if nothing has to change. Columns that the update lacks stay, and the update is refused.
    """
    check_names(given)
    changes = ColumnChanges(
        add={field.name: field.type for field in given if field.name not in manifest.schema.names},
        widen={
            field.name: field.type
            for field in given
            if field.name in manifest.schema.names
            and field.name not in manifest.key
            and is_widening(manifest.schema.field(field.name).type, field.type)
        },
    )
    return evolved(manifest, changes) if changes.add or changes.widen else manifest


def evolved_as(
    manifest: Manifest, before: Sequence[Hashable], schema: pa.Schema, after: Sequence[Hashable]
) -> Manifest:
    """Return a manifest with the columns of a schema.

    ``before`` identifies each of R's columns, and ``after`` those of the schema: equal values are the same column.
    """
    numbers = dict(zip(before, manifest.row_layouts.current.numbers, strict=True))
    columns = [EvolvedColumn(field, numbers.get(one)) for field, one in zip(schema, after, strict=True)]
    return with_columns(manifest, columns)


def with_columns(manifest: Manifest, columns: Sequence[EvolvedColumn]) -> Manifest:
    """Return a manifest with these columns, and otherwise the same content.

    Columns keep their values by their numbers, whatever their names, types and positions become.
    """
    layouts = manifest.row_layouts
    schema = pa.schema([column.field for column in columns], manifest.schema.metadata)
    check_schema(schema)
    numbers, defaults, following = [], dict(layouts.defaults), layouts.next_number
    for column in columns:
        number = column.number
        if number is None:
            number, following = following, following + 1
            if column.default is not None:
                defaults[number] = column.default
        else:
            _check_kept(layouts.current, number, column.field)
            if number in defaults:
                defaults[number] = _default(column.field.name, defaults[number], column.field.type)
        numbers.append(number)
    now = RowLayout(schema, tuple(numbers))
    _check_fixed(manifest, now)
    changed = layouts.changed(now, defaults).used_by(manifest.all_shards)
    _check_size(manifest, changed)
    properties = dict(manifest.properties)
    if SPARK_SCHEMA in properties:
        properties[SPARK_SCHEMA] = _spark_schema(properties[SPARK_SCHEMA], layouts.current, changed.current)
    return dataclasses.replace(manifest, schema=schema, evolution=changed, properties=properties)


def _check_fixed(manifest: Manifest, now: RowLayout) -> None:
    """Raise unless the columns on which the order of pages and indexes depends are what they were."""
    other = "build a relation with other ones instead"
    fixed = [
        (manifest.key, "are the key, by which pages are sorted", other),
        (manifest.time_columns, "say when rows of this history are valid", other),
        *(
            (index.key, "have an index", "drop the index first (Relation.drop_index), and add it again afterwards")
            for index in manifest.indexes
        ),
    ]
    for names, why, remedy in fixed:
        if any(now.described(name) != manifest.row_layouts.current.described(name) for name in names):
            raise RelationBuildError(
                f"the columns {', '.join(names)} {why}, so they must keep their names and types; {remedy}"
            )


def _check_kept(now: RowLayout, number: int, field: pa.Field) -> None:
    before = now.schema.field(now.position(number))
    if before.type != field.type and not is_widening(before.type, field.type):
        raise RelationBuildError(
            f"column {before.name!r} of type {before.type} cannot become {field.type}, because not every value would "
            "keep its meaning, or rows would have to be decoded; add a column of that type, or build the relation again"
        )
    if before.nullable and not field.nullable:
        raise RelationBuildError(f"column {before.name!r} may hold NULL, so it cannot become a column without NULL")


def _default(name: str, value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value as a scalar of a column's type."""
    try:
        if pa.types.is_nested(kind):
            raise ValueError("a nested type has no default")
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value], plain)
        return as_type(array, kind)[0]
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise RelationBuildError(
            f"{value!r} cannot be the default of {name!r}, which has the type {kind}: {error}; give a value of that "
            "type, or none for NULL"
        ) from None


def _check_size(manifest: Manifest, layouts: RowLayouts) -> None:
    """Raise if rows of the new layout do not fit into pages, or rows of earlier ones become far longer."""
    codec = codec_of(manifest, layouts.current)
    page = PageLayout(manifest.page_bytes, 0 if codec.variable else codec.stride)
    if codec.stride > page.largest_row():
        raise RelationBuildError(
            f"a row with these columns takes at least {codec.stride:,} bytes, but a page of "
            f"{format_bytes(manifest.page_bytes)} holds rows of at most {page.largest_row():,} bytes; build the "
            "relation again with a larger page_size"
        )
    needed = shown_page_bytes(dataclasses.replace(manifest, schema=layouts.current.schema, evolution=layouts))
    if needed > _MOST_GROWTH * manifest.page_bytes:
        raise RelationBuildError(
            f"with these columns, a page of {format_bytes(manifest.page_bytes)} may need {format_bytes(needed)} in "
            f"memory, and at most {_MOST_GROWTH} times its size is supported; use shorter defaults or none, or first "
            "compact the relation if its columns were changed before"
        )


def _spark_schema(text: str, before: RowLayout, after: RowLayout) -> str:
    """Return Spark's types of the columns as they were built, for columns that still have their type."""
    document = json.loads(text)
    kept = []
    for part in document["fields"]:
        at = before.schema.get_field_index(part["name"])
        to = after.position(before.numbers[at]) if at >= 0 else -1
        if to >= 0 and before.schema.field(at).type == after.schema.field(to).type:
            kept.append({**part, "name": after.schema.field(to).name})
    return json.dumps({**document, "fields": kept})
