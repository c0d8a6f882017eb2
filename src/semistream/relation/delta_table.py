"""A Delta table as Arrow batches, to build a relation from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from semistream.core.errors import MissingExtraError, SemistreamError

__all__ = ["DeltaReadError", "delta_reader", "is_delta"]


class DeltaReadError(SemistreamError, ValueError):
    """A Delta table that cannot be read, or not at that version."""


def is_delta(path: Path) -> bool:
    """Return whether a directory is a Delta table: there is a log of its commits in it."""
    return (path / "_delta_log").is_dir()


def delta_reader(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    *,
    version: int | None = None,
    storage_options: dict[str, str] | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of one version of a Delta table, a batch at a time and in no particular order.

    Parameters
    ----------
    path
        Directory or address of the table.
    columns
        Which of its columns; by default all.
    version
        By default the newest.
    storage_options
        For object stores, as the package `deltalake` has them.

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
    # The order asked for: with deletion vectors or partitions the engine has one of its own.
    return pa.RecordBatchReader.from_stream(table.scan(columns=wanted))
