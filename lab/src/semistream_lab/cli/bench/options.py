"""Options that the benchmark commands share, and the directories of relations and results."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

__all__ = ["LAYOUT_HELP", "Directory", "Only", "Output", "cache_directory", "store_result"]

LAYOUT_HELP = (
    "Rows of R. random: fixed width, random bytes; product: short texts and filler words; catalogue: a product "
    "catalogue; tpch-part (or tpch), tpch-customer, tpch-supplier: tables of TPC-H."
)

Only: TypeAlias = Annotated[
    list[str] | None, typer.Option(help="Run only this join; repeatable. Default: all.", show_default=False)
]
Directory: TypeAlias = Annotated[
    Path | None,
    typer.Option("--dir", help="Directory in which R is built and kept for the next run. Default: the user's cache."),
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(help="Directory for the raw results. Default: results, next to R.")
]


def cache_directory() -> Path:
    """Return the directory in which benchmarks keep their relations between runs."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured if os.path.isabs(configured) else Path.home() / ".cache") / "semistream"


def store_result(found: dict[str, Any], directory: Path, name: str) -> Path:
    """Write a raw result to a file named after the benchmark and its start time; replace an earlier, partial one."""
    directory.mkdir(parents=True, exist_ok=True)
    stamp = datetime.fromisoformat(found["when"]).strftime("%Y%m%dT%H%M%S")
    file = directory / f"{name}-{stamp}.json"
    new = file.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1) + "\n")
    return new.replace(file)
