"""A device whose pages are ranges of keys of a table in a database.

::

    page i  =  the rows with first[i] ≤ key < first[i + 1]
    read    =  SELECT … WHERE key >= ? AND key < ?  UNION ALL  …        one range per run of pages, many per statement

Rows arrive as Arrow batches, and are sorted and packed into frames like the pages of a file. So every join works on
them without knowing. The ranges are determined once, when the relation is opened (`database_relation`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Ints
from semistream.relation.databases.address import DatabaseError
from semistream.relation.databases.database import VALUE, Database, TableName
from semistream.relation.devices.device import Device, DeviceCounters, DeviceError, DeviceProfile, Frames
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_layout import FIRST, HEADER, LAST, WHOLE, PageLayout, pack_pages
from semistream.relation.rows.row_codec import RowCodec, Rows

__all__ = ["DatabaseDevice"]

_RANGES = 64
"""Ranges per statement: enough that the round trip costs little, few enough that the server plans it quickly."""
_RUN_PAGES = 256  # maximum pages of one range


class DatabaseDevice(Device):
    """Pages of a table in a database.

    Parameters
    ----------
    database, table
        Where R is.
    schema, key
        R's columns and its key, which is one column of a type that sorts in the same order as in the database.
    first
        key64 of the first row of each page, ascending.
    page_bytes
        Bytes of a frame: the size of a page in memory. Transfers from the database have other sizes.
    """

    def __init__(
        self, database: Database, table: TableName, schema: pa.Schema, key: KeyCodec, first: Ints, page_bytes: int,
        stored: pa.Schema,
    ) -> None:  # fmt: skip
        self.database, self.table = database, table
        self.page_bytes = self.frame_bytes = page_bytes
        self.page_count = first.size
        self.counters = DeviceCounters()
        self._schema, self._key, self._first, self._stored = schema, key, first, stored
        self._codec = RowCodec(stored)
        self._layout = PageLayout(page_bytes, 0 if self._codec.variable else self._codec.stride)
        name = database.quoted(key.names[0])
        columns, source = database.listed(schema.names), database.quoted(table)
        self._between = f"SELECT {columns} FROM {source} WHERE {name} >= {VALUE} AND {name} < {VALUE}"
        self._from = f"SELECT {columns} FROM {source} WHERE {name} >= {VALUE}"
        self._lock = threading.Lock()
        self._connection: Any = None
        self._closing: AbstractContextManager[Any] | None = None
        self._closed = False

    def read(self, pages: Ints, frames: Frames) -> None:
        pages, frames = self._checked(pages, frames)
        if not pages.size:
            return
        for bad in pages[(pages < 0) | (pages >= self.page_count)]:
            raise self._no_such_page(int(bad))
        began = time.perf_counter()
        wanted, position = np.unique(pages, return_inverse=True)
        runs = _runs(wanted)
        for begin in range(0, len(runs), _RANGES):
            part = runs[begin : begin + _RANGES]
            here = wanted[part[0][0] : part[-1][1]]
            packed = self._packed(here, [(int(wanted[low]), int(wanted[high - 1]) + 1) for low, high in part])
            inside = (position >= part[0][0]) & (position < part[-1][1])
            frames[inside] = packed[position[inside] - part[0][0]]
        with self._lock:
            self.counters.reads += len(runs)
            self.counters.pages += int(pages.size)
            self.counters.bytes += int(pages.size) * self.page_bytes
            self.counters.seconds += time.perf_counter() - began

    def measure(self) -> DeviceProfile:
        frames = self.allocate(min(16, self.page_count))
        draws = np.random.default_rng(0).integers(0, max(1, self.page_count), 8)
        single = min(self._timed(draws[i : i + 1], frames) for i in range(draws.size))
        run = np.arange(len(frames))
        transfer = max(1e-7, (self._timed(run, frames) - single) / max(1, run.size - 1))
        together = self._timed(np.unique(draws), frames) / np.unique(draws).size
        return DeviceProfile(
            seek_seconds=max(1e-7, single - transfer), transfer_seconds=transfer,
            random_reads_per_second=1 / together, sequential_bytes_per_second=self.page_bytes / transfer,
            depth=_RANGES, direct=False,
        )  # fmt: skip

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def _timed(self, pages: Ints, frames: Frames) -> float:
        began = time.perf_counter()
        self.read(pages, frames)
        return time.perf_counter() - began

    def _packed(self, pages: Ints, runs: Sequence[tuple[int, int]]) -> Frames:
        """Return the frames of ``pages``, ascending, which the given runs (first page, page after the last) cover."""
        rows = self._query(runs)
        keys, _ = self._key.encode(rows)
        order = np.argsort(keys, kind="stable")
        keys, rows = keys[order], rows.take(pa.array(order))
        encoded = self._codec.encode(rows.select(self._stored.names))
        breaks = np.append(np.searchsorted(keys, self._first[pages]), keys.size).astype(np.int64)
        self._check_room(pages, encoded, breaks)
        frames = pack_pages(self._layout, keys, _flags(keys), encoded, breaks)
        frames[:, 8:12] = pages.astype(np.uint32).reshape(-1, 1).view(np.uint8)
        return frames

    def _check_room(self, pages: Ints, rows: Rows, breaks: Ints) -> None:
        """Raise if a page has more rows than fit, because rows were added since the ranges were determined."""
        count = np.diff(breaks)
        if self._layout.stride:
            over = count > self._layout.capacity(self.frame_bytes)
        else:
            ends = np.concatenate([[0], np.cumsum(rows.lengths + 13)])
            over = HEADER + 7 + ends[breaks[1:]] - ends[breaks[:-1]] > self.frame_bytes
        if over.any():
            page = int(pages[int(np.argmax(over))])
            raise DeviceError(
                f"rows were added to {self.table} in {self.database.address} since it was opened, and page {page} of "
                f"{self.page_bytes} B is too small for the {int(count[over][0])} rows of its range now; open it again"
            )

    def _query(self, runs: Sequence[tuple[int, int]]) -> pa.RecordBatch:
        """Return all rows of the runs, in any order."""
        selects, limits = [], []
        for low, high in runs:
            limits.append(int(self._first[low]))
            selects.append(self._between if high < self.page_count else self._from)
            if high < self.page_count:
                limits.append(int(self._first[high]))
        values = self._key.decode(np.array(limits, np.int64))
        with self._lock:
            if self._closed:
                raise DeviceError(f"the relation in {self.database.address} is closed; open it again")
            if self._connection is None:
                self._closing = self.database.connect()
                self._connection = self._closing.__enter__()
            try:
                return self.database.select(self._connection, selects, values, self._schema)
            except DatabaseError:
                raise
            except Exception as error:
                # A broken connection is not used again; the next read opens a new one.
                self._disconnect()
                raise DeviceError(f"cannot read {self.table} in {self.database.address}: {error}") from error

    def _disconnect(self) -> None:
        if self._closing is not None:
            closing, self._closing, self._connection = self._closing, None, None
            closing.__exit__(None, None, None)


def _runs(pages: Ints) -> list[tuple[int, int]]:
    """Return where runs of consecutive ids begin and end in ascending ``pages``."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    edges = np.concatenate([[0], breaks, [pages.size]])
    runs = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        runs += [(begin, min(begin + _RUN_PAGES, high)) for begin in range(low, high, _RUN_PAGES)]
    return runs


def _flags(keys: Ints) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the flags of rows in key order; a page holds all rows of its keys."""
    flags = np.full(keys.size, WHOLE, np.uint8)
    if keys.size:
        new = np.concatenate([[True], keys[1:] != keys[:-1]])
        flags[new] |= FIRST
        flags[np.append(new[1:], True)] |= LAST
    return flags
