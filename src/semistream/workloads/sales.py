"""A stream of sales: product, store, quantity, amount and time.

Keys, arrivals and the share of sales that cannot match (a product missing from the master table, or no product at
all) are independent options. There are two layouts: ``sales``, as a cash register would send it, and ``minimal``,
the papers' stream tuple of 20 bytes, for experiments that count bytes.

Example
-------
>>> from semistream.workloads.keys.key_source import ZipfKeys
>>> stream = SalesStream(ZipfKeys(size=1000), rows=500, batch_rows=200, null_share=0.1, seed=1)
>>> [batch.num_rows for batch in stream.batches()]
[200, 200, 100]
>>> stream.schema.names
['sale_id', 'product_id', 'store_id', 'quantity', 'amount', 'event_time']
>>> 30 < stream.table()["product_id"].null_count < 70
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from semistream.core.arguments import check_at_least
from semistream.workloads.arrivals import ArrivalCursor, Arrivals, ConstantArrivals
from semistream.workloads.keys.draws import fractions, integers, sequence_seed
from semistream.workloads.keys.key_source import KeySource
from semistream.workloads.keys.key_space import KeySpace
from semistream.workloads.made_columns import decimals
from semistream.workloads.products import prices
from semistream.workloads.table_source import BATCH_ROWS, TableSource, batch_ranges, check_batch_rows

__all__ = ["SalesLayout", "SalesStream"]

SalesLayout = Literal["sales", "minimal"]

_MOST_PIECES = 9
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SalesStream(TableSource):
    """Sales in order of arrival.

    Parameters
    ----------
    keys
        Product numbers of the sales.
    rows
        Number of sales. None for an endless stream.
    arrivals
        Arrival times: ``event_time`` in the layout ``sales``. Simulations read the times from here directly.
    key_space
        The key values of the products. Default: their numbers.
    absent_share, null_share
        Share of sales whose key is not in the master table, and share of sales with a NULL key. An absent key is as
        frequent as the product that it replaces.
    layout
        ``sales``: sale_id, key, store_id, quantity, amount, event_time. ``minimal``: key (8 bytes), sale_id
        (8), quantity (4).
    key
        Name of the key column.
    batch_rows
        Rows per batch. It changes where the stream is split, never its contents.
    epoch
        Event time of second 0.
    """

    keys: KeySource
    rows: int | None = None
    arrivals: Arrivals = field(default_factory=lambda: ConstantArrivals(rate=10_000.0))
    key_space: KeySpace | None = None
    absent_share: float = 0.0
    null_share: float = 0.0
    layout: SalesLayout = "sales"
    key: str = "product_id"
    batch_rows: int = BATCH_ROWS
    stores: int = 500
    epoch: datetime = _EPOCH
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_rows(self.batch_rows)
        if self.rows is not None and self.rows < 0:
            raise ValueError(f"rows must be at least 0, not {self.rows}")
        check_at_least(1, stores=self.stores)
        if self.layout not in ("sales", "minimal"):
            raise ValueError(f"layout must be 'sales' or 'minimal', not {self.layout!r}")
        if min(self.absent_share, self.null_share) < 0 or self.absent_share + self.null_share > 1:
            raise ValueError(
                f"absent_share and null_share must be shares of at most 1 together, "
                f"not {self.absent_share} and {self.null_share}"
            )
        if self.space.size < self.keys.size:
            raise ValueError(
                f"the stream draws from {self.keys.size} keys, but the key space has only {self.space.size}; "
                "use absent_share for keys that match nothing"
            )

    @property
    def space(self) -> KeySpace:
        """The key values of the products."""
        return self.key_space or KeySpace(self.keys.size)

    @property
    def schema(self) -> pa.Schema:
        key = pa.field(self.key, pa.int64())
        sale_id, quantity = pa.field("sale_id", pa.int64()), pa.field("quantity", pa.int32())
        if self.layout == "minimal":
            return pa.schema([key, sale_id, quantity])
        return pa.schema([
            sale_id,
            key,
            pa.field("store_id", pa.int32()),
            quantity,
            pa.field("amount", pa.decimal128(12, 2)),
            pa.field("event_time", pa.timestamp("us", tz="UTC")),
        ])  # fmt: skip

    @property
    def row_count(self) -> int | None:
        return self.rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self.between(0, self.rows, self.arrivals.cursor())

    def between(self, start: int, stop: int | None, cursor: ArrivalCursor) -> Iterator[pa.RecordBatch]:
        """Yield the sales from number ``start`` up to, but not including, ``stop``.

        ``cursor`` is a cursor of `arrivals` that is not past ``start``. Arrival times depend on the times before them,
        so the middle of the stream is only reached from its beginning. Keep the cursor for the next range to avoid
        starting over.

        >>> from semistream.workloads.keys.key_source import ZipfKeys
        >>> stream = SalesStream(ZipfKeys(size=1000), rows=500)
        >>> middle = pa.Table.from_batches(stream.between(200, 300, stream.arrivals.cursor()))
        >>> middle.equals(stream.table().slice(200, 100))
        True
        """
        if cursor.position > start:
            raise ValueError(f"the cursor is at sale {cursor.position}, past {start}; take a new one")
        cursor.skip(start - cursor.position)
        for offset, count in batch_ranges(None if stop is None else stop - start, self.batch_rows):
            times = cursor.take(count)
            if self.layout == "minimal":
                columns = self._minimal(start + offset, count)
            else:
                columns = self._sales(start + offset, times)
            yield pa.record_batch(columns, schema=self.schema)

    def _minimal(self, start: int, count: int) -> list[pa.Array]:
        products = self.keys.keys(start, count)
        return [self._key_column(start, products), _sale_ids(start, count), self._quantities(start, count)]

    def _sales(self, start: int, times: NDArray[np.float64]) -> list[pa.Array]:
        count = times.size
        products = self.keys.keys(start, count)
        quantities = self._quantities(start, count)
        stores = integers(sequence_seed(self.seed, "store"), start, count, below=self.stores)
        # The price depends on the product, not on the key sent, so a sale without a match has an amount too.
        amounts = prices(self.seed, products) * quantities
        microseconds = (times * 1e6).astype(np.int64) + round(self.epoch.timestamp() * 1e6)
        return [
            _sale_ids(start, count),
            self._key_column(start, products),
            pa.array(stores.astype(np.int32)),
            pa.array(quantities),
            decimals(amounts, 12, 2),
            pa.array(microseconds).cast(pa.timestamp("us", tz="UTC")),
        ]

    def _quantities(self, start: int, count: int) -> NDArray[np.int32]:
        pieces = integers(sequence_seed(self.seed, "quantity"), start, count, below=_MOST_PIECES)
        return (pieces + 1).astype(np.int32)

    def _key_column(self, start: int, products: NDArray[np.int64]) -> pa.Array:
        values = self.space.present(products)
        if not self.absent_share and not self.null_share:
            return pa.array(values)
        fate = fractions(sequence_seed(self.seed, "fate"), start, products.size)
        null = fate < self.null_share
        absent = ~null & (fate < self.null_share + self.absent_share)
        values[absent] = self.space.absent(products[absent])
        return pa.array(values, mask=null)


def _sale_ids(start: int, count: int) -> pa.Array:
    return pa.array(np.arange(start, start + count, dtype=np.int64))
