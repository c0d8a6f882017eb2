"""How the rows of a relation are stored: the columns of a row, and the encoding of each.

Every reader and writer of R's rows gets its codec here, so that all of them agree on the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.core.errors import RelationBuildError
from semistream.core.units import format_bytes
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_layout import PageLayout
from semistream.relation.rows.dictionaries import roomy_schema
from semistream.relation.rows.fitting import as_type
from semistream.relation.rows.packed.packing import Packing
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.storage.manifest import Manifest
from semistream.relation.storage.row_layouts import RowLayout

__all__ = ["check_row_lengths", "codec_of", "roomy_codec", "row_format", "rows_codec", "stored_schema", "whole_rows"]


def stored_schema(schema: pa.Schema, key: KeyCodec) -> pa.Schema:
    """Return the columns that a row stores. An exact key is restored from its key64, so it is not stored twice."""
    if not key.exact:
        return schema
    return pa.schema([field for field in schema if field.name not in key.names])


def whole_rows(schema: pa.Schema, key: KeyCodec, keys: Ints, stored: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of ``schema``, given their key64 and stored columns; the inverse of `stored_schema`."""
    if not key.exact:
        return stored
    columns = [
        as_type(key.decode(keys), field.type) if field.name in key.names else stored.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_codec(
    schema: pa.Schema, key: KeyCodec, packing: Packing | None = None, numbers: Sequence[int] | None = None
) -> RowCodec:
    """Return the codec of the rows of a relation.

    Parameters
    ----------
    schema, key
        R's columns, and its key.
    packing
        How columns are packed; None if rows are plain.
    numbers
        The numbers of R's columns; by default their positions.
    """
    stored = stored_schema(schema, key)
    if packing is None:
        return RowCodec(stored)
    packed = packing.by_name(schema.names, range(len(schema)) if numbers is None else numbers)
    return RowCodec(stored, {name: packed[name] for name in stored.names if name in packed})


def codec_of(manifest: Manifest, layout: RowLayout | None = None, *, key: KeyCodec | None = None) -> RowCodec:
    """Return the codec of the rows of a version.

    By default of the rows in the current row layout, and in the order of R's key; an index has another ``key``.
    """
    layout = manifest.row_layouts.current if layout is None else layout
    return rows_codec(layout.schema, manifest.codec if key is None else key, manifest.packing, layout.numbers)


def check_row_lengths(
    codec: RowCodec, layout: PageLayout, lengths: Ints, remedy: str, rows: pa.RecordBatch | None = None
) -> None:
    """Raise unless each row fits into a page; ``lengths`` are the bytes that ``rows`` take with a codec."""
    longest = int(lengths.max(initial=0))
    if longest <= layout.largest_row():
        return
    if codec.packings and rows is not None:
        plain = RowCodec(codec.schema)
        unpacked = int(plain.lengths(rows.slice(int(lengths.argmax()), 1))[0])
        if unpacked <= PageLayout(layout.frame_bytes, 0 if plain.variable else unpacked).largest_row():
            remedy += f", or encoding='plain', in which this row takes {unpacked:,} bytes"
    raise RelationBuildError(
        f"a row takes {longest:,} bytes, but a page of {format_bytes(layout.frame_bytes)} holds rows of at most "
        f"{layout.largest_row():,} bytes; {remedy}"
    )


def row_format(codec: RowCodec, packing: Packing | None) -> str:
    """Return what identifies the bytes of rows: rows that are cached elsewhere may be read only if it is the same."""
    return str(codec.schema) if packing is None else f"{codec.schema}; packed {packing.id}"


def roomy_codec(codec: RowCodec) -> RowCodec:
    """Return a codec of the same bytes, for rows whose dictionaries have int32 indices (see `roomy_schema`)."""
    return RowCodec(roomy_schema(codec.schema), codec.packings)
