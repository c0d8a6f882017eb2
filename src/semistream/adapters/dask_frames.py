"""Dask: R's columns in a DataFrame, partition by partition (``map_partitions``)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import dask.dataframe as dd
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from semistream.core.arguments import listed
from semistream.core.errors import ColumnClashError
from semistream.lookups import Lookups, with_rows
from semistream.relation.relation import Relation

__all__ = ["enrich"]


def enrich(
    frame: dd.DataFrame, relation: Relation, on: str | Sequence[str], columns: Sequence[str] | None = None, *,
    memory: int | str = "64MB", suffix: str = "_right",
) -> dd.DataFrame:  # fmt: skip
    """Add R's columns to a DataFrame. All partitions see the version of ``relation``, also if R changes.

    Parameters
    ----------
    relation
        R, in a directory or store that all workers reach. Each process opens it once.
    on
        The frame's key columns, in the order of R's key.
    columns
        R's columns, without the key; by default all. They have Arrow's types, which may hold NULLs.
    memory
        Budget of the look-ups in each process.
    suffix
        Added to the names of R's columns that the frame also has.
    """
    options = str(relation.place), relation.version, relation.stored.by, memory, listed(on), columns, suffix
    return frame.map_partitions(_add, *options, meta=_add(frame._meta, *options))  # noqa: SLF001


def _add(
    part: pd.DataFrame, path: str, version: int, by: tuple[str, ...] | None, memory: int | str, on: tuple[str, ...],
    columns: Sequence[str] | None, suffix: str,
) -> pd.DataFrame:  # fmt: skip
    found = with_rows(pa.Table.from_pandas(part[list(on)]), _lookups(path, version, by, memory), on, columns)
    rows = found.drop_columns(list(on)).to_pandas(types_mapper=pd.ArrowDtype)
    twice = {name: name + suffix for name in rows.columns if name in part.columns}
    if wrong := [name for name in twice.values() if name in part.columns or name in rows.columns]:
        raise ColumnClashError(f"the result would have two columns {wrong[0]!r}; give a suffix other than {suffix!r}")
    return pd.concat([part, rows.rename(columns=twice).set_axis(part.index)], axis=1)


@functools.cache
def _lookups(path: str, version: int, by: tuple[str, ...] | None, memory: int | str) -> Lookups:
    return Lookups(Relation.open(path, version=version, by=by), memory=memory)
