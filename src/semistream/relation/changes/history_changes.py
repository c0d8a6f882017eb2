"""Changes that make history: from a moment on, keys have new rows or none, and their earlier rows stay.

The current row of a key ends at that moment, and the new row begins there. Each change becomes an ordinary update,
which replaces all rows of the changed keys. So it is committed in one version, or not at all.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.arrays import Ints
from semistream.core.errors import RelationBuildError
from semistream.core.value_texts import short, value_texts
from semistream.relation.changes.changed_rows import among, as_in_r, by_key, given_rows
from semistream.relation.changes.updatable import State, Updatable
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.stored_rows import roomy_codec, whole_rows
from semistream.relation.rows.arrow_input import as_reader
from semistream.relation.rows.dictionaries import roomy_schema
from semistream.relation.rows.fitting import as_type, no_rows
from semistream.relation.rows.selection import keep_rows, take_rows

__all__ = ["as_of_moment", "moment_of", "present_rows"]

_ZONED = re.compile(r"(Z|:\d\d[+-]\d\d(:?\d\d)?|\.\d+[+-]\d\d(:?\d\d)?)$")
"""The end of a text with a time zone."""


def moment_of(times: ValidTimes, at: Any) -> int:
    """Return a moment, given as text, a date, a datetime, a number or an Arrow scalar, as a number like R's times.

    A time without a zone is interpreted in the time zone of R's column.

    >>> times = ValidTimes.of(pa.schema({"since": pa.timestamp("s", "Europe/Berlin")}), "since")
    >>> moment_of(times, "2026-01-01"), moment_of(times, "2026-01-01T00:00:00+01:00")
    (1767222000, 1767222000)
    """
    try:
        numbers, valid = times.numbers(_as_time(at, times.type))
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise RelationBuildError(
            f"at={_text(at)} is no time of {times.valid_from!r}, which is {times.type} ({error}); give a time that "
            "this type can hold"
        ) from error
    if not valid[0]:
        raise RelationBuildError("at=None is no time; give the time from which the change is valid")
    return int(numbers[0])


def _as_time(at: Any, kind: pa.DataType) -> pa.Array:
    """Return a moment as an array of one time; raise an error of Arrow or Python if it is not of this type."""
    if isinstance(at, pa.Scalar):
        value = pa.repeat(at, 1)
    elif isinstance(at, np.generic):
        value = pa.array(np.array([at]))
    else:
        value = pa.array([at], kind if isinstance(at, int) and pa.types.is_integer(kind) else None)
    if pa.types.is_timestamp(kind):
        if pa.types.is_string(value.type):
            value = value.cast(pa.timestamp(kind.unit, "UTC" if _ZONED.search(str(at)) else None))
        if pa.types.is_date(value.type):
            value = value.cast(pa.timestamp(kind.unit))
        if pa.types.is_timestamp(value.type) and value.type.tz is not None and kind.tz is None:
            raise ValueError("it has a time zone, and the column has none: give local time")
        if pa.types.is_timestamp(value.type) and value.type.tz is None and kind.tz is not None:
            value = pc.assume_timezone(value, kind.tz)
    elif pa.types.is_date(kind) and pa.types.is_timestamp(value.type):
        raise ValueError("it is more exact than a date")
    elif pa.types.is_integer(kind) and pa.types.is_temporal(value.type):
        raise ValueError("the times of this relation are numbers")
    return value.cast(kind)


def _text(at: Any) -> str:
    """Return a moment for a message; Python cannot represent all that Arrow can."""
    return str(value_texts(pa.repeat(at, 1))[0]) if isinstance(at, pa.Scalar) else repr(at)


def as_of_moment(relation: Updatable, now: State, upserts: Any, deletes: Any, at: Any) -> tuple[Any, Any]:
    """Return the update, as rows to upsert and keys to delete, that changes a history from a moment on."""
    times = relation.times
    if times is None:
        raise RelationBuildError(
            f"at={_text(at)} needs a history, but rows of this relation have no times; leave at= out, or build the "
            "relation with valid_from="
        )
    if times.valid_to is None and deletes is not None:
        raise RelationBuildError(
            f"a delete at={_text(at)} ends rows, but this history has no column for their end; build it with "
            "valid_to=, or leave at= out to remove keys with all their versions"
        )
    moment = moment_of(times, at)
    schema = roomy_schema(relation.schema)
    rows = no_rows(schema) if upserts is None else as_in_r(_begun(relation, times, upserts, moment), relation.schema)
    keys, keyed = by_key(relation.key, rows)
    again = np.flatnonzero(keys[1:] == keys[:-1])
    if again.size:
        raise RelationBuildError(
            f"{again.size:,} keys have several rows{_such(relation, keyed, again)}; from a moment on a key has one "
            "row: keep the one that is valid"
        )
    if isinstance(deletes, pa.Array | pa.ChunkedArray):
        deletes = pa.table([deletes], names=list(relation.key.names)[:1])
    gone_keys, gone = by_key(relation.key, given_rows(deletes, relation, relation.key.names))
    old_keys, old = present_rows(relation, now, np.union1d(keys, gone_keys))
    touched = np.isin(old_keys, keys)
    only_gone, place = among(old_keys, gone_keys)
    if only_gone.any() and not relation.key.exact:  # another key may have the same hash
        names = list(relation.key.names)
        stored = keep_rows(old, only_gone).select(names)
        only_gone[only_gone] = relation.key.verify(take_rows(gone, place[only_gone]), names, stored)
    touched |= only_gone
    old_keys, old = old_keys[touched], keep_rows(old, touched)
    begins = times.begins(old)
    late = np.flatnonzero(begins > moment)
    if late.size:
        raise RelationBuildError(
            f"at={_text(at)} is earlier than the begin of {late.size:,} rows of the changed keys"
            f"{_such(relation, old, late)}; a change may only follow a key's newest row: to correct history, upsert "
            "all rows of these keys without at="
        )
    stays = begins < moment  # a row that begins at the same moment is replaced
    newest = np.append(old_keys[stays][1:] != old_keys[stays][:-1], True)[: int(stays.sum())]
    ended = _ended(times, keep_rows(old, stays), newest & (times.lasts(old)[stays] >= moment), moment)
    empty = np.setdiff1d(old_keys, np.concatenate([old_keys[stays], keys]))
    left = keep_rows(old, np.isin(old_keys, empty)).select(list(relation.key.names))
    return pa.Table.from_batches([ended, rows]), pa.Table.from_batches([left]) if empty.size else None


def _begun(relation: Updatable, times: ValidTimes, upserts: Any, moment: int) -> pa.RecordBatch:
    """Return rows with the times at which they begin and end."""
    table = as_reader(upserts).read_all()
    for name in (times.valid_from, times.valid_to):
        if name is None:
            continue
        if name in table.schema.names:
            raise RelationBuildError(
                f"the update has a column {name!r}, which at= sets for all rows; leave the column out, or leave at= "
                "out and give all rows of the changed keys"
            )
        value = None if name == times.valid_to else times.values(np.array([moment]))[0]
        field = relation.schema.field(name)
        table = table.append_column(field, as_type(pa.repeat(pa.scalar(value, field.type), table.num_rows), field.type))
    return given_rows(table, relation, relation.schema.names)


def _ended(times: ValidTimes, rows: pa.RecordBatch, ends: Any, moment: int) -> pa.RecordBatch:
    """Return the rows, some of which end at ``moment``."""
    if times.valid_to is None or not ends.any():
        return rows
    at = rows.schema.get_field_index(times.valid_to)
    end = times.values(np.array([moment]))[0].cast(rows.schema.field(at).type)
    return rows.set_column(at, rows.schema.field(at), pc.if_else(pa.array(ends), end, rows.column(at)))


def present_rows(relation: Updatable, now: State, keys: Ints) -> tuple[Ints, pa.RecordBatch]:
    """Return all rows of some keys, by key and time."""
    schema = roomy_schema(relation.schema)
    codec = roomy_codec(relation.codec)
    found_keys, found = [np.empty(0, np.int64)], [no_rows(schema)]
    home = relation.home(keys)
    for number, index in enumerate(now.indexes):
        assert isinstance(index, ClusteredIndex)
        located = index.locate(keys[home == number])
        pages = np.unique(located.pages)
        pages = pages if index.ids is not None else pages + relation.shard_bases[number]
        if pages.size == 0:
            continue
        frames = relation.frames(pages.size)
        now.overlay.read(relation.device, pages, frames)
        key64, _, starts = page_keys(frames, relation.layout.stride)
        mine = np.isin(key64, keys)
        stored = codec.decode(frames.reshape(-1), starts[mine])
        found_keys.append(key64[mine])
        found.append(whole_rows(schema, relation.key, key64[mine], stored))
    all_keys, rows = np.concatenate(found_keys), pa.concat_batches(found)
    assert relation.times is not None
    order = np.lexsort((relation.times.begins(rows), all_keys))
    return all_keys[order], take_rows(rows, order)


def _such(relation: Updatable, rows: pa.RecordBatch, at: Ints) -> str:
    """Return keys of some rows, for a message."""
    some = take_rows(rows, at[:3])
    texts = [value_texts(some.column(name)) for name in relation.key.names]
    return f", such as {'; '.join(short(', '.join(map(str, key))) for key in zip(*texts, strict=True))}"
