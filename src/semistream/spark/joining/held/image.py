"""The image of a relation: all of its pages, and a table from each key to its row, in files that tasks map.

::

    data.array      the pages of R, as they are on disk
    keys.array      the table: keys by slot (not of a direct table)
    places.array    the table: where the row of each slot's key starts in data.array; -1 if the slot is empty
    ready           which relation and version the files contain; written last

The table of a dated image, for as-of joins with a history, has all rows in the order of key and time: keys.array,
begins.array, lasts.array and places.array.

Rows stay encoded. A gather decodes only the rows and columns that a batch needs, so one image serves any number of
joins with the relation. An image never changes once it is ready.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from semistream.core.arrays import Bools, Bytes, Ints, Slots
from semistream.core.compiled import frozen
from semistream.joins.interface.conditions import read_moments
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.keys.valid_times import ValidTimes
from semistream.relation.pages.page_layout import page_keys
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.packed.decoded_sizes import DecodedSizes
from semistream.relation.rows.packed.packing import ColumnPacking
from semistream.relation.rows.row_codec import RowCodec
from semistream.relation.rows.row_gather import RowGather
from semistream.relation.rows.selection import take_rows
from semistream.spark.joining.held.key_table import KeyTable, TableLayout, fill_table, find_places, layout_for
from semistream.spark.joining.held.version_table import ROW_BYTES, VersionTable, find_versions

__all__ = ["MOST_HELD", "RESULTS", "RESULT_ROOM", "Image", "build_image", "image_bytes", "room_for"]

MOST_HELD = 1 << 30
"""Maximum bytes of pages to hold: places are 32 bits wide, and a new version is read as a whole."""
_READY = "ready"
_SLOT_BYTES = 18
"""Maximum bytes of the table per key."""
_LEAST_ROOM = 1 << 17
"""Minimum bytes for results and for growth of a tiny relation."""
RESULTS = 8
"""1/8 of the memory is for results of all tasks; the image may use the rest."""
RESULT_ROOM = 1 << 21
"""Bytes for results, added if the memory is a share of a small relation: enough for about 6,000 rows of 90 B in each of
two tasks."""
_PAGES = 256
"""Pages to read in one call."""


def image_bytes(rows: int, nbytes: int, *, dated: bool = False) -> int:
    """Return the maximum bytes of the image of a relation of ``rows`` rows and ``nbytes`` bytes."""
    return nbytes + (ROW_BYTES if dated else _SLOT_BYTES) * rows + 4096


def room_for(rows: int, nbytes: int, *, dated: bool = False) -> int:
    """Return the memory that a query needs to hold such a relation: its image, results, and room for R to grow."""
    return image_bytes(rows, nbytes, dated=dated) * 3 // 2 + _LEAST_ROOM


class Image:
    """The image of one version of a relation, mapped by this process.

    Parameters
    ----------
    directory
        Where `build_image` wrote it. `FileNotFoundError` if there is no image, or it is not ready.
    """

    def __init__(self, directory: Path) -> None:
        facts = json.loads((directory / _READY).read_text())
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"])))
        self.key: tuple[str, ...] = tuple(facts["key"])
        self.version: int = facts["version"]
        self.rows: int = facts["rows"]
        self.data = _mapped(directory / "data.array", facts["data"], np.uint8)
        self._table: KeyTable | VersionTable
        if facts["times"] is not None:
            self._times = ValidTimes.of(self.schema, *facts["times"])
            keys, begins, lasts = (
                _mapped(directory / f"{name}.array", self.rows, np.int64) for name in ("keys", "begins", "lasts")
            )
            self._table = VersionTable(keys, begins, lasts, _mapped(directory / "places.array", self.rows, np.int32))
            table_bytes = ROW_BYTES * self.rows
        else:
            layout = TableLayout(facts["direct"], facts["slots"], facts["low"])
            keys = _mapped(directory / "keys.array", 0 if layout.direct else layout.slots, np.int64)
            self._table = KeyTable(layout, keys, _mapped(directory / "places.array", layout.slots, np.int32))
            table_bytes = layout.nbytes
        self.nbytes: int = facts["data"] + table_bytes
        """Bytes of the files; they occupy memory."""
        self._codec = KeyCodec.for_schema(self.schema, self.key)
        packed = {name: ColumnPacking.from_json(stored) for name, stored in facts["packed"].items()}
        self._rows = RowCodec(stored_schema(self.schema, self._codec), packed)
        self._row_bytes: int | None = facts.get("row_bytes")  # an image of an earlier release has none
        self._key = RowGather(self._rows, [] if self._codec.exact else list(self.key))

    @property
    def row_bytes(self) -> int:
        """Mean bytes of a row when it is decoded; for packed rows, the mean of the first rows."""
        return self._row_bytes or int(self._rows.decoded_bytes(self.data.size // max(1, self.rows)))

    def find(self, keys: pa.RecordBatch, asked: Bools | None = None) -> tuple[Slots, Bools]:
        """Return where the row of each key starts, -1 if there is none; and which keys contain no NULL.

        Parameters
        ----------
        keys
            The stream's key columns, in the order of R's key; for a dated image, then the time.
        asked
            Which rows to look up; by default all.
        """
        names = keys.schema.names[: len(self.key)]
        numbers, valid = self._codec.encode(keys, names)
        if isinstance(self._table, VersionTable):
            moments, dated = read_moments(keys.column(len(self.key)), self._times)
            valid = valid & dated
            looked_up = valid if asked is None else valid & asked
            places, hits = find_versions(self._table, numbers, moments, looked_up)
        else:
            looked_up = valid if asked is None else valid & asked
            places, hits = find_places(self._table, frozen(numbers), frozen(looked_up))
        if hits and not self._codec.exact:  # a different key may have the same hash
            there = np.flatnonzero(places >= 0)
            columns = self._key(self.data, places[there].astype(np.int64))
            ours = pa.RecordBatch.from_arrays(columns, names=list(self._codec.names))
            same = self._codec.verify(take_rows(keys, there), names, ours)
            places[there[~same]] = -1
        return places, valid

    def gather(self, names: Sequence[str]) -> RowGather:
        """Return a function that decodes columns of rows; call it with `data` and places."""
        return RowGather(self._rows, names)


def build_image(relation: Relation, directory: Path, *, dated: bool = False) -> None:
    """Write the image of a relation into an empty directory.

    All shards of the relation must be open.
    """
    frame = relation.device.frame_bytes
    pages = relation.page_count
    data = _made(directory / "data.array", pages * frame, np.uint8)
    frames = relation.frames(min(_PAGES, max(1, pages)))
    low, high, count = np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0
    for begin in range(0, pages, len(frames)):
        some = np.arange(begin, min(begin + len(frames), pages))
        relation.read(some, frames[: some.size])
        data[begin * frame : (begin + some.size) * frame] = frames[: some.size].reshape(-1)
        keys, _, _ = page_keys(frames[: some.size], relation.layout.stride)
        if keys.size:
            low, high, count = min(low, int(keys.min())), max(high, int(keys.max())), count + keys.size
    facts = {
        "version": relation.version, "rows": count, "data": pages * frame, "key": relation.key.names, "times": None,
        "schema": base64.b64encode(relation.schema.serialize().to_pybytes()).decode(),
        "packed": {name: packing.to_json() for name, packing in relation.codec.packings.items()},
        "row_bytes": _decoded_row(relation, data) if relation.codec.packed is not None else None,
    }  # fmt: skip
    if dated:
        assert relation.times is not None
        facts["times"] = [relation.times.valid_from, relation.times.valid_to]
        _build_versions(relation, relation.times, directory, data, count)
    else:
        layout = layout_for(count, low, high, exact=relation.key.exact)
        facts |= layout._asdict()
        slots = _made(directory / "keys.array", 0 if layout.direct else layout.slots, np.int64)
        places = _made(directory / "places.array", layout.slots, np.int32)
        places[:] = -1
        table = KeyTable(layout, slots, places)
        for keys, starts in _rows_of(relation, data):
            fill_table(table, keys, starts)
    new = directory / f"{_READY}.new"
    new.write_text(json.dumps(facts))
    new.rename(directory / _READY)


def _rows_of(relation: Relation, data: Bytes) -> Iterator[tuple[Ints, Ints]]:
    """Yield the keys of rows, and where they start in the pages of all shards."""
    frame = relation.device.frame_bytes
    for begin in range(0, data.size, _PAGES * frame):
        some = data[begin : begin + _PAGES * frame].reshape(-1, frame)
        keys, _, starts = page_keys(some, relation.layout.stride)
        yield keys, starts + begin


def _decoded_row(relation: Relation, data: Bytes) -> int:
    """Return the mean bytes of the first packed rows when they are decoded."""
    for _, starts in _rows_of(relation, data):
        if starts.size:
            return int(np.ceil(DecodedSizes(relation.codec)(data, starts).mean()))
    return 0


def _build_versions(relation: Relation, times: ValidTimes, directory: Path, data: Bytes, count: int) -> None:
    """Write the table of a dated image."""
    names = [times.valid_from] if times.valid_to is None else [times.valid_from, times.valid_to]
    gather, at = RowGather(relation.codec, names), 0
    keys, begins, lasts = np.empty((3, count), np.int64)
    places = np.empty(count, np.int32)
    for some, starts in _rows_of(relation, data):
        batch = pa.RecordBatch.from_arrays(gather(data, starts), names=names)
        here = slice(at, at + some.size)
        keys[here], begins[here], lasts[here], places[here] = some, times.begins(batch), times.lasts(batch), starts
        at += some.size
    order = np.lexsort((begins, keys))
    arrays: dict[str, NDArray[Any]] = {"keys": keys, "begins": begins, "lasts": lasts, "places": places}
    for name, array in arrays.items():
        _made(directory / f"{name}.array", count, array.dtype)[:] = array[order]


def _made(path: Path, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Create a file of zeros and map it.

    Its space is allocated now: later there may be none.
    """
    kind = np.dtype(dtype)
    if count == 0:
        return np.zeros(0, kind)
    with path.open("x+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, count * kind.itemsize)
        return np.frombuffer(mmap.mmap(file.fileno(), count * kind.itemsize), kind)


def _mapped(path: Path, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """Map a file for reading."""
    kind = np.dtype(dtype)
    if count == 0:
        return frozen(np.zeros(0, kind))
    with path.open("rb", buffering=0) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), count * kind.itemsize, access=mmap.ACCESS_READ), kind)
