"""Errors for people: each names the value, the limit and the remedy.

Bad arguments are also ``ValueError``; everything the package raises on purpose is a `SemistreamError`.
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
    "UnsupportedJoinError",
    "UnsupportedPathError",
    "UpdateRefusedError",
    "UpdateTooLargeError",
]


class SemistreamError(Exception):
    """Base of every error this package raises on purpose."""


class KeyColumnError(SemistreamError, ValueError):
    """A key column is missing or cannot be a key."""


class UnknownColumnsError(KeyColumnError):
    """Columns of R were asked for that it does not have, or twice: `names`; it has `columns`."""

    def __init__(self, message: str, names: Sequence[str], columns: Iterable[str]) -> None:
        super().__init__(message)
        self.names, self.columns = tuple(names), tuple(columns)


class ColumnClashError(KeyColumnError):
    """A column of R would have the name of another column of the result."""


class KeyTypeError(SemistreamError, ValueError):
    """The key types of the two sides do not fit."""


class UnsupportedJoinError(SemistreamError, ValueError):
    """An algorithm was asked for something it does not do."""


class JoinArgumentError(UnsupportedJoinError):
    """An argument of a join that the join cannot use; ``argument`` is its name."""

    def __init__(self, message: str, argument: str) -> None:
        super().__init__(message)
        self.argument = argument


class UnsupportedPathError(SemistreamError, ValueError):
    """A path of a kind that cannot be used: an object store's, or on another machine."""


class UpdateRefusedError(SemistreamError):
    """R cannot be changed just now."""


class UnknownAlgorithmError(SemistreamError, ValueError):
    """No join of that name is registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = nearest(name, known).replace("did", " Did", 1)
        super().__init__(f"unknown algorithm {name!r}; known algorithms: {', '.join(known)}.{hint}")


class BudgetExceededError(SemistreamError):
    """A reservation did not fit into what is left of a memory budget."""


class UpdateTooLargeError(BudgetExceededError, UpdateRefusedError):
    """An update of R that would leave a join too little memory.

    ``lacking`` is the number of bytes that would have to be added.
    """

    def __init__(self, message: str, lacking: int) -> None:
        super().__init__(message)
        self.lacking = lacking


class BrokenJoinError(SemistreamError):
    """A join that may not be used any more."""


class StalledJoinError(SemistreamError):
    """A join whose turns lead to nothing."""


class BudgetTooSmallError(SemistreamError, ValueError):
    """A budget with which an operator cannot run at all.

    ``minimum`` is the smallest number of bytes that would do.
    """

    def __init__(self, message: str, minimum: int) -> None:
        super().__init__(message)
        self.minimum = minimum


class NotARelationError(SemistreamError, ValueError):
    """A path that does not hold a complete relation."""


class RelationBuildError(SemistreamError, ValueError):
    """Data that cannot be made into a relation."""


class CommitConflictError(SemistreamError):
    """Another writer was first; what this one worked out is not of the newest version."""


class PinError(SemistreamError):
    """The record of what version a micro-batch reads cannot be read."""


class StorageError(SemistreamError, OSError):
    """The system refused to write: no room, no permission, a broken device."""

    def __init__(self, message: str, *, number: int | None = None, path: Path | str | None = None) -> None:
        super().__init__(message)
        self.errno = number
        self.path = None if path is None else str(path)


class CorruptPageError(SemistreamError):
    """A page whose bytes are not what was written."""

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
