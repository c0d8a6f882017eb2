"""The interface of a table that a relation follows."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from semistream.core.errors import SemistreamError

__all__ = [
    "ChangedBatch",
    "ColumnId",
    "Commit",
    "ExpiredCommitError",
    "FollowError",
    "SourceTable",
    "SourceUnavailableError",
    "plain_schema",
    "reading",
]


class FollowError(SemistreamError, ValueError):
    """A table that cannot be followed, or a relation that cannot follow it."""


class ExpiredCommitError(FollowError):
    """The source has removed a commit, or files of a commit, that R still needs."""


class SourceUnavailableError(SemistreamError):
    """The table or its catalog cannot be read now. Trying again may help."""


class Commit(NamedTuple):
    """One commit of the source."""

    name: str
    committed: float
    """Seconds since the epoch."""


class ColumnId(NamedTuple):
    """What identifies a column. Columns of two commits with the same name are the same, whatever R calls them."""

    name: Hashable
    nested: str = ""
    """The type, if it is nested and its fields have ids. If it is another one, old values cannot be kept."""


class ChangedBatch(NamedTuple):
    """Rows that a commit added to the table, or removed from it."""

    added: bool
    rows: pa.RecordBatch


class SourceTable(ABC):
    """A table with a history of commits, of which each can be read, and compared with the commit before.

    Every method that reads raises `FollowError` if the table cannot be read or has a feature that is not supported,
    and `ExpiredCommitError` if the source has removed what is needed.
    """

    format: str
    """``delta`` or ``iceberg``."""
    table: str
    """Path or name, as the user gave it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """The id that the table gave itself."""

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns that the table declares; empty if it declares none."""
        return ()

    @abstractmethod
    def newest(self) -> Commit:
        """Return the newest commit."""

    @abstractmethod
    def commits_after(self, name: str) -> list[Commit]:
        """Return all commits after the one of this name, oldest first."""

    @abstractmethod
    def schema(self, commit: Commit) -> pa.Schema:
        """Return the columns of the table at a commit. Reads only metadata."""

    def column_ids(self, commit: str, schema: pa.Schema) -> Sequence[ColumnId] | None:
        """Return what identifies each column of a commit with this ``schema``; None if it is not known.

        By default the ids are the columns' names, for tables whose columns are not renamed, and not dropped without
        writing all files again. Rows that were written before a column was added have NULL in it.
        """
        return [ColumnId(name) for name in schema.names]

    @abstractmethod
    def snapshot(self, commit: Commit) -> Iterator[pa.RecordBatch]:
        """Yield all rows at a commit, in batches of `schema`. Memory: a few batches of one file."""

    @abstractmethod
    def changes(self, before: str, commit: Commit) -> Iterator[ChangedBatch]:
        """Yield the rows that ``commit`` added and removed, in batches of its `schema`.

        ``before`` is the name of the commit directly before it. A row that is both removed and added has only moved.
        """


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata, and with nullable fields: R distinguishes neither."""
    return pa.schema([pa.field(field.name, field.type) for field in schema])


@contextlib.contextmanager
def reading(file: str, table: str) -> Iterator[None]:
    """Convert the errors of a library that reads a file of a table to errors that name both and say what to do."""
    try:
        yield
    except (SemistreamError, MemoryError):
        raise
    except OSError as error:
        raise SourceUnavailableError(
            f"cannot read the file {file} of {table}: {_first_line(error)}; check that its storage is reachable, and "
            "that the file is complete, and try again"
        ) from error
    except Exception as error:  # readers of Avro raise whatever the bytes lead to
        raise FollowError(
            f"the file {file} of {table} cannot be decoded ({_first_line(error)}); nothing was committed: restore the "
            "file if it is damaged, or write its rows again in the table"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(". ")
