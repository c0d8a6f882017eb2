"""Paths as arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from semistream.core.errors import UnsupportedPathError
from semistream.core.paths import is_address, local_path

__all__ = ["RelationPath", "read_path"]


def read_path(text: str) -> Path:
    """Return the path that an argument names, or end the command with a message.

    A place in a store, which commands use like a path, is imported only if one is named: most commands are to start
    at once.
    """
    try:
        if is_address(text):
            from semistream.relation.stores.store_path import place_of

            return cast(Path, place_of(text))
        return local_path(text)
    except UnsupportedPathError as error:
        raise typer.BadParameter(str(error)) from None


RelationPath = Annotated[
    Path,
    typer.Argument(
        help="Directory of the relation, or its address in a store (s3://, gs://, az://).",
        show_default=False,
        parser=read_path,
        metavar="PATH",
    ),
]
