"""Errors: each message names the value, the limit and the remedy.

Everything that the package raises on purpose is a `SemistreamError`. Bad arguments are also ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from semistream.core.arguments import nearest

__all__ = [
    "BrokenJoinError",
    "BudgetExceededError",
    "BudgetTooSmallError",
    "ColumnClashError",
    "CommitConflictError",
    "CorruptPageError",
    "JoinArgumentError",
    "KeyColumnError",
    "KeyTypeError",
    "MissingExtraError",
    "NotARelationError",
    "PinError",
    "RelationBuildError",
    "SemistreamError",
    "StalledJoinError",
    "StorageError",
    "UnknownAlgorithmError",
    "UnknownColumnsError",
    "UnknownIndexError",
    "UnsupportedJoinError",
    "UnsupportedPathError",
    "UnsupportedVersionError",
    "UpdateRefusedError",
    "UpdateTooLargeError",
]


class SemistreamError(Exception):
    """Base of every error this package raises on purpose."""


class KeyColumnError(SemistreamError, ValueError):
    """A key column is missing or cannot be a key."""


class UnknownColumnsError(KeyColumnError):
    """The requested columns `names` do not exist in R, or were requested twice; R has `columns`."""

    def __init__(self, message: str, names: Sequence[str], columns: Iterable[str]) -> None:
        super().__init__(message)
        self.names, self.columns = tuple(names), tuple(columns)


class UnknownIndexError(KeyColumnError):
    """A relation has no secondary index on the requested columns."""


class ColumnClashError(KeyColumnError):
    """A column of R has the same name as another column of the result."""


class KeyTypeError(SemistreamError, ValueError):
    """The key types of the two sides are not compatible."""


class UnsupportedJoinError(SemistreamError, ValueError):
    """The algorithm does not support the request."""


class JoinArgumentError(UnsupportedJoinError):
    """An argument of a join that the join cannot use; ``argument`` is its name."""

    def __init__(self, message: str, argument: str) -> None:
        super().__init__(message)
        self.argument = argument


class UnsupportedPathError(SemistreamError, ValueError):
    """A path that cannot be used: in an object store, or on another machine."""


class UpdateRefusedError(SemistreamError):
    """R cannot be changed at this moment."""


class UnknownAlgorithmError(SemistreamError, ValueError):
    """No join of that name is registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = nearest(name, known).replace("did", " Did", 1)
        super().__init__(f"unknown algorithm {name!r}; known algorithms: {', '.join(known)}.{hint}")


class BudgetExceededError(SemistreamError):
    """A reservation does not fit into the free part of a memory budget."""


class UpdateTooLargeError(BudgetExceededError, UpdateRefusedError):
    """An update of R that would leave a join too little memory.

    ``lacking`` is the number of missing bytes.
    """

    def __init__(self, message: str, lacking: int) -> None:
        super().__init__(message)
        self.lacking = lacking


class BrokenJoinError(SemistreamError):
    """A join that must not be used any more."""


class StalledJoinError(SemistreamError):
    """A join whose iterations make no progress."""


class BudgetTooSmallError(SemistreamError, ValueError):
    """A budget that is too small for an operator.

    ``minimum`` is the smallest sufficient number of bytes.
    """

    def __init__(self, message: str, minimum: int) -> None:
        super().__init__(message)
        self.minimum = minimum


class NotARelationError(SemistreamError, ValueError):
    """A path that does not hold a complete relation."""


class RelationBuildError(SemistreamError, ValueError):
    """Data that cannot be made into a relation."""


class CommitConflictError(SemistreamError):
    """Another writer committed first; this update is based on an older version."""


class PinError(SemistreamError):
    """The record of the version that a micro-batch reads is unreadable."""


class StorageError(SemistreamError, OSError):
    """The system refused to write: no space, no permission, or a broken device."""

    def __init__(self, message: str, *, number: int | None = None, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.errno = number
        self.path = None if path is None else str(path)


class CorruptPageError(SemistreamError):
    """A page whose bytes differ from what was written."""

    def __init__(self, message: str, *, file: Path | str, page: int) -> None:
        super().__init__(message)
        self.file = str(file)
        self.page = page


class MissingExtraError(SemistreamError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, *, of: str = "semistream") -> None:
        super().__init__(f"{package} is not installed; run: pip install '{of}[{extra}]'")
        self.package = package
        self.extra = extra


class UnsupportedVersionError(SemistreamError, ImportError):
    """An installed package that is too old."""
