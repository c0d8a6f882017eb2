"""Pages for simulated runs: relations whose keys occur any number of times, and pages that can be left blank."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.clock import VirtualClock
from semistream.core.compiled import frozen, kernel
from semistream.relation.devices.simulated_device import PageSource, SimulatedDevice
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, FORMAT, HEADER, LAST, WHOLE, PageLayout
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["BlankablePages", "CountedPages", "counted_relation"]


@kernel
def _fill(pages: Ints, frames: Bytes, ends: Ints, rows_per_page: int, row_bytes: int) -> None:
    rows = ends[-1]
    for i in range(pages.size):
        frame = frames[i]
        first = pages[i] * rows_per_page
        n = min(rows_per_page, rows - first)
        words = frame.view(np.uint32)
        words[2] = pages[i]
        words[3] = n
        words[4] = ((HEADER + 9 * n + 7) & ~7) + n * row_bytes
        words[5] = FORMAT
        keys = frame[HEADER : HEADER + 8 * n].view(np.int64)
        flags = frame[HEADER + 8 * n : HEADER + 9 * n]
        key = np.searchsorted(ends, first, side="right")
        for row in range(n):
            while ends[key] <= first + row:
                key += 1
            begin = np.int64(0) if key == 0 else ends[key - 1]
            flag = 0
            if first + row == begin:
                flag |= FIRST
            if first + row == ends[key] - 1:
                flag |= LAST
            if begin >= first and ends[key] <= first + n:
                flag |= WHOLE
            keys[row] = key
            flags[row] = flag


class CountedPages:
    """Pages of a relation in which key ``i`` occurs ``counts[i]`` times, in key order."""

    def __init__(self, counts: Ints, rows_per_page: int, row_bytes: int, page_bytes: int) -> None:
        self.ends = frozen(np.cumsum(counts, dtype=np.int64))
        self.rows_per_page = rows_per_page
        self.row_bytes = row_bytes
        self.page_bytes = self.frame_bytes = page_bytes
        self.page_count = -(-int(self.ends[-1]) // rows_per_page)

    def fill(self, pages: Ints, frames: Bytes) -> None:
        """Write headers, keys and flags; the rows are zeros, as frames are from the start."""
        _fill(frozen(pages), frames, self.ends, self.rows_per_page, self.row_bytes)


class BlankablePages:
    """The pages of another source, or pages without rows while ``blank`` is set.

    A scan of R without rows fills a join's queue at the cost of its reads only. This is a quick way into the steady
    state of joins that read R cyclically: in them, how long a tuple stays does not depend on its matches.
    """

    def __init__(self, source: PageSource) -> None:
        self.source = source
        self.page_bytes, self.frame_bytes = source.page_bytes, source.frame_bytes
        self.page_count = source.page_count
        self.blank = False

    def fill(self, pages: Ints, frames: Bytes) -> None:
        """Write the pages, or only headers of empty pages."""
        if self.blank:
            frames[: len(pages), 8:24].view(np.uint32)[:] = np.array([0, 0, HEADER, FORMAT], np.uint32)
        else:
            self.source.fill(pages, frames)


def counted_relation(
    counts: Ints,
    row_bytes: int,
    *,
    page_bytes: int = 8192,
    fill: float = 1.0,
    seek_seconds: float = 0.0085,
    key: str = "id",
) -> Relation:
    """Return a relation on a simulated disk in which key ``i`` occurs ``counts[i]`` times.

    >>> relation = counted_relation(np.array([2, 0, 3]), row_bytes=16)
    >>> relation.row_count, relation.to_table()["id"].to_pylist()
    (5, [0, 0, 2, 2, 2])
    """
    schema = pa.schema([pa.field(key, pa.int64()), pa.field("filler", pa.binary(row_bytes - 8))])
    codec = KeyCodec.for_schema(schema, key)
    stride = RowCodec(stored_schema(schema, codec)).stride
    rows_per_page = max(1, PageLayout(page_bytes, stride).capacity(int(page_bytes * fill)))
    pages = CountedPages(counts, rows_per_page, stride, page_bytes)
    device = SimulatedDevice(
        pages, seek_seconds=seek_seconds, transfer_seconds=page_bytes / 100e6, clock=VirtualClock()
    )
    starts = np.arange(pages.page_count, dtype=np.int64) * rows_per_page
    first = np.searchsorted(pages.ends, starts, side="right").astype(np.int64)
    begins = np.concatenate([[0], pages.ends])[first]
    rows = int(pages.ends[-1])
    last = int(np.searchsorted(pages.ends, rows - 1, side="right"))
    index = ClusteredIndex(first, begins < starts, last)
    return Relation(
        schema, codec, device, [index], [pages.page_count],
        rows=rows, unique=bool(counts.max() <= 1), clustered=True,
    )  # fmt: skip
