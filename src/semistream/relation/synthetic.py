"""A relation that generates its pages on request: R of 100 million tuples without using any space.

It serves simulations at the papers' sizes. Keys are ``0, stride, 2·stride, …`` in order, each repeated
``rows_per_key`` times. Rows are padded with zeros to the tuple size of the papers. Only keys and headers are written,
which takes a few hundred nanoseconds per page.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.core.arrays import Bytes, Ints
from semistream.core.clock import VirtualClock
from semistream.core.compiled import frozen, kernel
from semistream.relation.devices.simulated_device import SimulatedDevice
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_index import ClusteredIndex
from semistream.relation.pages.page_layout import FIRST, FORMAT, HEADER, LAST, WHOLE, PageLayout
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec

__all__ = ["SyntheticPages", "synthetic_relation"]


@kernel
def _fill(
    pages: Ints, frames: Bytes, rows: int, rows_per_page: int, rows_per_key: int, key_stride: int, row_bytes: int
) -> None:
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
        for row in range(n):
            key = (first + row) // rows_per_key
            begin, end = key * rows_per_key, min((key + 1) * rows_per_key, rows)
            keys[row] = key * key_stride
            flag = 0
            if first + row == begin:
                flag |= FIRST
            if first + row == end - 1:
                flag |= LAST
            if begin >= first and end <= first + n:
                flag |= WHOLE
            flags[row] = flag


class SyntheticPages:
    """The pages of a synthetic relation, as a source for a `SimulatedDevice`.

    Parameters
    ----------
    rows, rows_per_page, rows_per_key, key_stride
        Their content: number of rows, rows per page, rows per key, and the distance between keys.
    row_bytes
        Bytes of a stored row.
    page_bytes
        Size of a page.
    """

    def __init__(
        self, rows: int, rows_per_page: int, rows_per_key: int, key_stride: int, row_bytes: int, page_bytes: int
    ) -> None:
        self.rows = rows
        self.rows_per_page = rows_per_page
        self.rows_per_key = rows_per_key
        self.key_stride = key_stride
        self.row_bytes = row_bytes
        self.page_bytes = self.frame_bytes = page_bytes
        self.page_count = -(-rows // rows_per_page)

    def fill(self, pages: Ints, frames: Bytes) -> None:
        """Write headers, keys and flags. The rows themselves are zeros, and frames are zeroed from the start."""
        _fill(
            frozen(pages), frames, self.rows, self.rows_per_page, self.rows_per_key, self.key_stride, self.row_bytes
        )  # fmt: skip


def synthetic_relation(
    rows: int,
    *,
    row_bytes: int = 120,
    page_bytes: int = 8192,
    rows_per_key: int = 1,
    key_stride: int = 1,
    fill: float = 1.0,
    seek_seconds: float = 0.0085,
    transfer_seconds: float | None = None,
    clock: VirtualClock | None = None,
    key: str = "id",
) -> Relation:
    """Return a relation on a simulated device.

    Parameters
    ----------
    rows, row_bytes
        Tuples of R, and bytes of each, including the key (``R_t``, ``v_R``).
    page_bytes, fill
        Page size in bytes, and the fraction of a page that is filled.
    rows_per_key
        ``K`` of a 1:K relation.
    key_stride
        Distance between neighbouring keys. If greater than 1, the keys between are absent.
    seek_seconds, transfer_seconds
        Costs of the device, per run and per page. By default a disk of 2010: 8.5 ms and 100 MB/s.
    clock
        Advanced by every read.

    Examples
    --------
    >>> relation = synthetic_relation(100_000_000)
    >>> relation.page_count, relation.to_batches().__next__().column("id")[:3].to_pylist()
    (1515152, [0, 1, 2])
    """
    if rows < 1 or row_bytes < 9 or rows_per_key < 1 or key_stride < 1:
        raise ValueError(
            f"rows ({rows}), rows_per_key ({rows_per_key}) and key_stride ({key_stride}) must be at least 1, "
            f"and row_bytes ({row_bytes}) at least 9"
        )
    schema = pa.schema([pa.field(key, pa.int64()), pa.field("filler", pa.binary(row_bytes - 8))])
    codec = KeyCodec.for_schema(schema, key)
    stride = RowCodec(stored_schema(schema, codec)).stride
    rows_per_page = max(1, PageLayout(page_bytes, stride).capacity(int(page_bytes * fill)))
    pages = SyntheticPages(rows, rows_per_page, rows_per_key, key_stride, stride, page_bytes)
    device = SimulatedDevice(
        pages,
        seek_seconds=seek_seconds,
        transfer_seconds=page_bytes / 100e6 if transfer_seconds is None else transfer_seconds,
        clock=clock or VirtualClock(),
    )
    starts = np.arange(pages.page_count, dtype=np.int64) * rows_per_page
    continues = (starts % rows_per_key != 0) if rows_per_key > 1 else np.zeros(pages.page_count, bool)
    index = ClusteredIndex(starts // rows_per_key * key_stride, continues, (rows - 1) // rows_per_key * key_stride)
    return Relation(
        schema, codec, device, [index], [pages.page_count],
        rows=rows, unique=rows_per_key == 1, clustered=True,
    )  # fmt: skip
