"""Paths and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from semistream.core.errors import MissingExtraError, SemistreamError, UnsupportedPathError
from semistream.core.paths import is_address, local_path

__all__ = ["Derive", "RelationPath", "read_path", "read_place"]


def read_path(text: str) -> Path:
    """Return the path that an argument names, or end the command with a message."""
    try:
        return local_path(text)
    except UnsupportedPathError as error:
        raise typer.BadParameter(str(error)) from None


def read_place(text: str) -> Path:
    """Return the path of a relation. The module for object stores is imported only if the text is an address."""
    if not is_address(text):
        return read_path(text)
    from semistream.relation.stores.store_path import place_of

    try:
        return cast(Path, place_of(text))
    except MissingExtraError:
        raise
    except SemistreamError as error:
        raise typer.BadParameter(str(error)) from None


RelationPath = Annotated[
    Path,
    typer.Argument(
        help="Directory of the relation, or its address in a store (s3://, gs://, az://).",
        show_default=False,
        parser=read_place,
        metavar="PATH",
    ),
]
Derive = Annotated[
    list[str] | None,
    typer.Option(
        "--derive",
        help="NAME=SQL of a computed column. It replaces the column of that name, or is added; repeatable. "
        "For example: \"price=replace(price, '$', '')::DOUBLE\". DuckDB evaluates it.",
        show_default=False,
    ),
]
