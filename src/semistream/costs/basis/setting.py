"""The input of a cost model: R, the stream and the machine, in bytes and counts of our own structures."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.costs.basis.constants import Constants, load_constants
from semistream.joins.shares import Lending
from semistream.relation.keys.key_codec import KeyCodec
from semistream.relation.pages.page_layout import FIRST, PageLayout, page_keys
from semistream.relation.pages.shard_writer import check_page_bytes
from semistream.relation.pages.stored_rows import stored_schema
from semistream.relation.relation import Relation
from semistream.relation.rows.row_codec import RowCodec
from semistream.structures.hot.hot_tuples import HotTuples
from semistream.structures.stream_table import StreamTable
from semistream.workloads.keys.key_source import Shape
from semistream.workloads.keys.zipf import ZipfLaw

__all__ = ["LentParts", "Setting"]

_SAMPLED_PAGES = 64


@dataclass(frozen=True)
class LentParts:
    """What the front stage lends to the join behind it; see `semistream.joins.interface.stage_behind.Lent`."""

    lending: Lending = Lending.NOTHING
    inbox: int = 0
    pairs: int = 0
    portion: float = math.inf
    """Tuples that the stage looks up together; their hits fill a batch of results."""


_NOTHING = LentParts()


@dataclass(frozen=True)
class Setting:
    """A relation, a stream and a machine, as far as a cost model needs to know them.

    ===================  ==========  ========================================================================
    field                symbol      what
    ===================  ==========  ========================================================================
    rows                 ``R_t``     tuples of R
    pages                ``N_R``     pages of R
    page_bytes           ``v_P``     bytes of a page on the device
    frame_bytes                      bytes of a page in memory (the same, except in simulations)
    index_bytes                      bytes of the index of R in memory
    waiting_bytes                    one stream tuple in ``H_S`` and queue (the papers' ``f·v_S`` + queue node)
    cached_bytes         ``u``       one tuple of R in ``H_R``, frequency and hash entry included
    buffered_bytes       ``v_S``     one stream tuple in a stream buffer, as it is counted there
    arrow_bytes                      one stream tuple in Arrow batches
    rows_per_key         ``K``       tuples of R with the same key
    exponent             ``s``       Zipf exponent of the stream's keys, 0 = uniform
    shape                            position of frequent keys in R: ``noperm`` first, ``random`` anywhere
    ===================  ==========  ========================================================================

    Made by `of` from a relation, by `planned` from numbers alone.
    """

    rows: int
    pages: int
    page_bytes: int
    frame_bytes: int
    index_bytes: int
    waiting_bytes: int
    cached_bytes: int
    buffered_bytes: float
    arrow_bytes: float
    constants: Constants
    rows_per_key: float = 1.0
    exponent: float = 1.0
    shape: Shape = "random"
    page_rows: int | None = None
    """Rows that fit into a page; None if they vary in length."""
    lent: LentParts = _NOTHING
    """For a join behind a cache."""

    @classmethod
    def of(
        cls,
        relation: Relation,
        schema: pa.Schema,
        *,
        exponent: float = 1.0,
        shape: Shape = "random",
        rows_per_key: float | None = None,
        row_bytes: float | None = None,
        constants: Constants | None = None,
    ) -> Setting:
        """Describe a join of a stream of ``schema`` with ``relation``.

        Parameters
        ----------
        exponent, shape
            Skew of the stream, and position of its frequent keys in R.
        rows_per_key
            ``K``; by default 1 for a unique key, else an estimate from some pages of R.
        row_bytes
            Average bytes of a stored stream row, if its length varies.
        constants
            By default those measured on this machine, else the package's. A simulated device has its own read costs.
        """
        stream = RowCodec(schema)
        width = float(stream.stride if not stream.variable else row_bytes or stream.stride + 16.0)
        stored = relation.layout.mean_row(relation.page_bytes, relation.rows_per_page)
        if constants is None:
            constants = load_constants()
            device = relation.device
            if device.simulated:  # it knows its own costs, without a measurement
                constants = constants.on(device.measure(), relation.page_bytes)
        if rows_per_key is None:
            rows_per_key = 1.0 if relation.unique else _rows_per_key(relation)
        return cls(
            rows=max(1, relation.row_count),
            pages=max(1, relation.page_count),
            page_bytes=relation.page_bytes,
            frame_bytes=relation.device.frame_bytes,
            index_bytes=relation.index_bytes,
            waiting_bytes=StreamTable.bytes_per_tuple(stream, width),
            cached_bytes=HotTuples.bytes_per_tuple(relation.codec, stored),
            buffered_bytes=width + stream.blank_bytes,
            arrow_bytes=_arrow_bytes(schema, width),
            constants=constants,
            rows_per_key=rows_per_key,
            exponent=exponent,
            shape=shape,
            page_rows=relation.layout.capacity(relation.device.frame_bytes) if relation.layout.stride else None,
        )

    @classmethod
    def planned(
        cls,
        rows: int,
        row_bytes: int = 120,
        *,
        stream_bytes: int = 20,
        page_bytes: int = 8192,
        fill: float = 1.0,
        rows_per_key: float = 1.0,
        exponent: float = 1.0,
        shape: Shape = "random",
        constants: Constants | None = None,
    ) -> Setting:
        """Describe a join that does not exist yet, from the sizes the papers give.

        >>> setting = Setting.planned(100_000_000, constants=load_constants("disk-2010"))
        >>> setting.pages, round(setting.law.share(setting.keys // 100), 2)
        (1515152, 0.76)
        """
        if rows < 1 or row_bytes < 9 or stream_bytes < 8:
            raise ValueError(
                f"a relation needs at least 1 row and 9 bytes per row, a stream 8 bytes per row, not {rows}, "
                f"{row_bytes} and {stream_bytes}"
            )
        check_page_bytes(page_bytes, fill)
        if not 1 <= rows_per_key <= rows:
            raise ValueError(f"rows_per_key must be from 1 to the {rows} rows of R, not {rows_per_key}")
        key = pa.field("key", pa.int64())
        schema = pa.schema([key, pa.field("values", pa.binary(row_bytes - 8))])
        codec = RowCodec(stored_schema(schema, KeyCodec.for_schema(schema, "key")))
        fields = [key, pa.field("values", pa.binary(stream_bytes - 8))] if stream_bytes > 8 else [key]
        stream = RowCodec(pa.schema(fields))
        layout = PageLayout(page_bytes, codec.stride)
        if (rows_of_page := layout.capacity(max(int(page_bytes * fill), min(page_bytes, codec.stride + 64)))) == 0:
            raise ValueError(
                f"rows of {row_bytes:,} bytes do not fit into a page of {page_bytes:,}; give a larger page_size"
            )
        pages = math.ceil(rows / rows_of_page)
        return cls(
            rows=rows,
            pages=pages,
            page_bytes=page_bytes,
            frame_bytes=page_bytes,
            index_bytes=9 * pages,
            waiting_bytes=StreamTable.bytes_per_tuple(stream),
            cached_bytes=HotTuples.bytes_per_tuple(codec),
            buffered_bytes=float(stream.stride + stream.blank_bytes),
            arrow_bytes=float(stream_bytes),
            constants=constants or load_constants(),
            rows_per_key=rows_per_key,
            exponent=exponent,
            shape=shape,
            page_rows=layout.capacity(page_bytes),
        )

    def replace(self, **changes: object) -> Setting:
        """Return this setting with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def keys(self) -> int:
        """Distinct keys of R."""
        return max(1, round(self.rows / self.rows_per_key))

    @property
    def law(self) -> ZipfLaw:
        """How often each key occurs in the stream."""
        return ZipfLaw(self.keys, self.exponent)

    @property
    def rows_per_page(self) -> float:
        """Tuples of R on a page."""
        return self.rows / self.pages

    @property
    def transfer(self) -> float:
        """``T``: seconds to transfer a page."""
        return self.constants.transfer(self.page_bytes)

    @property
    def seek(self) -> float:
        """``S``: seconds to start a single read."""
        return self.constants.seek_seconds

    @property
    def queued_seek(self) -> float:
        """Seconds to start each read if many are in flight."""
        return self.constants.queued_seek_seconds

    def seek_with(self, reads: float) -> float:
        """Return the seconds to start each of ``reads`` reads that are in flight together."""
        return max(self.queued_seek, self.seek / max(1.0, reads))


def _arrow_bytes(schema: pa.Schema, stored: float) -> float:
    """Return the bytes of a row in Arrow batches; for types of varying length, approximately its stored bytes."""
    try:
        return float(sum(field.type.bit_width for field in schema) / 8)
    except ValueError:
        return stored + 4.0 * len(schema)


def _rows_per_key(relation: Relation) -> float:
    """Return the rows per key of R, estimated from evenly spread pages: each key has exactly one first row."""
    count = min(_SAMPLED_PAGES, relation.page_count)
    if count == 0:
        return 1.0
    pages = np.unique(np.linspace(0, relation.page_count - 1, count).astype(np.int64))
    frames = relation.frames(pages.size)
    relation.read(pages, frames)
    _, flags, _ = page_keys(frames, relation.layout.stride)
    return max(1.0, flags.size / max(1, int(np.count_nonzero(flags & FIRST))))
