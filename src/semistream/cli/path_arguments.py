"""Paths as arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.core.errors import UnsupportedPathError
from semistream.core.paths import local_path

__all__ = ["RelationPath", "read_path"]


def read_path(text: str) -> Path:
    """Return the path that an argument names, or end the command with a message."""
    try:
        return local_path(text)
    except UnsupportedPathError as error:
        raise typer.BadParameter(str(error)) from None


RelationPath = Annotated[
    Path,
    typer.Argument(help="Directory of the relation.", show_default=False, parser=read_path, metavar="PATH"),
]
