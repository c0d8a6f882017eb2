"""Polars: R's columns in a LazyFrame, batch by batch (``LazyFrame.map_batches``)."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from semistream.lookups import Lookups, with_rows

__all__ = ["enrich"]


def enrich(
    frame: pl.LazyFrame,
    lookups: Lookups,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    suffix: str = "_right",
) -> pl.LazyFrame:
    """Add R's columns to a LazyFrame. The streaming engine calls this for each of its batches.

    Parameters
    ----------
    frame
        The frame; `collect`, `sink_parquet` and others then look up keys.
    lookups
        Where to look up; they must stay open until the frame is collected.
    on
        The frame's key columns, in the order of R's key.
    columns
        R's columns, without the key; by default all.
    suffix
        Added to the names of R's columns that the frame also has.
    """

    def add(batch: pl.DataFrame) -> pl.DataFrame:
        found = pl.from_arrow(with_rows(batch.to_arrow(), lookups, on, columns, suffix=suffix))
        assert isinstance(found, pl.DataFrame)
        return found

    schema = frame.collect_schema()
    after = add(pl.DataFrame(schema=schema)).schema
    return frame.map_batches(add, schema=dict(after), streamable=True)
