"""Reads a Delta table as Arrow batches, to build a relation from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from semistream.core.errors import MissingExtraError, SemistreamError

__all__ = ["DeltaReadError", "delta_reader", "is_delta"]


class DeltaReadError(SemistreamError, ValueError):
    """A Delta table, or the requested version of it, cannot be read."""


def is_delta(path: Path) -> bool:
    """Return whether a directory is a Delta table, which has a log of its commits."""
    return (path / "_delta_log").is_dir()


def delta_reader(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    version: int | None = None,
    storage_options: dict[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of one version of a Delta table, in batches and in no particular order.

    Parameters
    ----------
    path
        Directory or address of the table.
    columns
        Columns to read; by default all.
    version
        Version to read; by default the newest.
    storage_options
        Options for object stores, as in the package `deltalake`.

    Examples
    --------
    >>> from semistream import Relation                                               # doctest: +SKIP
    >>> Relation.build(delta_reader("lake/products"), "/data/products", key="id")     # doctest: +SKIP
    """
    try:
        import deltalake
    except ImportError:
        raise MissingExtraError("deltalake", "delta") from None
    try:
        table = deltalake.DeltaTable(path, version=version, storage_options=storage_options)
    except deltalake.exceptions.DeltaError as error:
        at = "" if version is None else f" at version {version}"
        raise DeltaReadError(f"cannot read the Delta table {os.fspath(path)}{at}: {error}") from None
    names = [field.name for field in table.schema().fields]
    wanted = names if columns is None else list(columns)
    if missing := [name for name in wanted if name not in names]:
        raise DeltaReadError(f"{os.fspath(path)} has no column {missing[0]!r}; its columns are {', '.join(names)}")
    # Select columns in the requested order: with deletion vectors or partitions the engine returns its own order.
    return pa.RecordBatchReader.from_stream(table.scan(columns=wanted))
